package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"
)

// What floods is read at a bounded rate, all of it counted and hashed; what does not never
// waits.
func TestFloodsAreReadAtABoundedRate(t *testing.T) {
	t.Parallel()
	const chunk = 1 << 20
	zeros := make([]byte, chunk)
	total := floodBytes + floodRate/4
	total -= total % chunk
	c := newCollector(DefaultOutput, nil, nil)
	began := time.Now()
	for range total / chunk {
		_, _ = c.Write(zeros)
	}
	// The last chunk's own time passes after it.
	least := time.Duration((total - floodBytes - 2*chunk) * int64(time.Second) / floodRate)
	if took := time.Since(began); took < least {
		t.Errorf("%d bytes took %s, want at least %s", total, took, least)
	}
	sum := sha256.Sum256(bytes.Repeat([]byte{0}, int(total)))
	if out := c.output(); out.Bytes != total || out.SHA256 != hex.EncodeToString(sum[:]) || out.Dropped != total-DefaultOutput {
		t.Errorf("output of %d bytes, %d dropped, sum %s; want %d, %d, %x", out.Bytes, out.Dropped, out.SHA256, total, total-DefaultOutput, sum)
	}
}
