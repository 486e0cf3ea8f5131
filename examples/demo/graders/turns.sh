#!/bin/sh
# The first grader: was the secret found, in how many turns, and was the desk left tidy?
# A grader finds what it may read beside the end state in $PADDOCK_INPUTS, and writes its
# verdict to the descriptor that $PADDOCK_VERDICT_FD names.
set -eu
exec 9>&"$PADDOCK_VERDICT_FD"

want=$(sed 's/.*"published": *"\([0-9a-f]*\)".*/\1/' "$PADDOCK_INPUTS/spec.json")
most=$(sed 's/.*"max_turns": *\([0-9]*\).*/\1/' "$PADDOCK_INPUTS/spec.json")
turns=$(grep -c '"tool":"read_file"' "$PADDOCK_INPUTS/trajectory.jsonl" || true)

# What a grader reads of the end state is the agent's: a link or a device is no answer.
found=0
if [ -f /workdir/answer.txt ] && [ ! -L /workdir/answer.txt ]; then
	got=$(head -c 1000 /workdir/answer.txt | sha256sum | cut -d' ' -f1)
	if [ "$got" = "$want" ]; then found=1; fi
fi
tidy=1
if grep -q '"path":"/workdir/scratch.tmp"' "$PADDOCK_INPUTS/capture.json"; then tidy=0; fi

reward=$(awk -v f="$found" -v n="$turns" -v m="$most" -v t="$tidy" \
	'BEGIN { r = f * (1 - 0.5 * (n - 1) / m) - 0.1 * (1 - t); printf "%.4f", r < 0 ? 0 : r }')
echo "{\"reward\": $reward, \"metrics\": {\"found\": $found, \"turns\": $turns, \"tidy\": $tidy}, \"reason\": \"found $found in $turns turns, tidy $tidy\"}" >&9
