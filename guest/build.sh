#!/bin/sh
# Builds the guest into bin/. musl makes it a tenth of glibc's size, so that a sandbox
# starts faster and holds less memory; without musl-gcc the C compiler at hand does.
set -eu
cd "$(dirname "$0")"
case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) echo "guest: no build for $(uname -m)" >&2; exit 1 ;; esac
out=bin/guest-linux-$arch
[ "$out" -nt c/init.c ] && [ "$out" -nt build.sh ] && exit 0
cc=${CC:-cc}
include=
if command -v musl-gcc >/dev/null; then
  cc=musl-gcc
  # Kernel headers are not musl's own.
  include="-idirafter /usr/include -idirafter /usr/include/$(uname -m)-linux-gnu"
fi
# shellcheck disable=SC2086
$cc $include -static -Os -s -Wall -Wextra -Wno-missing-field-initializers -fno-asynchronous-unwind-tables -o "$out.tmp" c/init.c
mv "$out.tmp" "$out"
