#!/usr/bin/env bash
# Tests the Python client: format, lint, types, then pytest against a daemon of its own.
# The tools live in a virtual environment of the user's cache, made once for each version.
set -euo pipefail
cd "$(dirname "$0")/../clients/python"

key=$({ python3 -V && cat requirements-dev.txt; } | sha256sum | cut -c1-12)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/paddock/python/$key
if [ ! -e "$venv/ready" ]; then
  echo "test-python: making $venv" >&2
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r requirements-dev.txt
  touch "$venv/ready"
fi

sources=(. ../../examples/*.py)
"$venv/bin/ruff" format --config pyproject.toml --check "${sources[@]}"
"$venv/bin/ruff" check --config pyproject.toml "${sources[@]}"
"$venv/bin/mypy"
PYTHONPATH=src "$venv/bin/pytest" "$@"
