//go:build gvisor

package oci_test

import (
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/sandbox/oci"
)

// `make test-gvisor` builds runsc and runs this; it is not part of `make test`.
func TestRunscLauncher(t *testing.T) {
	need.Command(t, "runsc", "none: scripts/gvisor.sh builds it")
	suite(t, oci.Runsc)
}
