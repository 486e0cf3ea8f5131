package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"runtime"
	"sync"
	"time"
)

// Caps of what a result keeps of a stream.
const (
	DefaultOutput = 1 << 20
	MaxOutput     = 16 << 20
)

func outputCap(asked int64) int {
	if asked <= 0 {
		return DefaultOutput
	}
	return int(min(asked, MaxOutput))
}

// floodBytes is up to where a stream is read as fast as it comes. Beyond it all streams
// together have floodRate, so that what the daemon spends on programs that flood stays a
// small part of the host, and who asks little need not wait for it.
const floodBytes = 4 << 20

var floodRate = int64(runtime.NumCPU()) * (32 << 20) // bytes a second

// floods is when the next byte beyond floodBytes may be read.
var floods struct {
	mu   sync.Mutex
	next time.Time
}

// awaitFlood returns when n bytes more are within floodRate.
func awaitFlood(n int) {
	now := time.Now()
	floods.mu.Lock()
	if floods.next.Before(now) {
		floods.next = now
	}
	wait := floods.next.Sub(now)
	floods.next = floods.next.Add(time.Duration(int64(n) * int64(time.Second) / floodRate))
	floods.mu.Unlock()
	<-time.After(wait)
}

// collector keeps the head and the tail of a stream, hashes all of it and copies it on.
// It never fails, so a program cannot be stopped by its own output, and its memory is
// bounded by the cap.
type collector struct {
	headCap, tailCap int
	copyTo           io.Writer
	count            func(n int) // told of every byte, for the episode's total
	program          bool        // it may flood; a file comes as fast as it is taken

	mu    sync.Mutex
	head  []byte
	tail  []byte // a ring once it is full
	at    int
	total int64
	sum   hash.Hash
}

func newCollector(limit int, copyTo io.Writer, count func(int)) *collector {
	return &collector{headCap: (limit + 1) / 2, tailCap: limit / 2, copyTo: copyTo, count: count, sum: sha256.New()}
}

// programOutput collects what a program writes.
func programOutput(limit int, copyTo io.Writer, count func(int)) *collector {
	c := newCollector(limit, copyTo, count)
	c.program = true
	return c
}

func (c *collector) Write(p []byte) (int, error) {
	n := len(p)
	c.mu.Lock()
	c.sum.Write(p)
	c.total += int64(n)
	flood := c.program && c.total > floodBytes
	c.keep(p)
	to := c.copyTo
	c.mu.Unlock()
	if c.count != nil {
		c.count(n)
	}
	if flood {
		awaitFlood(n)
	}
	if to != nil {
		if _, err := to.Write(p); err != nil {
			c.mu.Lock()
			c.copyTo = nil // the reader is gone; the program goes on
			c.mu.Unlock()
		}
	}
	return n, nil
}

func (c *collector) keep(p []byte) {
	if room := c.headCap - len(c.head); room > 0 {
		n := min(room, len(p))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > c.tailCap { // only its end can stay
		p = p[len(p)-c.tailCap:]
	}
	if room := c.tailCap - len(c.tail); room > 0 {
		n := min(room, len(p))
		c.tail = append(c.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(c.tail[c.at:], p)
		c.at = (c.at + n) % len(c.tail)
		p = p[n:]
	}
}

func (c *collector) output() Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	tail := append(append([]byte(nil), c.tail[c.at:]...), c.tail[:c.at]...)
	out := Output{Head: append([]byte(nil), c.head...), Bytes: c.total, SHA256: hex.EncodeToString(c.sum.Sum(nil))}
	out.Dropped = c.total - int64(len(out.Head)+len(tail))
	if out.Dropped == 0 {
		out.Head = append(out.Head, tail...)
	} else {
		out.Tail = tail
	}
	return out
}
