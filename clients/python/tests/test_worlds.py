from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import paddock
from paddock import aio

Name = Callable[[], str]


@dataclasses.dataclass(frozen=True)
class Page:
    title: str
    lines: tuple[str, ...] = ()


@paddock.world(into="/srv")
def pages(directory: Path, pages: list[Page], *, seed: int = 0) -> None:
    dice = random.Random(seed)
    for page in pages:
        (directory / f"{page.title}.txt").write_text("\n".join((*page.lines, str(dice.random()))))


def test_worlds_come_from_whatever_there_is(
    client: paddock.Client, world: paddock.World, tmp_path: Path, fresh_name: Name
) -> None:
    (tmp_path / "a.txt").write_text("from a directory")
    run = client.run(fresh_name())
    sources: dict[str, Any] = {
        "made": pages([Page("one")], seed=4),
        "directory": tmp_path,
        "path": str(tmp_path),
        "files": {"/a.txt": "from text", "b/c.txt": tmp_path / "a.txt"},
        "name": "box",
        "world": world,
        "recipe": paddock.Recipe(busybox=True),
    }
    worlds = run.worlds(sources, cache="auto", base=world, into="/data")
    assert worlds["name"] == worlds["world"] == worlds["recipe"] == world
    assert worlds["directory"] == worlds["path"]
    for name, path, text in (
        ("directory", "/data/a.txt", "from a directory"),
        ("files", "/data/b/c.txt", "from a directory"),
        ("files", "/data/a.txt", "from text"),
        ("made", "/srv/one.txt", str(random.Random(4).random())),
    ):
        with run.create(worlds[name], f"{name}{path}".replace("/", "-")) as ep:
            assert ep.read(path).text == text
            ep.finish()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("/nowhere/at/all", "no directory, no tar and no world's name"),
        (Path("/nowhere"), "there is no /nowhere"),
        (42, "cannot make a world of a int"),
    ],
)
def test_a_source_that_is_none_is_refused_by_its_name(
    client: paddock.Client, source: object, says: str
) -> None:
    with pytest.raises((paddock.NotFound, paddock.BadRequest), match=f"world t1: .*{says}"):
        client.worlds({"t1": source})  # type: ignore[dict-item]


def test_a_function_runs_once_for_its_key(
    client: paddock.Client, world: paddock.World, fresh_name: Name
) -> None:
    salt = fresh_name()

    @paddock.world(version=salt)
    def one(directory: Path, text: str) -> None:
        Path(os.environ["PADDOCK_TEST_RAN"]).write_text(text)
        (directory / "t").write_text(text)

    ran_file = Path(os.environ.setdefault("PADDOCK_TEST_RAN", f"/dev/shm/{salt}"))

    def ran_for(text: str, **options: object) -> bool:
        ran_file.unlink(missing_ok=True)
        client.worlds({"x": one(text)}, base=world, **options)  # type: ignore[arg-type]
        return ran_file.exists()

    try:
        assert ran_for("a")
        assert not ran_for("a"), "found under its key"
        assert ran_for("b"), "other arguments"
        assert ran_for("a", cache="v2"), "a version of the caller's"
        assert not ran_for("a", cache="v2")
        assert ran_for("a", cache="refresh")
        assert ran_for("a", cache="off")
        assert ran_for("a", into="/elsewhere")
        assert not ran_for("a")
    finally:
        ran_file.unlink(missing_ok=True)
        del os.environ["PADDOCK_TEST_RAN"]


