"""A real daemon for the tests; there are no mocks."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import paddock

REPO = Path(__file__).resolve().parents[3]
BINARY = os.environ.get("PADDOCK_BIN", str(REPO / "bin" / "paddock"))
SOURCES = str(REPO / "clients" / "python" / "src")


class Daemon:
    """A daemon with a store of its own, on a tmpfs where there is one."""

    def __init__(self, *flags: str) -> None:
        base = os.environ.get("TMPDIR") or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
        # A short name: the path of a unix socket has at most 107 bytes.
        self.dir = Path(tempfile.mkdtemp(prefix="py.", dir=base))
        self.dir.chmod(0o755)
        self.socket = str(self.dir / "s")
        self._process: subprocess.Popen[bytes] | None = None
        self.start(*flags)

    def start(self, *flags: str) -> None:
        with open(self.dir / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    BINARY,
                    "serve",
                    "--root",
                    str(self.dir / "store"),
                    "--socket",
                    self.socket,
                    "--drain-timeout",
                    "1s",
                    *flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 20
        while not _answers(self.socket):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon did not start:\n{(self.dir / 'log').read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it the hard way."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def strays(self) -> list[Any]:
        """What it left on this host and does not own."""
        command = [BINARY, "audit", "--json", "--root", str(self.dir / "store"), "--socket", self.socket]
        said = subprocess.run(command, capture_output=True, text=True)
        return list(json.loads(said.stdout)["strays"])

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(path) == 0


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    d = Daemon()
    yield d
    d.close()


@pytest.fixture(scope="session")
def daemon_socket(world: paddock.World, daemon: Daemon) -> str:
    """The socket of a daemon that has the world box."""
    return daemon.socket


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory with a name short enough for a socket in it."""
    path = Path(tempfile.mkdtemp(prefix="py.", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def client(daemon: Daemon) -> paddock.Client:
    return paddock.connect(daemon.socket)


@pytest.fixture(scope="session")
def world(client: paddock.Client) -> paddock.World:
    return client.worlds.build(busybox=True, name="box").world


@pytest.fixture(scope="session")
def verdict(client: paddock.Client) -> paddock.Grader:
    """Gives 1 where /tmp/answer says yes."""
    script = (
        '[ "$(cat /tmp/answer)" = yes ] && r=1 || r=0; echo "{\\"reward\\": $r}" >&"$PADDOCK_VERDICT_FD"\n'
    )
    return client.grader(["sh", "/grader/grade.sh"], {"grade.sh": script})


@pytest.fixture
def ep(client: paddock.Client, world: paddock.World) -> Iterator[paddock.Episode]:
    episode = client.create(world)
    yield episode
    episode.delete()


@pytest.fixture
def fresh_name() -> Callable[[], str]:
    def name() -> str:
        return f"r{os.urandom(6).hex()}"

    return name


@pytest.fixture(scope="session")
def gym_world(client: paddock.Client) -> str:
    """A world with Gymnasium and MuJoCo."""
    recipe = REPO / "examples" / "mujoco" / "world.py"
    runpy.run_path(str(recipe))["build"](client, "mujoco")
    return "mujoco"


@pytest.fixture(scope="session")
def simulator(client: paddock.Client, gym_world: str) -> Callable[..., Any]:
    """Opens simulators of that world."""
    from paddock import gym

    def opened(env: str, **spec: Any) -> gym.Simulator:
        spec = {"ready": 1, "budgets": {"setup_s": 600, "call_s": 60}, "step_s": 60, **spec}
        return gym.simulator(env, **{"world": gym_world, "socket": client.socket, **spec})

    return opened
