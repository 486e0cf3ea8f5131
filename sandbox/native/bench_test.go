package native_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// BenchmarkEpisode is a whole sandbox: start, one exec true, stop, everything released.
func BenchmarkEpisode(b *testing.B) {
	l := newLauncher(b)
	spec := specOf("default", policies.Limits{})(b, "bench")
	for i := 0; b.Loop(); i++ {
		spec.Name = fmt.Sprintf("bench-%d", i)
		s, err := l.Start(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		execTrue(b, s)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEpisodePrepared is BenchmarkEpisode where what can be made ahead was; the time
// for that is not counted.
func BenchmarkEpisodePrepared(b *testing.B) {
	l := newLauncher(b)
	spec := specOf("default", policies.Limits{})(b, "bench")
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		spec.Name = fmt.Sprintf("bench-%d", i)
		if err := l.Prepare(b.Context(), spec.Name, spec.IDs); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		s, err := l.Start(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		execTrue(b, s)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExec is one call of true in a live sandbox.
func BenchmarkExec(b *testing.B) {
	l := newLauncher(b)
	s, err := l.Start(b.Context(), specOf("default", policies.Limits{})(b, "bench"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	for b.Loop() {
		execTrue(b, s)
	}
}

func execTrue(b *testing.B, s interface {
	Start(context.Context, sandbox.Command) (sandbox.Process, error)
},
) {
	b.Helper()
	p, err := s.Start(b.Context(), sandbox.Command{Argv: []string{"/bin/true"}, Dir: "/"})
	if err != nil {
		b.Fatal(err)
	}
	if e := p.Wait(); e.Code == nil || *e.Code != 0 {
		b.Fatalf("true: %+v", e)
	}
}
