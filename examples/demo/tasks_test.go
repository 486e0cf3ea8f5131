package demo

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFoldersOfOneSeedAreEqual(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(Folders(7), Folders(7)); diff != "" {
		t.Errorf("two builds of Folders(7) differ:\n%s", diff)
	}
	if Folders(7)[0].Published == Folders(8)[0].Published {
		t.Error("folders of two seeds publish one secret")
	}
}

func TestOnlyTheHolderHasThePublishedSecret(t *testing.T) {
	t.Parallel()
	for _, f := range Folders(1) {
		for name, text := range f.Documents {
			_, found := Secret(text, f.Published)
			if want := name == f.Holder; found != want {
				t.Errorf("%s: secret found in %s = %v, want %v", f.Name, name, found, want)
			}
		}
	}
}

func TestOrderIsAPermutationDrawnFromSeedAndPrior(t *testing.T) {
	t.Parallel()
	names := slices.Collect(maps.Keys(Folders(1)[0].Documents))
	prior := Prior{"letter": 20}
	got := Order(3, prior, names)
	if diff := cmp.Diff(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(got))); diff != "" {
		t.Errorf("Order() is no permutation:\n%s", diff)
	}
	slices.Reverse(names)
	if diff := cmp.Diff(got, Order(3, prior, names)); diff != "" {
		t.Errorf("Order() depends on the order of the names:\n%s", diff)
	}
	if cmp.Equal(got, Order(4, prior, names)) {
		t.Error("two seeds gave one order")
	}
	first := 0
	for seed := range uint32(200) {
		if Order(seed, prior, names)[0][:6] == "letter" {
			first++
		}
	}
	// 120 of 132 parts of the weight are letters': 182 of 200 expected.
	if first < 165 {
		t.Errorf("a letter came first in %d of 200 draws, want about 182", first)
	}
}
