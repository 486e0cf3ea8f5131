#!/usr/bin/env bash
# Runs a command with TMPDIR in a fresh directory on a tmpfs, and removes it afterwards.
# Tests make and delete many small files, which some disks take badly, and the
# writable layers of sandboxes are tmpfs anyway.
#
#   scripts/on-tmpfs.sh COMMAND [ARG...]
set -euo pipefail
min_kib=$((1 << 20))

is_roomy_tmpfs() {
  [ -d "$1" ] && [ -w "$1" ] && [ "$(stat -f -c %T "$1")" = tmpfs ] &&
    [ "$(df -Pk "$1" | awk 'NR==2 {print $4}')" -ge $min_kib ]
}

base=
for dir in "${TMPDIR:-/tmp}" /dev/shm; do
  if is_roomy_tmpfs "$dir"; then
    base=$dir
    break
  fi
done
if [ -z "$base" ]; then
  if [ "$(id -u)" -eq 0 ] && [ -z "${PADDOCK_OWN_TMPFS:-}" ]; then
    # A mount of our own, in a namespace of our own: gone with the command.
    exec unshare --mount --propagation private sh -c \
      'mount -t tmpfs -o mode=1777 paddock-tests /tmp && PADDOCK_OWN_TMPFS=1 TMPDIR=/tmp exec "$@"' sh "$0" "$@"
  fi
  echo "on-tmpfs: no tmpfs with 1 GiB free; using ${TMPDIR:-/tmp}" >&2
  base=${TMPDIR:-/tmp}
fi
# A short name: the path of a unix socket below it has at most 107 bytes.
dir=$(mktemp -d "$base/paddock.XXXXXX")
chmod 711 "$dir" # tests connect as other users to sockets below it
trap 'rm -rf --one-file-system "$dir"' EXIT
TMPDIR=$dir "$@"
