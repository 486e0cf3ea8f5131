#!/bin/busybox sh
# PID 1 of a User-Mode Linux guest of scripts/test-v2.sh, started from the image with a package's
# tests. The host's tree becomes the root, read-only, and the image goes to /mnt: by
# pivot_root, because the kernel refuses user namespaces to a chroot.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/mnt/tmp
b=/bin/busybox

fail() {
  echo "test-v2: $1"
  echo "test-v2: exit 1"
  $b poweroff -f
}

$b mount -t hostfs -o ro,/ hostfs /host || fail "mount the host's tree"
cd /host
$b pivot_root . mnt || fail "pivot_root"
cd /
$b mount -t proc proc /proc || fail "mount /proc"
$b mount -t sysfs sysfs /sys || fail "mount /sys"
$b mount -t cgroup2 cgroup2 /sys/fs/cgroup || fail "mount cgroup2"
$b mount -t tmpfs -o mode=755 tmpfs /dev || fail "mount /dev"
for d in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "console 5 1" "loop-control 10 237"; do
  set -- $d
  $b mknod -m 666 "/dev/$1" c "$2" "$3"
done
$b mknod -m 600 /dev/ubdb b 98 16
$b mknod -m 600 /dev/ubdc b 98 32
$b mkdir /dev/pts /dev/shm
$b mount -t devpts -o ptmxmode=666,newinstance devpts /dev/pts && $b ln -s pts/ptmx /dev/ptmx
$b mount -t tmpfs -o mode=1777 tmpfs /dev/shm
$b ln -s /proc/self/fd /dev/fd
$b mount -t tmpfs -o mode=755 tmpfs /run
$b mount -t tmpfs -o mode=1777 tmpfs /tmp
# A Docker Engine keeps its key there, and a host that never ran one has none.
[ ! -d /etc/docker ] || $b mount -t tmpfs tmpfs /etc/docker || fail "mount /etc/docker"
$b ip link set lo up
modules=/usr/lib/uml/modules/$($b uname -r)/kernel
for m in fs/overlayfs/overlay fs/quota/quota_tree fs/quota/quota_v2 drivers/block/loop; do
  $b insmod "$modules/$m.ko" || fail "load $m"
done
# File systems with project quotas, for what bounds writable layers on a disk.
for d in "xfs /dev/ubdb" "ext4 /dev/ubdc"; do
  set -- $d
  $b mkdir -p "/mnt/quota/$1"
  $b mount -t "$1" -o prjquota "$2" "/mnt/quota/$1" || fail "mount $1 with prjquota"
done
export PADDOCK_TEST_QUOTA_DIRS=/mnt/quota/xfs:/mnt/quota/ext4

echo "test-v2: Linux $($b uname -r), cgroup v2: $($b cat /sys/fs/cgroup/cgroup.controllers)"
read -r package skip </mnt/package
echo "test-v2: run $package"
cd "/mnt/src/$package" || fail "no $package"
began=$($b date +%s)
./package.test -test.timeout="$($b cat /mnt/timeout)" -test.run="$($b cat /mnt/run)" ${skip:+-test.skip="$skip"} </dev/null 2>&1
code=$?
[ $code -eq 0 ] && echo "ok   $package $(($($b date +%s) - began))s" || echo "FAIL $package (exit $code)"
echo "test-v2: exit $code"
$b poweroff -f
