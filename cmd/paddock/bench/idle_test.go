package bench

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSizesAddsUpTheKeysAskedFor(t *testing.T) {
	t.Parallel()
	const text = "MemFree:   100 kB\nSUnreclaim:   3 kB\nPercpu:  4 kB\nSUnreclaimed:  50 kB\nHugePages_Total:  7\n"
	if got, want := sizes([]byte(text), "SUnreclaim", "Percpu", "PageTables"), int64(7<<10); got != want {
		t.Errorf("sizes() = %d, want %d", got, want)
	}
}

func TestParseStatTakesAnyName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]process{
		"7 (sleep) S 5 7 7 0":        {parent: 5, name: "sleep"},
		"7 (a) S 9 (b c)) R 6 1 1 0": {parent: 6, name: "a) S 9 (b c)"},
	} {
		if got, ok := parseStat([]byte(text)); !ok || got != want {
			t.Errorf("parseStat(%q) = %+v, %v, want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "7 sleep S 5", "7 )(", "7 (sleep) S", "7 (sleep) S x"} {
		if got, ok := parseStat([]byte(text)); ok {
			t.Errorf("parseStat(%q) = %+v, want nothing", text, got)
		}
	}
}

func TestOfDockerAreTheEngineItsShimsAndTheirContainers(t *testing.T) {
	t.Parallel()
	all := map[int]process{
		1: {name: "init"}, 10: {1, "dockerd"}, 11: {10, "containerd"}, 20: {1, "containerd-shim"}, 21: {20, "busybox"}, 22: {21, "busybox"},
		30: {1, "sh"}, 31: {30, "busybox"}, 40: {39, "lost"},
	}
	got := ofDocker(all)
	slices.Sort(got)
	if want := []int{10, 11, 20, 21, 22}; !slices.Equal(got, want) {
		t.Errorf("ofDocker() = %v, want %v", got, want)
	}
}

func TestIdleFiguresAreOfTheMedianFill(t *testing.T) {
	t.Parallel()
	b := &bench{report: Report{Figures: map[string]float64{}}}
	b.idleFigures(crew{name: "idle", n: 2}, []memory{{kernel: 12 << 20, processes: 4 << 20}, {kernel: 1 << 20, processes: 1 << 20}, {kernel: 3 << 20, processes: 5 << 20}})
	want := map[string]float64{"idle_mib": 4, "idle_kernel_mib": 1.5, "idle_processes_mib": 2.5, "idle_least_mib": 1, "idle_most_mib": 8}
	if diff := cmp.Diff(want, b.report.Figures); diff != "" {
		t.Errorf("idleFigures(): %s", diff)
	}
}
