package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// spoolMemory is how much of an answer is held in memory; what is longer goes to a file.
const spoolMemory = 1 << 20

// spool holds an answer until it is whole: one that breaks off says that the daemon is
// gone, which what is in an agent's tree must not be able to say. Zeros take no room on
// the disk.
type spool struct {
	dir  string
	head bytes.Buffer
	file *os.File
	rest *bufio.Writer
	size int64 // of the file
	// err is the spool's own, which nobody outside is to blame for.
	err error
}

// Write holds p.
func (s *spool) Write(p []byte) (int, error) {
	n := min(len(p), spoolMemory-s.head.Len())
	s.head.Write(p[:n])
	if n == len(p) {
		return n, nil
	}
	if s.file == nil && s.err == nil {
		s.err = s.open()
	}
	if s.err == nil {
		_, s.err = s.rest.Write(p[n:])
	}
	if s.err != nil {
		return n, s.err
	}
	return len(p), nil
}

// open makes the file, which has no name and so goes with its descriptor.
func (s *spool) open() error {
	f, err := os.CreateTemp(s.dir, "answer-*")
	if err != nil {
		return err
	}
	s.file, s.rest = f, bufio.NewWriterSize(spoolFile{s}, 64<<10)
	return os.Remove(f.Name())
}

// spoolFile appends to a spool's file, zeros as holes.
type spoolFile struct{ s *spool }

var spoolZeros [64 << 10]byte

// Write appends p.
func (w spoolFile) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		part := p[done:min(len(p), done+len(spoolZeros))]
		if !bytes.Equal(part, spoolZeros[:len(part)]) {
			if _, err := w.s.file.WriteAt(part, w.s.size); err != nil {
				return done, err
			}
		}
		done += len(part)
		w.s.size += int64(len(part))
	}
	return len(p), nil
}

// end says that the answer is whole.
func (s *spool) end() error {
	if s.err == nil && s.file != nil {
		s.err = errors.Join(s.rest.Flush(), s.file.Truncate(s.size))
	}
	if s.err != nil {
		return fmt.Errorf("hold the answer: %w", s.err)
	}
	return nil
}

// send writes the answer after end.
func (s *spool) send(w io.Writer) error {
	if _, err := w.Write(s.head.Bytes()); err != nil || s.file == nil {
		return err
	}
	_, err := io.Copy(w, io.NewSectionReader(s.file, 0, s.size))
	return err
}

// close forgets the answer.
func (s *spool) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}
