from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import BINARY, SOURCES

import paddock


def gone(pid: int, within: float = 30) -> bool:
    deadline = time.monotonic() + within
    while os.path.exists(f"/proc/{pid}"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_local_daemon_ends_with_its_block(short_dir: Path) -> None:
    with paddock.local(short_dir / "d", binary=BINARY) as client:
        world = client.worlds.build(busybox=True, name="box")
        with client.create(world) as ep:
            assert ep.exec("echo hello").stdout == "hello\n"
            ep.finish(payload=b"p")
        pid = client.pid
        # Who comes second uses it, and leaves it running.
        with paddock.local(short_dir / "d", binary=BINARY) as second:
            assert second.pid == pid
        assert client.version().pid == pid
    assert gone(pid)
    with paddock.local(short_dir / "d", binary=BINARY) as again:
        assert again.episode(ep.id).payload() == b"p", "a root that was given is kept"


@pytest.mark.parametrize("how", ["exit", "raise", "kill"])
def test_a_local_daemon_ends_with_its_process(how: str, tmp_path: Path) -> None:
    program = f"""
import os, signal, paddock
client = paddock.local(binary={BINARY!r})
if os.fork() == 0:  # a child holds nothing of it
    import time; time.sleep(3600)
print(client.pid, client.socket, os.getpid(), flush=True)
how = {how!r}
if how == "raise": raise ValueError
if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": SOURCES, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        pid, socket, _ = process.stdout.readline().split()
        process.wait(60)
        assert gone(int(pid))
        deadline = time.monotonic() + 10
        while os.path.exists(os.path.dirname(socket)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not os.path.exists(os.path.dirname(socket)), "its store is gone too"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


def test_a_local_daemon_that_cannot_start_says_why(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(paddock.Unavailable, match="inject-faults"):
        paddock.local(short_dir / "d", binary=BINARY, flags=["--inject-faults", "many"])
    with pytest.raises(paddock.Unavailable, match=r"no program .*none.*make build"):
        paddock.local(short_dir / "d", binary=short_dir / "none")
    with pytest.raises(paddock.Unavailable, match="at most 107 bytes"):
        paddock.local(short_dir / ("d" * 100), binary=BINARY)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(paddock.Unavailable, match="uid 1000 cannot start a daemon") as e:
        paddock.local(short_dir / "d", binary=BINARY)
    assert e.value.kind == "permission_denied"
