package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"
)

// What a program floods is read at a bounded rate, all of it counted and hashed; a file is not.
func TestFloodsAreReadAtABoundedRate(t *testing.T) {
	const chunk = 1 << 20
	zeros := make([]byte, chunk)
	total := floodBytes + floodRate/4
	total -= total % chunk
	c := programOutput(DefaultOutput, nil, nil)
	began := time.Now()
	for range total / chunk {
		_, _ = c.Write(zeros)
	}
	// The last chunk's own time passes after it.
	least := time.Duration((total - floodBytes - 2*chunk) * int64(time.Second) / floodRate)
	if took := time.Since(began); took < least {
		t.Errorf("%d bytes took %s, want at least %s", total, took, least)
	}
	floods.mu.Lock()
	next := floods.next
	floods.mu.Unlock()
	file := newCollector(DefaultOutput, nil, nil)
	for range 2 * floodBytes / chunk {
		_, _ = file.Write(zeros)
	}
	floods.mu.Lock()
	defer floods.mu.Unlock()
	if floods.next != next {
		t.Error("a file that is read counts as a flood")
	}
	sum := sha256.Sum256(bytes.Repeat([]byte{0}, int(total)))
	if out := c.output(); out.Bytes != total || out.SHA256 != hex.EncodeToString(sum[:]) || out.Dropped != total-DefaultOutput {
		t.Errorf("output of %d bytes, %d dropped, sum %s; want %d, %d, %x", out.Bytes, out.Dropped, out.SHA256, total, total-DefaultOutput, sum)
	}
}
