package record

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/paddock-run/paddock/runner"
)

const (
	episodesDir    = "episodes"
	trajectoryFile = "trajectory.jsonl"
	payloadFile    = "payload"
	// maxLine bounds one line of a journal.
	maxLine = 512 << 20
)

func (r *Record) episodeDir(key runner.Key) string {
	sum := sha256.Sum256([]byte(key.Owner + "\x00" + key.Run + "\x00" + key.ID))
	return filepath.Join(r.root, episodesDir, hex.EncodeToString(sum[:20]))
}

func (r *Record) attemptDir(key runner.Key, n int) string {
	return filepath.Join(r.episodeDir(key), strconv.Itoa(n))
}

// Dir is the attempt's directory, made when missing.
func (r *Record) Dir(key runner.Key, n int) (string, error) {
	dir := r.attemptDir(key, n)
	err := mkdir(dir)
	if errors.Is(err, os.ErrNotExist) { // the first attempt's
		err = mkdir(filepath.Dir(dir))
		if err == nil {
			err = mkdir(dir)
		}
	}
	return dir, err
}

func mkdir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// Journal opens the journal of calls for appending. A torn last line, which a crash
// leaves, is cut off first, so that no later line is glued to it.
func (r *Record) Journal(key runner.Key, n int) (runner.Journal, error) {
	dir, err := r.Dir(key, n)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, trajectoryFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		return &journal{f: f, dirs: r.dirsOf(key, n)}, nil
	}
	if !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	end, err := wholeLines(f)
	if err == nil {
		err = f.Truncate(end)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &journal{f: f, end: end, dirs: r.dirsOf(key, n)}, nil
}

// wholeLines is the offset behind the last newline.
func wholeLines(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for end := info.Size(); end > 0; {
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

// dirsOf are the directories whose entries lead to an attempt's files, the innermost first.
func (r *Record) dirsOf(key runner.Key, n int) []string {
	return []string{r.attemptDir(key, n), r.episodeDir(key), filepath.Join(r.root, episodesDir)}
}

func syncDirs(dirs []string) error {
	for _, d := range dirs {
		if err := syncDir(d); err != nil {
			return err
		}
	}
	return nil
}

type journal struct {
	f    *os.File
	end  int64
	dirs []string
	// bad is set once a write failed half way and could not be taken back.
	bad error
}

// Append writes one line.
func (j *journal) Append(line []byte) (int64, error) {
	if j.bad != nil {
		return 0, j.bad
	}
	if bytes.IndexByte(line, '\n') >= 0 || len(line) > maxLine {
		return 0, fmt.Errorf("journal: line of %d bytes is too long or holds a newline", len(line))
	}
	at := j.end
	buf := append(append(make([]byte, 0, len(line)+1), line...), '\n')
	if _, err := j.f.WriteAt(buf, at); err != nil {
		if terr := j.f.Truncate(at); terr != nil {
			j.bad = fmt.Errorf("journal: torn: %w", errors.Join(err, terr))
		}
		return 0, fmt.Errorf("journal: %w", err)
	}
	j.end += int64(len(buf))
	return at, nil
}

// Line reads back a line.
func (j *journal) Line(offset int64) ([]byte, error) {
	rd := bufio.NewReader(io.NewSectionReader(j.f, offset, maxLine))
	line, err := rd.ReadBytes('\n')
	return bytes.TrimSuffix(line, []byte("\n")), err
}

// Sync makes what was appended survive the host's death. A file's own sync does not keep
// its name, so the directories are synced too: a synced outcome never points to a
// trajectory, capture or pack that is not there.
func (j *journal) Sync() error {
	if j.end > 0 {
		if err := dataSync(j.f); err != nil {
			return err
		}
	}
	return syncDirs(j.dirs)
}

func (j *journal) Close() error { return j.f.Close() }

// Trajectory reads the journal: whole lines only.
func (r *Record) Trajectory(_ context.Context, key runner.Key, n int) (io.ReadCloser, string, error) {
	f, err := os.Open(filepath.Join(r.attemptDir(key, n), trajectoryFile))
	if errors.Is(err, os.ErrNotExist) {
		return io.NopCloser(bytes.NewReader(nil)), "", nil
	}
	if err != nil {
		return nil, "", err
	}
	end, err := checkLines(f)
	if err != nil {
		return nil, "", errors.Join(err, f.Close())
	}
	info, err := f.Stat()
	if err != nil {
		return nil, "", errors.Join(err, f.Close())
	}
	note := ""
	if torn := info.Size() - end; torn > 0 {
		note = fmt.Sprintf("the last record was torn: %d bytes of it were dropped", torn)
	}
	type section struct {
		io.Reader
		io.Closer
	}
	return section{io.NewSectionReader(f, 0, end), f}, note, nil
}

// checkLines reads the whole journal. The offset is that behind the last whole line.
func checkLines(f *os.File) (int64, error) {
	rd := bufio.NewReaderSize(f, 64<<10)
	var end int64
	for number := 1; ; number++ {
		line, err := rd.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return 0, err
		}
		if !json.Valid(line) {
			return 0, &runner.Error{Kind: runner.KindRecordDamaged, Detail: fmt.Sprintf("line %d of the trajectory is damaged", number)}
		}
		end += int64(len(line))
	}
}

// SavePayload keeps a payload: a small one in the database, where the outcome's sync
// covers it, a large one in a file of its own.
func (r *Record) SavePayload(ctx context.Context, key runner.Key, n int, payload []byte) error {
	if len(payload) <= inlinePayload {
		return r.do(ctx, runner.Written, write{
			query: "INSERT INTO payloads (owner, run, id, n, bytes) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET bytes = excluded.bytes",
			args:  []any{key.Owner, key.Run, key.ID, n, payload},
		})
	}
	dir, err := r.Dir(key, n)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, payloadFile+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(payload)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, payloadFile)); err != nil {
		return err
	}
	return syncDirs(r.dirsOf(key, n))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Payload returns a kept payload.
