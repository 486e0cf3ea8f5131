#!/bin/bash
# Builds a base world, Debian with what tasks commonly need, and gives it the names of images
# that tasks are made from, so that they run with no registry. A name that already means
# another world is left alone.
#
#   scripts/base.sh [NAME...]     names beside the usual ones
#
# It needs a running daemon (--socket or PADDOCK_SOCKET as for every command) and a Debian
# mirror. PADDOCK is the program, bin/paddock by default; SUITE the Debian, bookworm.
set -euo pipefail

paddock=${PADDOCK:-bin/paddock}
suite=${SUITE:-bookworm}
packages=python3,python3-pip,python3-venv,python-is-python3,gcc,libc6-dev,git,make,procps,curl,ca-certificates

# What it is, and what it only stands in for: other versions of Debian, Ubuntu and Python.
is=(debian debian:stable debian:stable-slim debian:bookworm debian:bookworm-slim debian:12 debian:12-slim buildpack-deps:bookworm
  python:3.11 python:3.11-slim python:3.11-bookworm python:3.11-slim-bookworm)
stands_in=(ubuntu ubuntu:22.04 ubuntu:24.04 python python:3 python:3-slim python:3.10 python:3.10-slim python:3.12 python:3.12-slim
  python:3.13 python:3.13-slim gcc)

base=debian-base:$suite
"$paddock" world build --debian "$suite" --packages "$packages" --name "$base"
id=$("$paddock" world inspect "$base" | sed -n 's/^  "id": "\(.*\)",$/\1/p')

alias_to() {
  local name=$1 what=$2 now
  now=$("$paddock" world inspect "$name" 2>/dev/null | sed -n 's/^  "id": "\(.*\)",$/\1/p') || true
  if [ -n "$now" ] && [ "$now" != "$id" ]; then
    echo "$name: left alone, it is ${now:0:19}"
    return
  fi
  "$paddock" world alias "$name" "$id" >/dev/null
  echo "$name: $what"
}
for name in "${is[@]}" "$@"; do alias_to "$name" "$base"; done
for name in "${stands_in[@]}"; do alias_to "$name" "stands in: $base"; done
