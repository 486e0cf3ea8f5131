#!/usr/bin/env bash
# Installs what is missing for one or more purposes, and says nothing when nothing is.
#
#   scripts/setup.sh PURPOSE...      build test v2 lint python humaneval bench
#
# As root on Debian or Ubuntu it installs packages; elsewhere it lists what is missing
# and exits 1. Running it again costs a few milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."

GOLANGCI_VERSION=v2.15.0
GO_MIN=1.26

need_packages=()  # Debian packages to install
missing=()        # things no package brings

# want PACKAGE TEST...: PACKAGE is needed unless the command TEST succeeds.
want() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || need_packages+=("$package")
}

has() { command -v "$1"; }

static_busybox() {
  local b
  b=$(command -v busybox) && ! ldd "$b"
}

want_go() {
  if ! has go >/dev/null; then
    missing+=("Go $GO_MIN or newer (https://go.dev/dl, or an older Go from 1.21 on, which fetches it)")
  elif ! go version >/dev/null 2>&1; then
    missing+=("Go $GO_MIN or newer: 'go version' fails, so its toolchain cannot be fetched")
  fi
}

want_build() {
  want_go
  want gcc has gcc
  want libc6-dev test -e /usr/include/stdio.h -a -e /usr/lib/"$(uname -m)"-linux-gnu/libc.a
  want musl-tools has musl-gcc
  want make has make
}

want_test() {
  want_build
  want busybox-static static_busybox
  want mmdebstrap has mmdebstrap
  want docker-registry has docker-registry
  want docker.io has dockerd
  want runc has runc
  want crun has crun
  want e2fsprogs has mkfs.ext4
  want btrfs-progs has mkfs.btrfs
  want python3 test -x /usr/bin/python3  # the judge's tests stand on this machine's own /usr
  want gcc test -x /usr/bin/gcc
  want util-linux has unshare
  want iproute2 has ip
  want python3-pip-whl compgen -G '/usr/share/python-wheels/pip-*.whl'
}

want_v2() {
  want_build
  want busybox-static static_busybox
  want user-mode-linux has linux.uml
  want e2fsprogs has mkfs.ext4
  want xfsprogs has mkfs.xfs
  want util-linux has unshare
  want runc has runc
  want crun has crun
}

want_python() {
  want python3 has python3
  want python3-venv python3 -c 'import ensurepip, venv'
}

want_humaneval() {
  want_build
  want_python
  want busybox-static static_busybox
  want mmdebstrap has mmdebstrap
}

want_bench() {
  want_build
  want_python
  want mmdebstrap has mmdebstrap
  want busybox-static static_busybox
  want docker.io has dockerd
  want runc has runc
}

# golangci-lint is built from source once for each version; tools_dir survives clones.
tools_dir() { echo "${XDG_CACHE_HOME:-$HOME/.cache}/paddock/tools/$GOLANGCI_VERSION"; }

golangci() {
  local bin
  for bin in "$(go env GOPATH)/bin/golangci-lint" "$(tools_dir)/golangci-lint"; do
    if [ -x "$bin" ] && "$bin" version 2>/dev/null | grep -q "version ${GOLANGCI_VERSION#v} "; then
      echo "$bin"
      return
    fi
  done
  return 1
}

install_lint() {
  want_go
  [ ${#missing[@]} -eq 0 ] || return 0
  golangci >/dev/null && return
  echo "setup: building golangci-lint $GOLANGCI_VERSION (once, a few minutes)" >&2
  GOFLAGS='' GOBIN=$(tools_dir) CGO_ENABLED=0 go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$GOLANGCI_VERSION"
}

install_packages() {
  [ ${#need_packages[@]} -eq 0 ] && return
  mapfile -t need_packages < <(printf '%s\n' "${need_packages[@]}" | sort -u)
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    missing+=("${need_packages[@]/#/Debian package }")
    return
  fi
  echo "setup: installing ${need_packages[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  # Lists may be absent or stale: fetch them only when the first try fails.
  local apt=(apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  if ! "${apt[@]}" "${need_packages[@]}" >/dev/null 2>&1; then
    apt-get update -qq >&2
    "${apt[@]}" "${need_packages[@]}" >/dev/null
  fi
}

[ $# -gt 0 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
if [ "$1" = golangci ]; then # prints where the linter is
  golangci
  exit
fi
for purpose in "$@"; do
  case $purpose in
    build | test | v2 | python | humaneval | bench) "want_$purpose" ;;
    lint) install_lint ;;
    *)
      echo "setup: unknown purpose '$purpose'; one of: build test v2 lint python humaneval bench" >&2
      exit 2
      ;;
  esac
done
install_packages
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: missing, and not installable from here (root and apt-get are needed):" >&2
  printf '  %s\n' "${missing[@]}" >&2
  exit 1
fi
