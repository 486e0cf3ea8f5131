#!/bin/sh
# Runs a command with DOCKER_HOST at a Docker Engine: the one that runs already, else one of
# its own, which is stopped again. Its mounts stay in a private mount namespace and its data
# in a directory of its own, so that nothing of it is left on the host.
#
#   scripts/with-docker.sh [--optional] COMMAND [ARG...]
#
# With --optional the command runs without an engine where none can be had.
set -eu

optional=
if [ "$1" = --optional ]; then
	optional=yes
	shift
fi
work=$(mktemp -d "${TMPDIR:-/dev/shm}/paddock-engine.XXXXXX")
parent=paddock-engine-$$
pid=
cleanup() {
	if [ -n "$pid" ]; then
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	fi
	find /sys/fs/cgroup -depth -type d -path "*/$parent*" -exec rmdir {} \; 2>/dev/null || true
	rm -rf "$work" || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM

running() { docker --host "$1" version >/dev/null 2>&1; }
gone() {
	[ ! -s "$work/dockerd.log" ] || tail -n 5 "$work/dockerd.log" >&2
	echo "with-docker: $1" >&2
	[ -n "$optional" ] || exit 1
}

DOCKER_HOST=${DOCKER_HOST:-unix:///var/run/docker.sock}
if running "$DOCKER_HOST"; then
	:
elif ! command -v dockerd >/dev/null; then
	gone "there is no dockerd: apt-get install docker.io"
else
	DOCKER_HOST=unix://$work/docker.sock
	unshare --mount --propagation private dockerd \
		--host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
		--cgroup-parent "$parent" --bridge none --iptables=false --storage-driver overlay2 >"$work/dockerd.log" 2>&1 &
	pid=$!
	n=0
	until running "$DOCKER_HOST"; do
		n=$((n + 1))
		if [ "$n" -gt 150 ] || ! kill -0 "$pid" 2>/dev/null; then
			gone "dockerd did not start"
			break
		fi
		sleep 0.2
	done
fi
export DOCKER_HOST
"$@"
