// Package golden holds what tests make against files that are read in review. With the flag
// -update they are written anew.
package golden

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Check fails where got is not what the file has.
func Check(tb testing.TB, file string, got []byte) {
	tb.Helper()
	Update(tb, file, got)
	want, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		tb.Errorf("%s is not what there is; look at the difference, then run with -update:\n%s", file, got)
	}
}

// JSON is Check of a value's indented JSON.
func JSON(tb testing.TB, file string, value any) {
	tb.Helper()
	got, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		tb.Fatal(err)
	}
	Check(tb, file, append(got, '\n'))
}

// Update writes the file where the flag says so.
func Update(tb testing.TB, file string, got []byte) {
	tb.Helper()
	if !*update {
		return
	}
	if err := os.WriteFile(file, got, 0o644); err != nil { //nolint:gosec // for everybody to read
		tb.Fatal(err)
	}
}
