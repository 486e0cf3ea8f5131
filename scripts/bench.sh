#!/bin/sh
# Runs `paddock bench` beside a Docker Engine; where none can be had, the docker columns are
# empty.
set -eu
exec "$(dirname "$0")/with-docker.sh" --optional "${PADDOCK:-./bin/paddock}" bench "$@"
