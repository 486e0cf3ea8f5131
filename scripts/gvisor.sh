#!/usr/bin/env bash
# Builds gVisor's runsc from the Go module proxy, once, and prints where it is.
#
#   scripts/gvisor.sh
#
# The version is pinned: the proxy answers no branch names. Without cgo, since a dynamic
# binary cannot start itself again in its own chroot.
set -euo pipefail
VERSION=v0.0.0-20260905035102-160fafc42237

dir=${XDG_CACHE_HOME:-$HOME/.cache}/paddock/tools/gvisor-$VERSION
if [ ! -x "$dir/runsc" ]; then
  echo "gvisor: building runsc $VERSION (once, some minutes)" >&2
  GOFLAGS='' GOBIN=$dir CGO_ENABLED=0 go install "gvisor.dev/gvisor/runsc@$VERSION" >&2
fi
echo "$dir/runsc"
