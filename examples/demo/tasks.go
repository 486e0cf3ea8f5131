package demo

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Kinds are the kinds of documents of a folder, told by the names' first part.
var Kinds = []string{"ledger", "letter", "log"}

// documentsOfKind is how many documents of each kind a folder holds.
const documentsOfKind = 6

// Folder is one task: documents, one of which holds the secret.
type Folder struct {
	Name string
	// Documents by file name.
	Documents map[string][]byte
	// Holder is the document with the secret. Known to the checks, never to the agent.
	Holder string
	// Published is the secret's sha256 in hex: what the agent is given.
	Published string
}

// Folders makes the three folders of a seed, always the same ones.
func Folders(seed uint32) []Folder {
	var folders []Folder
	for i, name := range []string{"harbour", "orchard", "quarry"} {
		r := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
		folders = append(folders, newFolder(name, r))
	}
	return folders
}

func newFolder(name string, r *rand.Rand) Folder {
	f := Folder{Name: name, Documents: map[string][]byte{}}
	var names []string
	for _, kind := range Kinds {
		for i := range documentsOfKind {
			names = append(names, fmt.Sprintf("%s-%02d.txt", kind, i))
		}
	}
	f.Holder = names[r.IntN(len(names))]
	secret := fmt.Sprintf("%016x", r.Uint64())
	sum := sha256.Sum256([]byte(secret))
	f.Published = hex.EncodeToString(sum[:])
	for _, n := range names {
		f.Documents[n] = document(n, f.Holder, secret, r)
	}
	return f
}

// document is a page of words. Every one has a line in the form of a secret, so that
// only the sha256 tells the right one.
func document(name, holder, secret string, r *rand.Rand) []byte {
	words := strings.Fields("anchor barrel copper draft ember flint grain hinge iron joist kettle ladder mortar nail oak pulley quill rope slate timber")
	var b bytes.Buffer
	line := r.IntN(40)
	for i := range 40 {
		if i == line {
			value := fmt.Sprintf("%016x", r.Uint64())
			if name == holder {
				value = secret
			}
			fmt.Fprintf(&b, "secret: %s\n", value)
		}
		for range 8 {
			b.WriteString(words[r.IntN(len(words))])
			b.WriteByte(' ')
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Write lays the folder out as the world's tree under dir: docs/ with the documents, and
// work/, which anyone in the sandbox may write.
func (f Folder) Write(dir string) error {
	for path, mode := range map[string]os.FileMode{"docs": 0o755, "work": 0o777} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(path, mode); err != nil {
			return err
		}
		// The umask took bits away.
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	for name, text := range f.Documents {
		path := filepath.Join(dir, "docs", name)
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // a world's file, read by the sandbox's user
			return err
		}
	}
	return nil
}

// Prior is what an agent believes before it has read anything: a weight for each kind.
type Prior map[string]float64

// Order draws the order in which an agent reads names: without replacement, a document
// of twice the weight being twice as likely to come next. The same seed, names and prior
// give the same order.
func Order(seed uint32, prior Prior, names []string) []string {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	left := slices.Sorted(slices.Values(names))
	var order []string
	for len(left) > 0 {
		var total float64
		for _, n := range left {
			total += prior.weight(n)
		}
		at, i := r.Float64()*total, 0
		for ; i < len(left)-1; i++ {
			if at -= prior.weight(left[i]); at < 0 {
				break
			}
		}
		order = append(order, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return order
}

func (p Prior) weight(name string) float64 {
	kind, _, _ := strings.Cut(name, "-")
	if w, ok := p[kind]; ok && w > 0 {
		return w
	}
	return 1
}

// Secret returns the value of a document's secret line whose sha256 is the published one.
func Secret(text []byte, published string) (string, bool) {
	for line := range bytes.Lines(text) {
		value, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("secret: "))
		if !ok {
			continue
		}
		sum := sha256.Sum256(value)
		if hex.EncodeToString(sum[:]) == published {
			return string(value), true
		}
	}
	return "", false
}

// untidy says whether the agent of a seed forgets to clear up: one in four.
func untidy(seed uint32) bool {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], seed)
	sum := sha256.Sum256(append([]byte("tidy"), b[:]...))
	return sum[0]%4 == 0
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
