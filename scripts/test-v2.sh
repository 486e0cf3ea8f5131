#!/usr/bin/env bash
# Runs tests on Linux 6.1 with a pure cgroup v2, in User-Mode Linux: a kernel that is
# a process, booted in two seconds from Debian's package, with 1 CPU.
#
#   scripts/test-v2.sh [PACKAGE...]     packages of this module whose tests to run there;
#                                       by default those in scripts/test-v2.packages
#
# The host's root is mounted read-only in it (hostfs); what is written goes to an ext4 image,
# because kernel 6.1 cannot idmap a tmpfs lower layer. An XFS and an ext4 with project quotas are
# mounted beside it; tests of the build tag v2 want them. The exit code is the inner one.
# Bounded by V2_TIMEOUT seconds (1500), each package by V2_PACKAGE_TIMEOUT (10m).
set -euo pipefail
cd "$(dirname "$0")/.."
limit=${V2_TIMEOUT:-1500}
run=${V2_RUN:-.}

packages=("$@")
if [ ${#packages[@]} -eq 0 ]; then
  mapfile -t packages < <(sed 's/#.*//; /^ *$/d' scripts/test-v2.packages)
fi

if [ "$(uname -m)" != x86_64 ]; then
  echo "test-v2: User-Mode Linux exists for x86_64 only, this is $(uname -m)" >&2
  exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/paddock-v2.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# The image holds the test binaries, each in the place of its package, beside its testdata.
root=$work/root
mkdir -p "$root/tmp"
chmod 1777 "$root/tmp"
for line in "${packages[@]}"; do
  read -r package skip <<<"$line"
  dir=$root/src/${package#./}
  mkdir -p "$dir"
  CGO_ENABLED=0 go test -c -tags v2 -o "$dir/package.test" "$package"
  [ ! -x "$dir/package.test" ] || echo "$package ${skip:-}" >>"$root/packages"
  [ ! -d "$package/testdata" ] || cp -rT "$package/testdata" "$dir/testdata"
done
# Some tests read what stands beside the code.
mkdir -p "$root/src/policies"
cp -r docs "$root/src/"
cp policies/*.json "$root/src/policies/"
mkdir -p "$root/src/sandbox/native"
cp -rT sandbox/native/testdata "$root/src/sandbox/native/testdata"
if [ ! -s "$root/packages" ]; then
  echo "test-v2: no tests in: ${packages[*]}" >&2
  exit 1
fi
install -m 755 scripts/test-v2-init.sh "$root/init"
mkdir -p "$root/host" "$root/bin" "$root/dev"
cp "$(command -v busybox)" "$root/bin/"
if [ -x bin/paddock ]; then
  cp bin/paddock "$root/bin/"
fi
echo "$run" >"$root/run"
echo "${V2_PACKAGE_TIMEOUT:-10m}" >"$root/timeout"
truncate -s 4G "$work/disk"
mkfs.ext4 -q -E nodiscard,lazy_itable_init=0,root_owner=0:0 -O ^has_journal -N 400000 -d "$root" "$work/disk"
truncate -s 1G "$work/xfs" "$work/ext4"
mkfs.xfs -q "$work/xfs"
mkfs.ext4 -q -E nodiscard,quotatype=prjquota -O quota,project "$work/ext4"
mkdir "$work/uml"
# A process namespace of its own: whatever way this ends, no UML process is left.
contain=()
[ "$(id -u)" -ne 0 ] || contain=(unshare --fork --pid --kill-child)
status=0
TMPDIR=$work timeout --kill-after=10 "$limit" "${contain[@]}" \
  linux.uml mem=3G uml_dir="$work/uml" umid=paddock-v2 \
  ubd0="$work/disk" ubd1="$work/xfs" ubd2="$work/ext4" root=/dev/ubda rootfstype=ext4 rw init=/init quiet loglevel=1 \
  con=null con0=fd:0,fd:1 \
  </dev/null 2>"$work/stderr" | sed -un 's/\r//g; /^test-v2:/,$p' | tee "$work/out" || status=$?
inner=$(sed -n 's/^test-v2: exit //p' "$work/out" | tail -n 1)
if [ -z "$inner" ]; then
  tail -n 20 "$work/stderr" >&2
  echo "test-v2: the guest ended without a result (status $status; 124 is the time limit of ${limit} s)" >&2
  exit 1
fi
exit "$inner"
