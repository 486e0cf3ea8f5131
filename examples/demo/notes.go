package demo

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// note is what the loop remembers of a completed episode, as a trainer would: enough to
// tell, after the daemon or the loop was killed, that nothing completed twice and that
// the payload is still the same.
type note struct {
	ID      string  `json:"id"`
	Attempt int     `json:"attempt"`
	Reward  float64 `json:"reward"`
	Payload string  `json:"payload_sha256"`
}

// notes is a journal of completed episodes.
type notes struct {
	file *os.File
	byID map[string]note
}

// openNotes reads the journal and keeps it open for more. A last line that was cut short
// by a kill is dropped: its episode is then noted again.
func openNotes(path string) (*notes, error) {
	n := &notes{byID: map[string]note{}}
	var whole int64
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for len(old) > 0 {
		advance, line, _ := bufio.ScanLines(old, false)
		if advance == 0 {
			break
		}
		var one note
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		n.byID[one.ID] = one
		whole += int64(advance)
		old = old[advance:]
	}
	n.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := n.file.Truncate(whole); err != nil {
		return nil, errors.Join(err, n.file.Close())
	}
	if _, err := n.file.Seek(whole, 0); err != nil {
		return nil, errors.Join(err, n.file.Close())
	}
	return n, nil
}

// add notes a completed episode. Results come at least once: the same one again is
// nothing new, another one for the same episode is an error.
func (n *notes) add(one note) error {
	if before, known := n.byID[one.ID]; known {
		if before != one {
			return fmt.Errorf("episode %s completed twice: attempt %d, reward %v, payload %.12s, then attempt %d, reward %v, payload %.12s",
				one.ID, before.Attempt, before.Reward, before.Payload, one.Attempt, one.Reward, one.Payload)
		}
		return nil
	}
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if _, err := n.file.Write(append(line, '\n')); err != nil {
		return err
	}
	n.byID[one.ID] = one
	return n.file.Sync()
}

func (n *notes) Close() error { return n.file.Close() }
