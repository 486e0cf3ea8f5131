"""A daemon of this process's own: started when asked for, ended with the process.

A keeper stands between: a small process that holds the daemon and ends it when its standard
input closes, which the kernel does however this process dies.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import _client
from ._blocking import Transport, done
from ._client import check_version
from ._errors import PaddockError, Unavailable
from ._sync import Client

BINARY_ENV = "PADDOCK_BIN"

# How long a daemon may take to start, where an earlier one on its store may still be ending.
_START_S = 60.0

_KEEPER = """
import os, shutil, signal, subprocess, sys
log, remove, *command = sys.argv[1:]
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)
def heed():
    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, signal.SIG_DFL)
with open(log, "ab") as f:
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f, preexec_fn=heed)
print(daemon.pid, flush=True)
import threading
def ended():
    daemon.wait()
    if not asked.is_set():
        os._exit(1)  # it died: whoever asks sees the keeper's pipe closed
asked = threading.Event()
threading.Thread(target=ended, daemon=True).start()
sys.stdin.buffer.read()
asked.set()
daemon.terminate()
try:
    daemon.wait(30)
except subprocess.TimeoutExpired:
    daemon.kill()
    daemon.wait()
if remove:
    shutil.rmtree(remove, ignore_errors=True)
"""


class Local(Client):
    """A client of a daemon that ends with this process, or with its ``with`` block."""

    def __init__(self, core: _client.Client, keeper: subprocess.Popen[bytes] | None, pid: int) -> None:
        super().__init__(core)
        self._keeper = keeper
        #: The daemon's process id.
        self.pid = pid
        self._owner = os.getpid()
        if keeper is not None:
            atexit.register(self.stop)
            _keepers.append(keeper)

    def __reduce__(self) -> tuple[type[Client], tuple[_client.Client]]:
        return Client, (self._core,)  # a copy does not end the daemon

    def stop(self) -> None:
        """End the daemon and wait for it. Its store is removed unless its root was given."""
        keeper, self._keeper = self._keeper, None
        if keeper is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.stop)
        self.close()
        assert keeper.stdin is not None
        with contextlib.suppress(OSError):
            keeper.stdin.close()
        keeper.wait()
        if keeper.stdout is not None:
            keeper.stdout.close()

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def local(
    root: str | os.PathLike[str] | None = None,
    *,
    flags: Sequence[str] = (),
    binary: str | os.PathLike[str] | None = None,
) -> Local:
    """Start a daemon that ends with this process, and connect to it. Needs root.

    ``root`` is a directory for its store, socket and log, kept from one time to the next; a
    daemon that already runs there is used, and left running. Without one everything is in
    memory and is gone at the end. ``flags`` are those of ``paddock serve``. The program is
    ``binary``, else PADDOCK_BIN, else ``paddock`` on the PATH.
    """
    program = _program(binary)
    directory = Path(root) if root is not None else _temporary()
    directory.mkdir(parents=True, exist_ok=True)
    socket = str(directory / "paddock.sock")
    if len(os.fsencode(socket)) > 107:
        raise Unavailable("unavailable", f"{socket}: the path of a socket has at most 107 bytes")
    core = _client.Client(Transport.at(socket))
    try:
        running = done(core.version())
    except PaddockError:
        return _start(core, directory, [program, "serve", *_where(directory, socket), *flags], root is None)
    return Local(core, None, running.pid)


def _where(directory: Path, socket: str) -> list[str]:
    return ["--root", str(directory / "store"), "--socket", socket, "--drain-timeout", "1s"]


def _start(core: _client.Client, directory: Path, command: Sequence[str], remove: bool) -> Local:
    deadline = time.monotonic() + _START_S
    log = directory / "daemon.log"
    while True:
        keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _KEEPER, str(log), str(directory) if remove else "", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert keeper.stdout is not None
        pid = int(keeper.stdout.readline() or b"0")
        if _answers(core, keeper, pid, deadline):
            done(check_version(core))
            return Local(core, keeper, pid)
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()
        said = log.read_text(errors="replace")[-600:] if log.exists() else ""
        if "another daemon" not in said or time.monotonic() > deadline:
            if remove:
                shutil.rmtree(directory, ignore_errors=True)
            raise Unavailable(
                "unavailable",
                f"the daemon did not start: {said.strip()}",
                hint="`paddock doctor` says what is missing.",
            )
        time.sleep(0.1)  # an earlier one is still ending


def _answers(core: _client.Client, keeper: subprocess.Popen[bytes], pid: int, deadline: float) -> bool:
    """Wait until the daemon answers; false where it ended instead."""
    while pid and keeper.poll() is None and time.monotonic() < deadline:
        try:
            return done(core.version()).pid == pid
        except PaddockError:
            time.sleep(0.02)
    return False


def _program(binary: str | os.PathLike[str] | None) -> str:
    named = os.fspath(binary) if binary else os.environ.get(BINARY_ENV)
    found = shutil.which(named or "paddock")
    if found is None:
        raise Unavailable(
            "unavailable",
            f"there is no program {named or 'paddock on the PATH'}",
            hint=f"Build it with `make build`, and name it by argument or {BINARY_ENV}.",
        )
    if os.geteuid() != 0:
        raise Unavailable(
            "permission_denied",
            f"uid {os.geteuid()} cannot start a daemon: it makes sandboxes",
            hint="Have root start `paddock serve --socket-group GROUP`, and connect() to it.",
        )
    return found


def _temporary() -> Path:
    directory = Path(
        tempfile.mkdtemp(prefix="paddock.", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    )
    directory.chmod(0o755)
    return directory


_keepers: list[subprocess.Popen[bytes]] = []


def _after_fork_in_child() -> None:
    # A copy of the pipe would hold the daemon after this process's parent is gone.
    for keeper in _keepers:
        if keeper.stdin is not None:
            with contextlib.suppress(OSError):
                os.close(keeper.stdin.fileno())
            keeper.stdin = None
    _keepers.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
