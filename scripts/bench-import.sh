#!/bin/bash
# Measures `paddock world import` of a 200 MB image beside GNU tar unpacking the same layer
# to the same disk: an ext4 with a journal, on a loop device in a private mount namespace.
# Rounds are interleaved; the ratio is of medians. `sync` is tar followed by a sync of the
# disk, which is what an import waits for before it answers.
#
#   scripts/bench-import.sh [ROUNDS]
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  exec unshare --mount --propagation private "$0" --inside "${1:-7}" "${PADDOCK:-$PWD/bin/paddock}"
fi
rounds=$2 paddock=$3
work=$(mktemp -d "${TMPDIR:-/dev/shm}/paddock-import.XXXXXX")
pid=
cleanup() {
  [ -z "$pid" ] || { kill "$pid" && wait "$pid"; } 2>/dev/null || true
  umount "$work/disk" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mkdir "$work/disk"
truncate -s 3G "$work/image"
mkfs.ext4 -q -O has_journal "$work/image"
mount -o loop "$work/image" "$work/disk"

# 9,400 files of 200 MB, sizes as in a root file system: many small, few large.
python3 - "$work" <<'PY'
import hashlib, io, json, random, sys, tarfile
work, rng = sys.argv[1], random.Random(1)
sizes = [min(int(rng.lognormvariate(8.2, 1.9)), 8 << 20) for _ in range(9400)]
scale = 200e6 / sum(sizes)
noise = rng.randbytes(16 << 20)
layer = f"{work}/layer.tar"
with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
    def add(name, data=None):
        info = tarfile.TarInfo(name)
        info.mtime = 1700000000
        if data is None:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
        else:
            info.size = len(data)
        tar.addfile(info, None if data is None else io.BytesIO(data))
    for i, size in enumerate(sizes):
        if i % 20 == 0:
            add(f"usr/share/{i // 20:03}")
        at = rng.randrange(8 << 20)
        add(f"usr/share/{i // 20:03}/{i}", noise[at:at + int(size * scale)])
digest = hashlib.sha256(open(layer, "rb").read()).hexdigest()
def archive(name, salt):
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Labels": {"salt": salt}},
                         "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]}}).encode()
    with tarfile.open(name, "w") as tar:
        for path, data in [("config.json", config), ("manifest.json", json.dumps([{"Config": "config.json", "Layers": ["l/layer.tar"]}]).encode())]:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(layer, "l/layer.tar")
archive(f"{work}/image.tar", "1")
PY

"$paddock" serve --root "$work/disk/store" --socket "$work/socket" >"$work/log" 2>&1 &
pid=$!
export PADDOCK_SOCKET=$work/socket
for _ in $(seq 100); do "$paddock" world ls >/dev/null 2>&1 && break; sleep 0.1; done

# took COMMAND...: milliseconds of wall.
took() { local t=$EPOCHREALTIME; "$@" >/dev/null; local e=$EPOCHREALTIME; echo $(((${e/./} - ${t/./}) / 1000)); }
unpack() { tar -xf "$work/layer.tar" -C "$work/disk/tar"; }
unpack_sync() { unpack; sync -f "$work/disk"; }
for round in $(seq "$rounds"); do
  for kind in import unpack unpack_sync; do
    sync -f "$work/disk"
    case $kind in
      import)
        took "$paddock" world import "$work/image.tar" --name bench >>"$work/import"
        "$paddock" world rm bench
        ;;
      *)
        mkdir "$work/disk/tar"
        took "$kind" >>"$work/$kind"
        rm -rf "$work/disk/tar"
        ;;
    esac
  done
done
median() { sort -n "$1" | sed -n "$(((rounds + 1) / 2))p"; }
import=$(median "$work/import") tar=$(median "$work/unpack") sync=$(median "$work/unpack_sync")
echo "import of 200 MB in 9,400 files, ext4 with a journal, median of $rounds: paddock $import ms, tar $tar ms, tar and sync $sync ms"
awk "BEGIN{printf \"import_vs_tar %.2f (at most 1.5)\nimport_vs_tar_and_sync %.2f\n\", $import/$tar, $import/$sync}"
