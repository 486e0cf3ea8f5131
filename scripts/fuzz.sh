#!/usr/bin/env bash
# Runs fuzz targets of the module for a while, one after another.
#
#   scripts/fuzz.sh [TARGET]      a pattern of whole names, as FuzzTar; by default all
#
# Each runs for FUZZTIME (20s) or, with MINUTES, until its workers have had that many minutes of
# CPU, however long a busy host takes over it, in FUZZPARALLEL workers (1). What it said is kept
# in bin/fuzz/NAME.log, an input that fails in the package's testdata, and those that were of
# interest in Go's cache, with which the next run begins.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=${1:-.*}
cache=$(go env GOCACHE)/fuzz
logs=$PWD/bin/fuzz
binaries=$(mktemp -d)
trap 'rm -rf "$binaries"' EXIT
mkdir -p "$logs"

# cpu prints the hundredths of a second of CPU that the children of a process had, ended ones too.
cpu() {
  local of=$1 child
  {
    awk '{sub(/.*\) /, ""); print $14 + $15}' "/proc/$of/stat"
    for child in $(cat /proc/"$of"/task/*/children); do
      awk '{sub(/.*\) /, ""); print $12 + $13}' "/proc/$child/stat"
    done
  } 2>/dev/null | awk '{n += $1} END {print n + 0}'
}

# fuzz runs a target in the package's directory, and says what it had; its status is the target's.
fuzz() {
  local binary=$1 package=$2 dir=$3 target=$4 log=$logs/$4.log pid now had=0 status=0
  local bound=(-test.fuzztime "${FUZZTIME:-20s}")
  [ -z "${MINUTES:-}" ] || bound=()
  # A worker that gets no CPU while it makes an input smaller is taken for one that hangs.
  (cd "$dir" && exec "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzzcachedir "$cache/$package" \
    -test.fuzzminimizetime 10x -test.parallel "${FUZZPARALLEL:-1}" -test.timeout 0 "${bound[@]}") >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    now=$(cpu "$pid")
    had=$((now > had ? now : had))
    if [ -n "${MINUTES:-}" ] && [ "$had" -ge $((MINUTES * 6000)) ]; then
      kill -INT "$pid" 2>/dev/null || true # it keeps what it found, and passes
      break
    fi
  done
  wait "$pid" || status=$?
  printf 'fuzz: %s %s: %d.%02d minutes of CPU: %s\n' "$package" "$target" \
    $((had / 6000)) $((had % 6000 / 60)) "$(tail -n 1 "$log")" | tee -a "$log"
  return "$status"
}

ran=0 failed=0
while read -r package dir; do
  targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/^func //' | grep -xE "$wanted") || continue
  go test -c -fuzz . -o "$binaries/${package//\//-}" "$package"
  for target in $targets; do
    ran=$((ran + 1))
    if ! fuzz "$binaries/${package//\//-}" "$package" "$dir" "$target"; then
      failed=$((failed + 1))
      cat "$logs/$target.log"
    fi
  done
done < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./...)
echo "fuzz: $ran targets, $failed failed"
[ "$ran" -gt 0 ] && [ "$failed" -eq 0 ]
