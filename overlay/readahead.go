package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"sync"
)

// readAhead reads and hashes a stream in a goroutine of its own, some chunks ahead of who
// reads it: unpacking a layer is half decompressing and hashing, half writing files.
type readAhead struct {
	chunks chan []byte
	free   chan []byte
	stop   chan struct{}
	end    sync.WaitGroup
	once   sync.Once
	rest   []byte
	whole  []byte // the chunk that rest is of
	hash   hash.Hash
	size   int64
	err    error // of the stream, set before chunks is closed
}

const (
	aheadChunk = 256 << 10
	aheadDepth = 8
)

func newReadAhead(r io.Reader) *readAhead {
	a := &readAhead{
		chunks: make(chan []byte, aheadDepth), free: make(chan []byte, aheadDepth+2), stop: make(chan struct{}), hash: sha256.New(),
	}
	for range cap(a.free) {
		a.free <- nil
	}
	a.end.Go(func() { a.run(r) })
	return a
}

func (a *readAhead) run(r io.Reader) {
	defer close(a.chunks)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-a.stop:
			return
		}
		if buf == nil {
			buf = make([]byte, aheadChunk)
		}
		n, err := fill(r, buf[:aheadChunk])
		a.hash.Write(buf[:n])
		a.size += int64(n)
		if n > 0 {
			select {
			case a.chunks <- buf[:n]:
			case <-a.stop:
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.err = err
			}
			return
		}
	}
}

// fill is io.ReadFull that keeps the reader's own errors apart from an end.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = r.Read(p[n:])
		n += k
	}
	return n, err
}

// Read is as of io.Reader.
func (a *readAhead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.whole != nil {
			a.free <- a.whole[:0]
			a.whole = nil
		}
		chunk, ok := <-a.chunks
		if !ok {
			if a.err != nil {
				return 0, a.err
			}
			return 0, io.EOF
		}
		a.rest, a.whole = chunk, chunk
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// digest is of the whole stream, in hex, once it was read to its end.
func (a *readAhead) digest() string {
	a.end.Wait()
	return hex.EncodeToString(a.hash.Sum(nil))
}

// close ends the goroutine.
func (a *readAhead) close() {
	a.once.Do(func() { close(a.stop) })
	a.end.Wait()
}
