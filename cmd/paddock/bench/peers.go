package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// peers are the programs on this host that start a sandbox for one command. They have no
// record, no capture and, but for the runtimes, no limits: a floor to stand beside.
func (b *bench) peers(ctx context.Context) []job {
	root, err := b.peerRoot()
	if err != nil {
		b.report.Absent["bwrap, runc, crun, runsc"] = err.Error()
		return nil
	}
	var jobs []job
	add := func(program, what string, argv ...string) {
		path, err := exec.LookPath(program)
		if err != nil {
			b.report.Absent[program] = "not installed"
			return
		}
		run := func(ctx context.Context) (time.Duration, error) {
			line := append([]string{path}, argv...)
			for i := range line {
				line[i] = strings.ReplaceAll(line[i], "ID", fmt.Sprintf("bench-%d-%d", os.Getpid(), b.episodes.Add(1)))
			}
			began := time.Now()
			out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput() //nolint:gosec // the peers' own command lines
			if err != nil {
				err = fmt.Errorf("%w: %.300s", err, out)
			}
			return time.Since(began), err
		}
		if _, err := run(ctx); err != nil { // installed, but not working here
			b.report.Absent[program] = err.Error()
			return
		}
		jobs = append(jobs, job{name: program + "_run", what: what, each: 4, do: run})
	}
	state := filepath.Join(b.Scratch, "peers")
	add("bwrap", "bubblewrap: true in all namespaces on a read-only root", "--unshare-all", "--ro-bind", root+"/rootfs", "/", "/bin/true")
	for _, runtime := range []string{"runc", "crun"} {
		add(runtime, runtime+" run of true, no network", "--root", filepath.Join(state, runtime), "run", "--bundle", root, "ID")
	}
	add("runsc", "gVisor: runsc run of true, no network", "--root", filepath.Join(state, "runsc"), "--ignore-cgroups", "--network", "none", "run", "--bundle", root, "ID")
	return jobs
}

// peerRoot makes an OCI bundle with busybox.
func (b *bench) peerRoot() (string, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return "", err
	}
	root := filepath.Join(b.Scratch, "bundle")
	for _, dir := range []string{"bin", "dev", "proc", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, "rootfs", dir), 0o755); err != nil { //nolint:gosec // a root directory as any
			return "", err
		}
	}
	bin := filepath.Join(root, "rootfs/bin")
	err = errors.Join(
		os.WriteFile(filepath.Join(bin, "busybox"), program, 0o755), //nolint:gosec // a program
		os.Symlink("busybox", filepath.Join(bin, "true")))
	if err != nil {
		return "", err
	}
	config, err := json.Marshal(bundleSpec())
	if err != nil {
		return "", err
	}
	return root, os.WriteFile(filepath.Join(root, "config.json"), config, 0o600)
}

func bundleSpec() *specs.Spec {
	return &specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: "rootfs", Readonly: true}, Hostname: "bench",
		Process: &specs.Process{Args: []string{"/bin/true"}, Env: []string{"PATH=/bin"}, Cwd: "/", NoNewPrivileges: true},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	}
}
