#!/usr/bin/env bash
# Runs tests on Linux 6.1 with a pure cgroup v2, in User-Mode Linux: a kernel that is
# a process, booted in two seconds from Debian's package, with 1 CPU.
#
#   scripts/test-v2.sh [PACKAGE...]     packages of this module whose tests to run there;
#                                       by default those in scripts/test-v2.packages
#
# Each package has a guest of its own, as many at a time as this machine has CPUs (V2_GUESTS).
# The host's root is mounted read-only in it (hostfs); what is written goes to an ext4 image,
# because kernel 6.1 cannot idmap a tmpfs lower layer. An XFS and an ext4 with project quotas are
# mounted beside it; tests of the build tag v2 want them. What a guest prints is shown when it
# ends; the exit code is 0 if every package passed. A package's tests are bounded by
# V2_PACKAGE_TIMEOUT (15m), its guest by V2_TIMEOUT seconds (1000).
set -euo pipefail
cd "$(dirname "$0")/.."
limit=${V2_TIMEOUT:-1000}
run=${V2_RUN:-.}
guests=${V2_GUESTS:-$(nproc)}

packages=("$@")
if [ ${#packages[@]} -eq 0 ]; then
  mapfile -t packages < <(sed 's/#.*//; /^ *$/d' scripts/test-v2.packages)
fi

if [ "$(uname -m)" != x86_64 ]; then
  echo "test-v2: User-Mode Linux exists for x86_64 only, this is $(uname -m)" >&2
  exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/paddock-v2.XXXXXX")
trap 'jobs -p | xargs -r kill; wait; rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM

# compile PACKAGE makes its test binary; nothing when it has no tests.
compile() {
  CGO_ENABLED=0 go test -c -tags v2 -o "$work/tests/${1#./}/package.test" "$1"
}

# image DIR PACKAGE SKIP makes the disk a guest runs PACKAGE's tests from: the binary in the
# place of its package, beside its testdata and what some tests read of the code.
image() {
  local root=$1/root package=$2
  local dir=$root/src/${package#./}
  mkdir -p "$root/tmp" "$root/host" "$root/bin" "$root/dev" "$dir" "$root/src/policies" "$root/src/sandbox/native"
  chmod 1777 "$root/tmp"
  cp -r docs "$root/src/"
  cp policies/*.json "$root/src/policies/"
  cp -rT sandbox/native/testdata "$root/src/sandbox/native/testdata"
  [ ! -d "$package/testdata" ] || cp -rT "$package/testdata" "$dir/testdata"
  cp "$work/tests/${package#./}/package.test" "$dir/"
  install -m 755 scripts/test-v2-init.sh "$root/init"
  cp "$(command -v busybox)" "$root/bin/"
  [ ! -x bin/paddock ] || cp bin/paddock "$root/bin/"
  echo "$package $3" >"$root/package"
  echo "$run" >"$root/run"
  echo "${V2_PACKAGE_TIMEOUT:-15m}" >"$root/timeout"
  truncate -s 4G "$1/disk"
  mkfs.ext4 -q -E nodiscard,lazy_itable_init=0,root_owner=0:0 -O ^has_journal -N 400000 -d "$root" "$1/disk"
  truncate -s 1G "$1/xfs" "$1/ext4"
  mkfs.xfs -q "$1/xfs"
  mkfs.ext4 -q -E nodiscard,quotatype=prjquota -O quota,project "$1/ext4"
  rm -rf "$root"
}

# guest DIR PACKAGE SKIP runs one package and prints what its guest said; the code is the tests'.
guest() {
  local dir=$1 contain=() inner status=0
  mkdir -p "$dir/uml"
  image "$dir" "$2" "$3"
  # A process namespace of its own: whatever way this ends, no UML process is left.
  [ "$(id -u)" -ne 0 ] || contain=(setpriv --pdeathsig KILL unshare --fork --pid --kill-child)
  TMPDIR=$dir "${contain[@]}" timeout --kill-after=10 "$limit" \
    linux.uml mem=3G uml_dir="$dir/uml" umid=paddock-v2 \
    ubd0="$dir/disk" ubd1="$dir/xfs" ubd2="$dir/ext4" root=/dev/ubda rootfstype=ext4 rw init=/init quiet loglevel=1 \
    con=null con0=fd:0,fd:1 \
    </dev/null >"$dir/raw" 2>"$dir/stderr" || status=$?
  rm -f "$dir/disk" "$dir/xfs" "$dir/ext4"
  sed -n 's/\r//g; /^test-v2:/,$p; /^test-v2: exit /q' "$dir/raw" >"$dir/out"
  sed '/^test-v2: exit /d' "$dir/out"
  inner=$(sed -n 's/^test-v2: exit //p' "$dir/out" | tail -n 1)
  if [ -z "$inner" ]; then
    tail -n 20 "$dir/stderr"
    echo "test-v2: the guest of $2 ended without a result (status $status; 124 and 137 are the time limit of ${limit} s)"
    return 1
  fi
  return "$inner"
}

for line in "${packages[@]}"; do
  read -r package _ <<<"$line"
  compile "$package"
done
running=0
failed=0
began=0
for line in "${packages[@]}"; do
  read -r package skip <<<"$line"
  [ -x "$work/tests/${package#./}/package.test" ] || continue
  # What a guest cannot run is left out of a package that is named alone, too.
  [ -n "${skip:-}" ] || skip=$(awk -v p="$package" '$1 == p { print $2 }' scripts/test-v2.packages)
  if [ "$running" -eq "$guests" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  began=$((began + 1))
  running=$((running + 1))
  mkdir "$work/$began"
  (
    guest "$work/$began" "$package" "${skip:-}" >"$work/$began/said" 2>&1 && code=0 || code=$?
    cat "$work/$began/said"
    exit $code
  ) &
done
while [ "$running" -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
if [ "$began" -eq 0 ]; then
  echo "test-v2: no tests in: ${packages[*]}" >&2
  exit 1
fi
echo "test-v2: exit $failed"
exit "$failed"
