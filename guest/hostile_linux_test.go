package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The guest reads frames that the daemon makes, so a bad one can only be our own bug; it
// must be refused all the same, never read past its end. The guest is built with the
// address and undefined-behaviour sanitizers and gets broken frames of every kind.
func TestGuestReadsNothingPastAFrame(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "guest")
	build := exec.CommandContext(t.Context(), "gcc", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize=alignment",
		"-fno-sanitize-recover=all", "-w", "-o", program, "c/init.c")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest with sanitizers: %v\n%s", err, out)
	}
	seed := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		feed(t, program, brokenFrames(seed))
	}
}

// brokenFrames are good frames with bytes changed, cut off or added.
func brokenFrames(r *rand.Rand) [][]byte {
	x := ExecFrame{ID: 1, Argv: []string{"/nowhere", "a"}, Env: []string{"A=b"}, Groups: []uint32{1, 2}, Dir: "/", Path: "/nowhere:/none", Rlimits: []Rlimit{{7, 8, 8}}}
	program, _ := x.Encode()
	setup := (&SetupFrame{Hostname: "h", ShmBytes: "1m", Masked: []string{"/a"}, Etc: []string{"/b"}, Proc: ProcView{Masked: []string{"/keys"}, ReadOnly: []string{"/sys"}}, Filters: [][]byte{{1, 2, 3}}}).Encode()
	ahead := (&ProcView{Masked: []string{"/keys"}, ReadOnly: []string{"/sys"}}).Ahead()
	var all [][]byte
	for i := range 20 {
		b := bytes.Clone([][]byte{program, ahead, setup}[i%2+i/19]) // a setup that fails ends the guest: it comes last
		for range r.IntN(3) {
			b[8+r.IntN(len(b)-8)] = byte(r.IntN(256))
		}
		switch r.IntN(4) {
		case 0:
			b = b[:r.IntN(len(b))]
		case 1:
			at := 8 + 4*r.IntN((len(b)-8)/4)
			binary.LittleEndian.PutUint32(b[at:], []uint32{0, 1 << 16, 1 << 31, ^uint32(0)}[r.IntN(4)])
		case 2: // the last string does not end
			b[len(b)-1] = 'x'
		}
		all = append(all, b)
	}
	return all
}

// feed runs the guest in namespaces of its own, as it is meant to, and sends frames until
// it ends. Only an end of the sanitizers' making is a failure.
func feed(t *testing.T, program string, frames [][]byte) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "guest")
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, &said
	cmd.Env = []string{"ASAN_OPTIONS=detect_leaks=0:exitcode=99", "UBSAN_OPTIONS=exitcode=99"}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 400000, Size: 1}}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		UidMappings: ids, GidMappings: ids,
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	for _, b := range frames {
		if err := unix.Send(ours, b, unix.MSG_NOSIGNAL); err != nil {
			break // it has ended
		}
	}
	_ = unix.Shutdown(ours, unix.SHUT_WR)
	err = cmd.Wait()
	_ = unix.Close(ours)
	var exit *exec.ExitError
	if errors.As(err, &exit) && (exit.ExitCode() == 99 || exit.ExitCode() < 0) {
		t.Fatalf("the guest: %v\n%s", err, said.Bytes())
	}
}
