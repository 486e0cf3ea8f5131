#!/bin/sh
# The second grader looks at tidiness alone: 1 when no scratch.tmp was left.
set -eu
if [ -e /workdir/scratch.tmp ] || [ -L /workdir/scratch.tmp ]; then tidy=0; else tidy=1; fi
echo "{\"reward\": $tidy, \"reason\": \"looked at scratch.tmp\"}" >&"$PADDOCK_VERDICT_FD"
