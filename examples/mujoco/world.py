"""Builds the world "mujoco": Debian with python3, Gymnasium, MuJoCo and Box2D's sisters.

    python3 examples/mujoco/world.py [--name mujoco] [--packages PACKAGE...]

The packages come from PyPI as wheels for the world's Python, whatever this host's is. What
they import is compiled in the world itself, so that no environment has to. The finished
world is kept as an image in the user's cache: about a minute the first time, seconds after.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import paddock

SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = ("gymnasium==1.4.0", "mujoco==4.0.0", "numpy==2.4.6", "imageio==2.38.1", "packaging==26.4")
LIB = "/opt/python"


def build(client: paddock.Client, name: str, packages: tuple[str, ...] = PACKAGES) -> paddock.World:
    """Import the world from the cache, or build it and put it there."""
    key = hashlib.sha256("\n".join([SUITE, PYTHON, LIB, "1", *packages]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddock" / "worlds"
    image = cache / f"python-{key}.tar"
    if image.exists():
        command(client, "world", "import", str(image), "--name", name)
        return client.worlds.get(name)
    world = compiled(client, base(client, cache), name, packages)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command(client, "world", "export", name, "-o", f"{scratch}/image")
        Path(scratch, "image").rename(image)
    return world


def command(client: paddock.Client, *args: str) -> None:
    """Run the command line, of this checkout where it was built here."""
    built = Path(__file__).resolve().parents[2] / "bin" / "paddock"
    program = os.environ.get("PADDOCK_BIN") or (str(built) if built.exists() else "paddock")
    env = {**os.environ, "PADDOCK_SOCKET": client.socket}
    subprocess.run([program, *args], check=True, env=env, stdout=subprocess.DEVNULL)


def base(client: paddock.Client, cache: Path) -> paddock.World:
    """Debian with python3, nothing else."""
    image = cache / f"debian-{SUITE}-python3.tar"
    if image.exists():
        command(client, "world", "import", str(image), "--name", "debian-python")
        return client.worlds.get("debian-python")
    return client.worlds.build(debian=SUITE, packages=["python3"], name="debian-python").world


def compiled(
    client: paddock.Client, below: paddock.World, name: str, packages: tuple[str, ...]
) -> paddock.World:
    """Put the packages on a world, compiled there."""
    with tempfile.TemporaryDirectory() as scratch:
        fetch(packages, Path(scratch) / "lib")
        plain = client.worlds.build(dir=str(Path(scratch) / "lib"), into=LIB, base=below).world
    with (
        client.create(plain, limits={"disk": "2GiB"}) as ep,
        tempfile.NamedTemporaryFile(suffix=".tar") as tar,
    ):
        # By contents, not by time: a layer's files have none of their own.
        how = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", LIB]
        done = ep.exec(how, user="root", timeout=600)
        if done.exit_code != 0:
            raise SystemExit(f"compileall: {done}")
        ep.download(LIB, tar)
        tar.flush()
        config = paddock.WorldConfig(env=[f"PYTHONPATH={LIB}"])
        return client.worlds.build(
            tar=tar.name, into=str(Path(LIB).parent), base=below, name=name, config=config
        ).world


def fetch(packages: tuple[str, ...], into: Path) -> None:
    """Unpack wheels for the world's Python into a directory."""
    platforms = [f"--platform=manylinux_2_{n}_{os.uname().machine}" for n in range(36, 16, -1)]
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-compile",
            ),
            *("--only-binary=:all:", f"--python-version={PYTHON}", f"--target={into}", *platforms, *packages),
        ],
        check=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="mujoco")
    parser.add_argument("--packages", nargs="*", default=PACKAGES)
    args = parser.parse_args()
    print(build(paddock.connect(), args.name, tuple(args.packages)).id)
