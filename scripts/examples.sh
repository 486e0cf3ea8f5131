#!/usr/bin/env bash
# Runs every example that has a ci.sh, against one daemon of its own, and counts them. A
# ci.sh finds $PADDOCK (the program), $PADDOCK_SOCKET, $RUN_CODE_URL, $APPS_URL, $WORK (a directory to
# throw away), and the Python client on its path. To add an example is to add its ci.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export PADDOCK=${PADDOCK:-$PWD/bin/paddock} PYTHONPATH=$PWD/clients/python/src
WORK=$(mktemp -d)
export WORK PADDOCK_SOCKET=$WORK/s
daemon=
cleanup() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" || true
  fi
  rm -rf --one-file-system "$WORK"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

"$PADDOCK" serve --root "$WORK/store" --run-code-port 127.0.0.1:0 --apps-port 127.0.0.1:0 >"$WORK/log" 2>&1 &
daemon=$!
tries=0
until grep -q 'msg=ready' "$WORK/log"; do
  tries=$((tries + 1))
  if [ "$tries" -gt 300 ] || ! kill -0 "$daemon" 2>/dev/null; then
    tail -n 20 "$WORK/log" >&2
    echo "examples: the daemon did not start" >&2
    exit 1
  fi
  sleep 0.1
done
RUN_CODE_URL=http://$(sed -n 's/.*run_code=\([^ ]*\).*/\1/p' "$WORK/log" | head -n 1)/run_code
export RUN_CODE_URL
APPS_URL=http://$(sed -n 's/.* apps=\([^ ]*\).*/\1/p' "$WORK/log" | head -n 1)
export APPS_URL

n=0
for script in ${EXAMPLES:-examples/*/ci.sh}; do
  echo "== $script"
  bash -euo pipefail "$script"
  n=$((n + 1))
done
echo "examples ok: $n"