PROJECT = '''
import json
import other
from other import helper

LIMIT = 3

class Shape:
    side = 2
    def area(self):
        return self.side * other.factor()

def build(directory, n=1):
    """A comment of a function."""
    import nested
    (directory / "f").write_text(json.dumps([n, LIMIT, helper(n), Shape().area(), nested.depth()]))
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Gives the key of a project's function after some text of it was replaced."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write() -> None:
        (tmp_path / "proj.py").write_text(PROJECT)
        (tmp_path / "other.py").write_text(
            "TABLE = [1, 2]\nUNUSED = 5\n"
            "def helper(n):\n    return TABLE[0] + n\ndef factor():\n    return 7\n"
        )
        (tmp_path / "nested.py").write_text("def depth():\n    return 1\n")

    def load(name: str) -> ModuleType:
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def key(file: str = "", old: str = "", new: str = "", **arguments: object) -> str:
        write()
        if file:
            path = tmp_path / f"{file}.py"
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        sys.dont_write_bytecode = True
        import linecache

        linecache.clearcache()
        for name in ("proj", "other", "nested"):
            sys.modules.pop(name, None)
        return paddock.world(load("proj").build)(**arguments).key()

    yield key
    for name in ("proj", "other", "nested"):
        sys.modules.pop(name, None)


def test_the_key_is_of_all_that_the_function_reaches(project: Callable[..., str]) -> None:
    same = project()
    assert project() == same
    assert project("proj", '"""A comment of a function."""', '"""A comment of a function."""  # more') == same
    assert project("proj", "LIMIT = 3", "\n\n\nLIMIT = 3") == same
    assert project("other", "UNUSED = 5", "UNUSED = 6") == same
    assert project(n=1) == same
    others = {
        project(n=2),
        project("proj", "LIMIT = 3", "LIMIT = 4"),
        project("proj", "side = 2", "side = 3"),
        project("proj", "self.side *", "self.side +"),
        project("other", "return 7", "return 8"),
        project("other", "TABLE[0] + n", "TABLE[1] + n"),
        project("other", "TABLE = [1, 2]", "TABLE = [2, 1]"),
        project("nested", "return 1", "return 2"),
        project("proj", "n=1", "n=2"),
    }
    assert same not in others
    assert len(others) >= 8  # the default and the argument 2 may be the same key


def test_the_key_has_files_packages_base_and_version(tmp_path: Path) -> None:
    def f(directory: Path) -> None: ...

    data = tmp_path / "data.json"
    data.write_text("1")
    keys = [
        paddock.world()(f)().key(),
        paddock.world(files=[data])(f)().key(),
        paddock.world(packages=["pytest"])(f)().key(),
        paddock.world(version="2")(f)().key(),
        paddock.world(into="/x")(f)().key(),
        paddock.world()(f)().key(base="sha256:0"),
    ]
    data.write_text("2")
    keys.append(paddock.world(files=[data])(f)().key())
    assert len(set(keys)) == len(keys)
    for options in ({"files": [tmp_path / "none"]}, {"packages": ["no-such-package"]}):
        with pytest.raises(paddock.BadRequest, match=r"none|no-such-package"):
            paddock.world(**options)(f)().key()


def test_what_cannot_be_hashed_is_refused_by_name() -> None:
    lock = threading.Lock()

    @paddock.world
    def closes_over(directory: Path) -> None:
        with lock:
            pass

    @paddock.world
    def takes(directory: Path, s: object) -> None: ...

    with pytest.raises(paddock.BadRequest, match=r"closes_over: the closure variable lock is a .*lock"):
        closes_over().key()
    with socket.socket() as s, pytest.raises(paddock.BadRequest, match=r"argument\['s'\] is a socket"):
        takes(s).key()


def test_verify_names_a_builder_that_is_not_reproducible(
    client: paddock.Client, world: paddock.World
) -> None:
    @paddock.world(base=world)
    def clock(directory: Path) -> None:
        (directory / "now").write_text(str(time.time_ns()))

    @paddock.world(base=world)
    def steady(directory: Path) -> None:
        (directory / "sub").mkdir()
        (directory / "sub" / "link").symlink_to("../x")

    with pytest.raises(
        paddock.BadRequest, match=r"clock: two builds differ at now; it reaches time\.time_ns"
    ) as e:
        client.worlds({"c": clock()}, verify=True)
    assert e.value.kind == "not_reproducible"
    assert client.worlds({"s": steady}, verify=True)["s"].layers


def test_a_function_that_raises_is_not_cached(
    client: paddock.Client, world: paddock.World, fresh_name: Name
) -> None:
    flag = Path(f"/dev/shm/{fresh_name()}")
    path = str(flag)

    @paddock.world(base=world)
    def fails_first(directory: Path) -> None:
        if not os.path.exists(path):
            raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        client.worlds({"x": fails_first})
    flag.touch()
    try:
        assert client.worlds({"x": fails_first})["x"].id
    finally:
        flag.unlink()


def test_builds_of_one_key_are_done_once_by_several_processes(daemon_socket: str, tmp_path: Path) -> None:
    program = f"""
import os, time, paddock
client = paddock.connect({daemon_socket!r})
@paddock.world(base="box", version={tmp_path.name!r})
def slow(directory):
    with open({str(tmp_path / "ran")!r}, "a") as f:
        f.write("x")
    time.sleep(0.3)
    (directory / "f").write_text("1")
print(client.worlds({{"w": slow}})["w"].id)
"""
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    file = tmp_path / "slow.py"
    file.write_text(program)
    started = [
        subprocess.Popen([sys.executable, str(file)], env=env, stdout=subprocess.PIPE) for _ in range(3)
    ]
    ids = {p.communicate(timeout=60)[0] for p in started}
    assert len(ids) == 1
    assert ids != {b""}
    assert (tmp_path / "ran").read_text() == "x"


def test_asyncio_builds_the_same(client: paddock.Client, world: paddock.World) -> None:
    async def main() -> dict[str, paddock.World]:
        async with await aio.connect(client.socket) as c:
            return await c.worlds({"a": pages([Page("t")]), "b": {"x": b"1"}}, base=world)

    assert asyncio.run(main()) == client.worlds({"a": pages([Page("t")]), "b": {"x": b"1"}}, base=world)


@pytest.mark.parametrize("send", [False, True])
def test_a_dockerfile_is_built_and_found_again(
    client: paddock.Client, world: paddock.World, tmp_path: Path, fresh_name: Name, send: bool
) -> None:
    if not send and os.geteuid() != 0:
        pytest.skip("the daemon reads directories for root alone")
    (tmp_path / ".dockerignore").write_text("*.key\n")
    (tmp_path / "a.key").write_text("secret")
    (tmp_path / "a.txt").write_text(fresh_name())
    text = "FROM box\nARG WHO\nCOPY . /all\nRUN echo $WHO > /who; ls -A /all; false || echo done\n"
    log: list[str] = []
    built = client.worlds.dockerfile(tmp_path, text=text, args={"WHO": "me"}, send=send, log=log.append)
    assert not built.network
    said = "".join(log)
    assert "[4/4] RUN echo" in said
    assert ".dockerignore\na.txt\ndone\n" in said
    (tmp_path / "Dockerfile").write_text(text)
    os.utime(tmp_path / "a.txt", (5, 5))
    for options in ({"text": text}, {"file": tmp_path / "Dockerfile"}):
        (tmp_path / "Dockerfile").unlink(missing_ok=True)
        if "file" in options:
            options = {"file": tmp_path.parent / f"{tmp_path.name}.Dockerfile"}
            options["file"].write_text(text)
        again = client.worlds.dockerfile(tmp_path, args={"WHO": "me"}, send=send, **options)
        assert again.hit
        assert again.world == built.world
    with client.create(built.world) as ep:
        assert ep.exec("cat /who").stdout == "me\n"
    with pytest.raises(paddock.PaddockError, match=r"Dockerfile:2.*exited with 3") as failed:
        client.worlds.dockerfile(text="FROM box\nRUN echo last words; exit 3\n")
    assert failed.value.kind == "build_failed"
    assert failed.value.detail.endswith("last words")
    with pytest.raises(paddock.PaddockError, match=r"Dockerfile:2.*ONBUILD is not supported"):
        client.worlds.dockerfile(text="FROM box\nONBUILD RUN x\n")
