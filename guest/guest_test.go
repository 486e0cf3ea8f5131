package guest

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// What a guest sends is hostile: Decode takes exactly the frames of the protocol.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	for typ, words := range map[Type]int{Ready: 0, Started: 1, Failed: 2, Exited: 1} {
		e := frame(typ, 7)
		for range words {
			e.u32(9)
		}
		f.Add([]byte(*e))
		f.Add(append([]byte(*e), 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			if r != (Reply{}) {
				t.Errorf("Decode gives %+v beside an error", r)
			}
			return
		}
		again := frame(r.Type, r.ID)
		switch r.Type {
		case Started:
			again.u32(uint32(r.Pid))
		case Failed:
			again.u32(uint32(r.Step))
			again.u32(uint32(r.Errno))
		case Exited:
			again.u32(uint32(r.Status))
		case Swept:
			again.u32(uint32(r.Found))
		case Ready, Buried:
		case Setup, Exec, Clone, Ahead, Sweep, Keep, Bury:
			t.Errorf("Decode took a frame that only the daemon sends: %+v", r)
		}
		if !bytes.Equal(*again, b) {
			t.Errorf("Decode(%x) = %+v, which is %x", b, r, *again)
		}
	})
}

func TestDecodeRefusesWhatAGuestMustNotSend(t *testing.T) {
	t.Parallel()
	for name, b := range map[string][]byte{
		"nothing":        {},
		"half a header":  make([]byte, 4),
		"setup":          *frame(Setup, 1),
		"exec":           *frame(Exec, 1),
		"unknown":        *frame(99, 1),
		"started, empty": *frame(Started, 1),
		"long":           make([]byte, 68),
	} {
		if r, err := Decode(b); err == nil {
			t.Errorf("%s: Decode = %+v, want an error", name, r)
		}
	}
}

// A program with a large environment does not fit a packet and travels in a memory file.
func TestLargeExecIsSplit(t *testing.T) {
	t.Parallel()
	x := ExecFrame{ID: 5, Flags: HasFD3, Argv: []string{"/bin/true"}, Dir: "/"}
	short, large := x.Encode()
	if large != nil || len(short) > MaxFrame {
		t.Fatalf("a small program gives %d and %d bytes", len(short), len(large))
	}
	x.Env = []string{"BIG=" + strings.Repeat("x", MaxFrame)}
	short, large = x.Encode()
	if len(short) != 12 || len(large) <= MaxFrame {
		t.Fatalf("a large program gives %d and %d bytes", len(short), len(large))
	}
	if flags := binary.LittleEndian.Uint32(short[8:]); flags != HasFD3|InMemfd {
		t.Errorf("flags of the packet are %d, want %d", flags, HasFD3|InMemfd)
	}
}
