package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/paddock-run/paddock/internal/egress"
)

const (
	exchangesFile = "exchanges.jsonl"
	// maxExchanges bounds the file: as much as a payload may have.
	maxExchanges = 64 << 20
)

// ExchangesSummary tells of what an attempt's endpoints carried.
type ExchangesSummary struct {
	Count int64 `json:"count"`
	// Bytes is the length of the file, Dropped the number that it has no room for.
	Bytes   int64 `json:"bytes"`
	Dropped int64 `json:"dropped,omitempty"`
	// Broken is the number that the service was not there or too busy for, gave no whole
	// answer to, or one that says that it failed (5xx): a reward after such may not be the agent's own doing alone.
	Broken int64 `json:"broken,omitempty"`
}

// exchangeLine is one line of exchanges.jsonl.
type exchangeLine struct {
	Seq int64 `json:"seq"`
	egress.Exchange
}

// exchangeLog appends exchanges to a file of the attempt's directory, which it makes with
// the first one.
type exchangeLog struct {
	path string

	mu     sync.Mutex
	f      *os.File
	sum    ExchangesSummary
	failed error
}

func newExchangeLog(dir string) *exchangeLog {
	return &exchangeLog{path: filepath.Join(dir, exchangesFile)}
}

func (l *exchangeLog) add(x egress.Exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum.Count++
	if x.Error != "" || x.Status >= 500 {
		l.sum.Broken++
	}
	line, err := json.Marshal(exchangeLine{Seq: l.sum.Count, Exchange: x})
	if err != nil || l.failed != nil || l.sum.Bytes+int64(len(line))+1 > maxExchanges {
		l.failed = errors.Join(l.failed, err)
		l.sum.Dropped++
		return
	}
	if l.f == nil {
		if l.f, l.failed = os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); l.failed != nil {
			l.sum.Dropped++
			return
		}
	}
	n, err := l.f.Write(append(line, '\n'))
	l.sum.Bytes += int64(n)
	l.failed = err
}

// finish syncs and closes the file; the summary is nil where there were no exchanges.
func (l *exchangeLog) finish() (*ExchangesSummary, error) {
	if l == nil {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.failed
	if l.f != nil {
		err = errors.Join(err, l.f.Sync(), l.f.Close())
		l.f = nil
	}
	l.failed = errors.Join(l.failed, errClosed)
	if l.sum.Count == 0 {
		return nil, err
	}
	sum := l.sum
	return &sum, err
}

// readExchanges reads whole lines only: a crash may have torn the last one.
func readExchanges(dir string) (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(dir, exchangesFile))
	if errors.Is(err, os.ErrNotExist) {
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return nil, err
	}
	end, err := lastNewline(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, 0, end), f}, nil
}

// lastNewline is how many bytes whole lines take.
func lastNewline(f *os.File) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for end := st.Size(); end > 0; {
		from := max(0, end-int64(len(buf)))
		n, err := f.ReadAt(buf[:end-from], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		end = from
	}
	return 0, nil
}
