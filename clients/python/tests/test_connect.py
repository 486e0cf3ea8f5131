from __future__ import annotations

import grp
import json
import os
import pickle
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon

import paddock


def test_finds_the_socket_by_argument_then_environment(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDOCK_SOCKET", "/nowhere/s")
    assert paddock.connect(daemon.socket).version().api == "v1"
    with pytest.raises(paddock.Unavailable, match="/nowhere/s"):
        paddock.connect()
    monkeypatch.setenv("PADDOCK_SOCKET", daemon.socket)
    assert paddock.connect().socket == daemon.socket


def test_without_a_socket_it_says_how_to_start_the_daemon(tmp_path: Path) -> None:
    with pytest.raises(paddock.Unavailable, match=r"there is no socket .*paddock serve") as e:
        paddock.connect(tmp_path / "none")
    assert e.value.kind == "unavailable"


def test_a_dead_daemons_socket_is_told_from_none(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    with pytest.raises(paddock.Unavailable, match="nobody listens"):
        paddock.connect(path)


@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["socket", "directory"])
def test_without_permission_it_says_who_may(mode: int) -> None:
    group = grp.getgrnam("daemon")
    # Not below TMPDIR, which may be closed to other users.
    directory = tempfile.mkdtemp(prefix="py.", dir="/dev/shm")
    path = os.path.join(directory, "s")
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path)
            s.listen()
            os.chown(path, 0, group.gr_gid)
            os.chmod(path, 0o660)
            os.chmod(directory, mode)
            e = _as_nobody(lambda: paddock.connect(path))
    finally:
        shutil.rmtree(directory)
    assert isinstance(e, paddock.Unavailable)
    assert e.kind == "permission_denied"
    if mode == 0o700:
        assert "its directory is closed" in str(e)
        return
    assert "members of group daemon may" in str(e)
    assert "usermod -aG daemon" in str(e)


def _as_nobody(do: Callable[[], object]) -> object:
    """What do raises in a process of another user."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        raised: object = None
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            do()
        except BaseException as e:
            raised = e
        finally:
            os.write(write, pickle.dumps(raised))
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as f:
        raised = pickle.loads(f.read())
    os.waitpid(pid, 0)
    return raised


@pytest.mark.parametrize("body", [{"version": "9", "api": "v2"}, {}, [1], "<html>"])
def test_a_daemon_of_another_version_is_refused(tmp_path: Path, body: object) -> None:
    with pytest.raises(paddock.Unavailable) as e:
        _connect_to_one_answer(str(tmp_path / "s"), json.dumps(body).encode())
    assert e.value.kind == "version"


def _connect_to_one_answer(path: str, body: bytes) -> None:
    """Another daemon, real enough: it answers one request."""
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
        s.listen()

        def answer() -> None:
            conn, _ = s.accept()
            with conn:
                conn.recv(1 << 16)
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                conn.sendall(head % len(body) + body)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            paddock.connect(path)
        finally:
            thread.join()


def test_capacity_policies_and_worlds_are_typed(client: paddock.Client, world: paddock.World) -> None:
    assert client.capacity().cpus > 0
    assert {"default", "strict"} <= {p.name for p in client.policies()}
    assert client.policy("strict").hash.startswith("sha256:")
    assert client.worlds.get("box") == world
    assert world in client.worlds.list()
    assert world.created is not None
    assert world.created.tzinfo is not None


def test_builds_from_a_directory_by_path_and_sent(
    client: paddock.Client, world: paddock.World, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("forty-two")
    steps: list[paddock.Progress] = []
    by_path = client.worlds.build(base=world, dir=tmp_path, into="/srv", progress=steps.append)
    sent = client.worlds.build(base=world, dir=tmp_path, into="/srv", send=True)
    assert by_path.world.layers == sent.world.layers, "equal content is the equal layer"
    assert client.worlds.build(base=world, dir=tmp_path, into="/srv").hit
    with client.create(by_path) as ep:
        assert ep.read("/srv/data/a.txt").text == "forty-two"
        ep.finish()
    ep.delete()
    # What the daemon made ahead of need for it goes first.
    deadline = time.monotonic() + 20
    while True:
        try:
            client.worlds.remove(by_path)
            break
        except paddock.BadRequest as e:
            if e.kind != "in_use" or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    with pytest.raises(paddock.NotFound):
        client.worlds.get(by_path.world.id)


def test_bad_input_is_refused_by_name(client: paddock.Client, world: paddock.World) -> None:
    with pytest.raises(paddock.NotFound, match="atlantis") as missing:
        client.create("atlantis")
    assert missing.value.kind == "unknown_world"
    with pytest.raises(paddock.BadRequest) as bad:
        client.create(world, limits={"memory": -1})
    assert bad.value.field.startswith("/limits/memory")
    with pytest.raises(paddock.BadRequest) as unknown:
        client.create(world, limits={"speed": 1})
    assert unknown.value.kind == "unknown_field"
    with pytest.raises(paddock.BadRequest, match="not JSON"):
        client.create(world, input=float("nan"))
    with pytest.raises(paddock.NotFound):
        client.episode("nobody")


@pytest.mark.parametrize(
    ("does", "field"),
    [
        (lambda ep: ep.exec(42), "/command"),
        (lambda ep: ep.exec(["echo", 3]), "/command"),
        (lambda ep: ep.exec("cat", stdin=3), "/stdin"),
        (lambda ep: ep.exec("true", timeout=-1), "timeout_s"),
        (lambda ep: ep.exec("true", leftovers="maybe"), "leftovers"),
        (lambda ep: ep.exec("true", seq=-1), "seq"),
        (lambda ep: ep.write("/tmp/a", 5), "/content"),
        (lambda ep: ep.score("sha256:none"), "graders"),
        (lambda ep: ep.finish(answer=object()), ""),
        (lambda ep: ep.fork(0), "ids"),
    ],
)
def test_each_bad_argument_is_refused_and_nothing_is_lost(
    ep: paddock.Episode, does: Callable[[Any], object], field: str
) -> None:
    with pytest.raises((paddock.BadRequest, paddock.NotFound)) as e:
        does(ep)
    assert field in e.value.field
    assert ep.exec("echo on").stdout == "on\n"


def test_bad_runs_worlds_and_graders_are_each_told(
    client: paddock.Client, world: paddock.World, tmp_path: Path
) -> None:
    bad: Any = 42
    unknown: Any = {"speed": 3}
    for does, says in (
        (lambda: client.create(bad), "want a world"),
        (lambda: client.run("no/such name"), "name"),
        (lambda: client.run("none", resume="resume"), "none"),
        (lambda: client.run("bad-default", **unknown), "speed is no default"),
        (lambda: client.grader(tmp_path), "exactly one of grade"),
        (lambda: client.grader("/nowhere"), "exactly one of grade"),
        (lambda: client.grader(["sh"]), "the grader has none"),
        (lambda: client.worlds.build(dir="/nowhere/at/all"), "/nowhere"),
        (lambda: client.worlds.get("atlantis"), "atlantis"),
        (lambda: client.get_batch("none"), "none"),
    ):
        with pytest.raises((paddock.BadRequest, paddock.NotFound), match=says):
            does()
    with pytest.raises(TypeError, match="socket"):
        client.worlds.build(base=world, config=paddock.WorldConfig(), socket=1)  # type: ignore[call-arg]