func (r *Record) Payload(ctx context.Context, key runner.Key, n int) ([]byte, error) {
	var payload []byte
	err := r.db.QueryRowContext(ctx, "SELECT bytes FROM payloads WHERE owner = ? AND run = ? AND id = ? AND n = ?",
		key.Owner, key.Run, key.ID, n).Scan(&payload)
	if !errors.Is(err, sql.ErrNoRows) {
		return payload, err
	}
	payload, err = os.ReadFile(filepath.Join(r.attemptDir(key, n), payloadFile))
	if errors.Is(err, os.ErrNotExist) {
		err = missing("attempt %d of %q has no payload", n, key.ID)
	}
	return payload, err
}

// DeleteEpisode removes every attempt and all files of it.
func (r *Record) DeleteEpisode(ctx context.Context, key runner.Key) error {
	args := []any{key.Owner, key.Run, key.ID}
	// Writes are done in order, so to wait for the last is to wait for both.
	const whose = " WHERE owner = ? AND run = ? AND id = ?"
	if err := r.do(ctx, runner.Lazy, write{query: "DELETE FROM payloads" + whose, args: args}); err != nil {
		return err
	}
	err := r.do(ctx, runner.Written, write{query: "DELETE FROM attempts" + whose, args: args, must: true, ends: key})
	if runner.KindOf(err) == runner.KindNotFound {
		err = missing("no episode %q in run %q", key.ID, key.Run)
	}
	if err != nil {
		return err
	}
	return removeEpisode(r.episodeDir(key))
}

// removeEpisode removes an episode's directory. Most have one attempt with these files, which
// need no list of what is there.
func removeEpisode(dir string) error {
	first := filepath.Join(dir, "1")
	for _, at := range []string{filepath.Join(first, trajectoryFile), filepath.Join(first, runner.CaptureFile)} {
		_ = syscall.Unlink(at)
	}
	_ = syscall.Rmdir(first)
	if syscall.Rmdir(dir) == nil {
		return nil
	}
	return os.RemoveAll(dir)
}
