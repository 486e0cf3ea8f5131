package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"
)

// Bounds of an app's logs. Two files are kept, the older of which is thrown away when the
// newer is full.
const (
	logFileBytes = 4 << 20
	logLineBytes = 16 << 10
	// One replica writes so many bytes a second, and logBurst at once; more is left out.
	logPerSecond = 256 << 10
	logBurst     = 1 << 20
)

// Line is one line that a replica wrote, or a note of the daemon's (Stream is "paddock").
type Line struct {
	Time    time.Time `json:"time"`
	Replica string    `json:"replica"`
	Stream  string    `json:"stream"`
	Text    string    `json:"text,omitempty"`
	// Bytes stands for a text that is no UTF-8.
	Bytes []byte `json:"bytes,omitempty"`
}

// logFile is an app's log: lines of JSON in two files.
type logFile struct {
	dir string

	mu      sync.Mutex
	f       *os.File
	size    int64
	changed chan struct{} // closed, and another put in its place, with each line
}

const (
	newLog = "log.jsonl"
	oldLog = "log.1.jsonl"
)

func openLog(dir string) (*logFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &logFile{dir: dir, changed: make(chan struct{})}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(filepath.Join(l.dir, newLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.f, l.size = f, info.Size()
	return nil
}

func (l *logFile) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return f.Close()
}

// note writes a line of the daemon's own.
func (l *logFile) note(replica, text string) {
	l.put(Line{Replica: replica, Stream: "paddock", Text: text})
}

// put adds a line. A log that cannot be written loses it: the app goes on.
func (l *logFile) put(line Line) {
	line.Time = time.Now().UTC()
	text, err := json.Marshal(line)
	if err != nil {
		return
	}
	text = append(text, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return
	}
	if l.size > 0 && l.size+int64(len(text)) > logFileBytes {
		_ = l.f.Close()
		l.f = nil
		if os.Rename(filepath.Join(l.dir, newLog), filepath.Join(l.dir, oldLog)) != nil || l.open() != nil {
			return
		}
	}
	n, _ := l.f.Write(text)
	l.size += int64(n)
	close(l.changed)
	l.changed = make(chan struct{})
}

// stream is what one stream of a replica writes to.
func (l *logFile) stream(replica, name string) *logStream {
	return &logStream{l: l, replica: replica, name: name, room: logBurst, at: time.Now()}
}

// logStream makes lines of what it is given.
type logStream struct {
	l             *logFile
	replica, name string
	rest          []byte
	room          float64
	at            time.Time
	dropped       int64
}

// Write takes bytes as they come.
func (s *logStream) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		for len(s.rest)+len(part) > logLineBytes {
			cut := logLineBytes - len(s.rest)
			s.rest = append(s.rest, part[:cut]...)
			part = part[cut:]
			s.flush()
		}
		s.rest = append(s.rest, part...)
		if i < 0 {
			break
		}
		s.emit()
		p = p[i+1:]
	}
	return n, nil
}

// flush writes a line that has no end yet.
func (s *logStream) flush() {
	if len(s.rest) > 0 {
		s.emit()
	}
}

func (s *logStream) emit() {
	text := s.rest
	s.rest = s.rest[:0]
	now := time.Now()
	s.room = min(logBurst, s.room+now.Sub(s.at).Seconds()*logPerSecond)
	s.at = now
	if s.room < float64(len(text))+1 {
		s.dropped += int64(len(text)) + 1
		return
	}
	s.room -= float64(len(text)) + 1
	if s.dropped > 0 {
		raw, _ := json.Marshal(s.dropped) //nolint:errchkjson // a number
		s.l.note(s.replica, string(raw)+" bytes of "+s.name+" were left out: it wrote too fast")
		s.dropped = 0
	}
	line := Line{Replica: s.replica, Stream: s.name}
	if utf8.Valid(text) {
		line.Text = string(text)
	} else {
		line.Bytes = bytes.Clone(text)
	}
	s.l.put(line)
}

// LogQuery says which lines of a log are wanted.
type LogQuery struct {
	// Tail is how many of the lines that are there, counted from the last; 0 is all.
	Tail int
	// Replica, when set, is whose lines.
	Replica string
	// Follow waits for more until the app is removed or the context ends.
	Follow bool
}

// Logs calls yield with the lines of an app's log, the oldest first.
func (s *Service) Logs(ctx context.Context, owner, name string, q LogQuery, yield func(Line) error) error {
	a, err := s.get(Key{owner, name})
	if err != nil {
		return err
	}
	pos, changed, err := a.logs.read(q, yield)
	if err != nil || !q.Follow {
		return err
	}
	for {
		select {
		case <-changed:
		case <-a.over:
			return nil
		case <-ctx.Done():
			return nil //nolint:nilerr // who followed has gone
		}
		if pos, changed, err = a.logs.more(pos, q.Replica, yield); err != nil {
			return err
		}
	}
}

// position is how far a log was read: a file and the offset in it.
type position struct {
	f   os.FileInfo
	off int64
}

// read reads what is there.
func (l *logFile) read(q LogQuery, yield func(Line) error) (position, <-chan struct{}, error) {
	l.mu.Lock()
	changed := l.changed
	old, errOld := os.Open(filepath.Join(l.dir, oldLog))
	now, err := os.Open(filepath.Join(l.dir, newLog))
	size := l.size
	l.mu.Unlock()
	if errOld == nil {
		defer func() { _ = old.Close() }()
	} else if !errors.Is(errOld, fs.ErrNotExist) {
		return position{}, nil, errOld
	}
	if err != nil {
		return position{}, nil, err
	}
	defer func() { _ = now.Close() }()
	info, err := now.Stat()
	if err != nil {
		return position{}, nil, err
	}
	from := io.MultiReader(io.LimitReader(now, size))
	if old != nil {
		from = io.MultiReader(old, from)
	}
	var last []Line // of a tail: at most so many
	err = eachLine(from, q.Replica, func(line Line) error {
		if q.Tail <= 0 {
			return yield(line)
		}
		if last = append(last, line); len(last) >= 2*q.Tail {
			last = append(last[:0], last[len(last)-q.Tail:]...)
		}
		return nil
	})
	if err != nil {
		return position{}, nil, err
	}
	for _, line := range last[max(0, len(last)-q.Tail):] {
		if err := yield(line); err != nil {
			return position{}, nil, err
		}
	}
	return position{info, size}, changed, nil
}

// more reads what came after a position. Where the log was turned over since, it begins with
// the new file.
func (l *logFile) more(pos position, replica string, yield func(Line) error) (position, <-chan struct{}, error) {
	l.mu.Lock()
	changed := l.changed
	f, err := os.Open(filepath.Join(l.dir, newLog))
	size := l.size
	l.mu.Unlock()
	if err != nil {
		return pos, nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return pos, nil, err
	}
	if !os.SameFile(info, pos.f) {
		pos = position{f: info}
	}
	err = eachLine(io.NewSectionReader(f, pos.off, size-pos.off), replica, yield)
	return position{info, size}, changed, err
}

func eachLine(r io.Reader, replica string, yield func(Line) error) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 8*logLineBytes) // what is no text takes up to six times its length
	for in.Scan() {
		var line Line
		if json.Unmarshal(in.Bytes(), &line) != nil || replica != "" && line.Replica != replica {
			continue // a torn line that a crash left
		}
		if err := yield(line); err != nil {
			return err
		}
	}
	return in.Err()
}
