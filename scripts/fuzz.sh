#!/usr/bin/env bash
# Runs every fuzz target of the module for a while, one after another.
#
#   scripts/fuzz.sh [TIME]      TIME as go test takes it; 20s by default
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-20s}
ran=0 failed=0
for package in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do
  dir=$(go list -f '{{.Dir}}' "$package")
  grep -qsE '^func Fuzz' "$dir"/*_test.go || continue
  for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | sed 's/^func //'); do
    ran=$((ran + 1))
    echo "fuzz $package $target $time"
    # A worker that gets no CPU while it makes an input smaller is taken for one that hangs.
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x "$package" || failed=$((failed + 1))
  done
done
echo "fuzz: $ran targets, $failed failed"
[ $failed -eq 0 ]
