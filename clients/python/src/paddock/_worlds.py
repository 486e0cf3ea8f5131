"""Building and finding worlds."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ._errors import BadRequest, NotFound, Unavailable, from_problem
from ._function import WorldCall, WorldFunction, clocks_and_dice, tree
from ._http import STREAM, TAR, Response, dumps, segment
from ._progress import Bar
from ._types import Built, Progress, World, WorldConfig, WorldRef, config_wire, decode, world_ref

if TYPE_CHECKING:
    from ._client import Scope

PathLike = str | os.PathLike[str]
Files = Mapping[str, "bytes | str | os.PathLike[str]"]
_MODES = ("auto", "off", "refresh")
_SENT = ".paddock.Dockerfile"  # where the daemon looks for a Dockerfile that is sent beside its context


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a world is built from: the arguments of ``worlds.build``."""

    busybox: bool = False
    debian: str | None = None
    packages: Sequence[str] = ()
    dir: PathLike | None = None
    tar: PathLike | None = None
    files: Files | None = None
    base: WorldRef | None = None
    into: str = ""
    ignore: Sequence[str] = ()
    config: WorldConfig | None = None
    version: str = ""
    name: str = ""


# What run.worlds makes a world of.
WorldSource = WorldRef | PathLike | Files | Recipe | WorldCall | WorldFunction[Any]


class Worlds:
    """The daemon's worlds. Called with a mapping, it builds or finds a world for each entry."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(
        self,
        sources: Mapping[str, WorldSource],
        *,
        cache: str = "auto",
        base: WorldRef | None = None,
        into: str = "",
        config: WorldConfig | None = None,
        verify: bool = False,
        progress: bool | None = None,
    ) -> dict[str, World]:
        """Build a world for each name, or find it built already.

        A source is a world or its name, a directory or tar, files (path in the world to
        content, or to a ``Path`` of the host), a ``Recipe``, or a call of a function decorated
        with ``paddock.world``. ``base``, ``into`` and ``config`` are for those that say
        nothing else. ``cache`` is ``auto``, ``off``, ``refresh``, or a version of your own.
        ``verify`` runs functions twice and refuses what differs. ``progress`` shows a bar;
        unset, on terminals and in notebooks.
        """
        made: dict[str, World] = {}
        with Bar("worlds", len(sources), progress) as bar:
            for name, source in sources.items():
                recipe = await self._recipe(name, source)
                if isinstance(recipe, World):
                    made[name] = recipe
                elif isinstance(recipe, WorldCall):
                    made[name] = (await self._function(recipe, cache, base, into, config, verify)).world
                else:
                    if not (recipe.busybox or recipe.debian):
                        recipe = dataclasses.replace(
                            recipe,
                            base=base if recipe.base is None else recipe.base,
                            into=recipe.into or into,
                            config=recipe.config or config,
                        )
                    made[name] = (await self._build(recipe, cache)).world
                bar.advance()
        return made

    async def _recipe(self, name: str, source: WorldSource) -> World | Recipe | WorldCall:
        """What a source asks for."""
        if isinstance(source, (World, Recipe, WorldCall)):
            return source
        if isinstance(source, Built):
            return source.world
        if isinstance(source, WorldFunction):
            return source()
        if isinstance(source, Mapping):
            return Recipe(files=source)
        if isinstance(source, (str, os.PathLike)):
            if (found := _on_host(source)) is not None:
                return found
            if isinstance(source, str):
                try:
                    return await self.get(source)
                except NotFound as e:
                    detail = f"world {name}: {source!r} is no directory, no tar and no world's name"
                    raise NotFound("unknown_world", detail, field=f"/{name}", status=e.status) from e
            raise BadRequest("bad_recipe", f"world {name}: there is no {os.fspath(source)}", field=f"/{name}")
        raise BadRequest(
            "bad_recipe", f"world {name}: cannot make a world of a {type(source).__name__}", field=f"/{name}"
        )

    async def build(
        self,
        *,
        busybox: bool = False,
        debian: str | None = None,
        packages: Sequence[str] = (),
        dir: PathLike | None = None,
        tar: PathLike | None = None,
        files: Files | None = None,
        base: WorldRef | None = None,
        into: str = "",
        ignore: Sequence[str] = (),
        config: WorldConfig | None = None,
        version: str = "",
        name: str = "",
        cache: str = "",
        send: bool | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Built:
        """Build a world from busybox, a Debian suite, a directory, a tar or files; kept ones are found.

        Root's directories and tars are read by the daemon; for others, or with ``send``, they
        are sent, and then a directory cannot have ``ignore``. ``files`` are always sent.
        """
        recipe = Recipe(
            busybox=busybox,
            debian=debian,
            packages=packages,
            dir=dir,
            tar=tar,
            files=files,
            base=base,
            into=into,
            ignore=ignore,
            config=config,
            version=version,
            name=name,
        )
        return await self._build(recipe, cache, send, progress)

    async def dockerfile(
        self,
        context: PathLike | None = None,
        *,
        file: PathLike | None = None,
        text: str = "",
        args: Mapping[str, str] | None = None,
        target: str = "",
        allow: Sequence[str] = (),
        step_s: float = 0.0,
        config: WorldConfig | None = None,
        version: str = "",
        name: str = "",
        cache: str = "",
        send: bool | None = None,
        log: Callable[[str], None] | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Built:
        """Build what a Dockerfile says: ``context/Dockerfile``, another ``file``, or its ``text``.

        ``allow`` names hosts that RUN reaches through a proxy; without, it reaches none.
        ``step_s`` bounds each RUN. ``log`` is given the build's words as they come; a command
        that fails is an error of kind ``build_failed`` with its line and its last words. The context is sent
        as in ``build``; what ``.dockerignore`` names is sent, too, and not used.
        """
        send = os.geteuid() != 0 if send is None else send
        if file is not None:
            if text:
                raise BadRequest("bad_request", "a Dockerfile is a file or a text, not both", field="text")
            text = await self._scope.transport.apart(Path(file).read_text)
        dockerfile = {
            "text": text,
            "args": dict(args or {}),
            "target": target,
            "allow": list(allow),
            "step_s": step_s,
        }
        body = _wire(Recipe(config=config, version=version, name=name), cache)
        with contextlib.ExitStack() as stack:
            options: dict[str, Any]
            if context is not None and send:
                files: dict[str, str] = {}
                if text:
                    files[_SENT] = text
                    dockerfile.update(text="", file=_SENT)
                tar = stack.enter_context(
                    await self._scope.transport.apart(lambda: _tar(Recipe(dir=context, files=files)))
                )
                body["dockerfile"] = {k: v for k, v in dockerfile.items() if v}
                options = {"body": tar, "media": TAR, "headers": {"Paddock-Recipe": dumps(body)}}
            else:
                body["dockerfile"] = {k: v for k, v in dockerfile.items() if v}
                if context is not None:
                    body.update(_paths(Recipe(dir=context)))
                options = {"json_body": body}
            response = await self._scope.request("POST", "/v1/worlds", accept=STREAM, **options)
            return await _built(response, progress, log)

    async def _build(
        self,
        recipe: Recipe,
        cache: str = "",
        send: bool | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Built:
        body = _wire(recipe, cache)
        send = os.geteuid() != 0 if send is None else send
        options: dict[str, Any] = {"json_body": body}
        with contextlib.ExitStack() as stack:
            if recipe.files is not None or (send and (recipe.dir is not None) != (recipe.tar is not None)):
                if recipe.ignore:
                    raise BadRequest(
                        "bad_request", "a directory that is sent cannot have ignore", field="ignore"
                    )
                tar = stack.enter_context(await self._scope.transport.apart(lambda: _tar(recipe)))
                options = {"body": tar, "media": TAR, "headers": {"Paddock-Recipe": dumps(body)}}
            else:
                body.update(_paths(recipe))
            response = await self._scope.request("POST", "/v1/worlds", accept=STREAM, **options)
            return await _built(response, progress)

    async def _function(
        self,
        call: WorldCall,
        cache: str,
        base: WorldRef | None,
        into: str,
        config: WorldConfig | None,
        verify: bool,
    ) -> Built:
        """A function's world: found under its key, or made and kept under it."""
        f = call.function
        on = f.base if f.base is not None else base
        base_id = (await self.get(world_ref(on))).id if on is not None else ""
        into, config = f.into or into, f.config or config
        salt = f"{into}\0{config!r}\0" + ("" if cache in _MODES else cache)
        key = call.key(base_id, salt)
        name = f"function/{re.sub(r'[^A-Za-z0-9._-]+', '-', f.name)[-100:]}/{key[:40]}"
        transport = self._scope.transport

        async def found() -> Built | None:
            if cache in ("off", "refresh") or verify:
                return None
            try:
                return Built(await self.get(name), hit=True)
            except NotFound:
                return None

        if (built := await found()) is not None:
            return built
        with contextlib.ExitStack() as stack:
            await transport.apart(lambda: stack.enter_context(_single_flight(key)))
            if (built := await found()) is not None:  # another process made it meanwhile
                return built
            directory = stack.enter_context(_temporary())
            await transport.apart(lambda: _fill(call, directory, verify))
            recipe = Recipe(
                dir=directory,
                base=base_id or None,
                into=into,
                config=config,
                name="" if cache == "off" else name,
            )
            return await self._build(recipe, cache if cache in _MODES else "auto")

    async def get(self, ref: str) -> World:
        """A world by id, unique prefix of one, or name."""
        return decode(World, await self._scope.json("GET", f"/v1/worlds/{segment(ref)}"))

    async def list(self) -> tuple[World, ...]:
        found = (await self._scope.json("GET", "/v1/worlds"))["worlds"] or ()
        return tuple(decode(World, w) for w in found)

    async def remove(self, ref: WorldRef) -> None:
        """Remove a world that nothing uses."""
        await self._scope.read("DELETE", f"/v1/worlds/{segment(world_ref(ref))}")


def _on_host(path: PathLike) -> Recipe | None:
    """The recipe of a path that is there."""
    if os.path.isdir(path):
        return Recipe(dir=path)
    return Recipe(tar=path) if os.path.isfile(path) else None


def _paths(recipe: Recipe) -> dict[str, str]:
    named = (("dir", recipe.dir), ("tar", recipe.tar))
    return {field: os.path.abspath(path) for field, path in named if path is not None}


def _wire(recipe: Recipe, cache: str) -> dict[str, Any]:
    version = recipe.version
    if cache and cache not in _MODES:
        version, cache = f"{version}\0{cache}" if version else cache, "auto"
    body: dict[str, Any] = {
        "busybox": recipe.busybox,
        "base": world_ref(recipe.base) if recipe.base is not None else "",
        "into": recipe.into,
        "ignore": list(recipe.ignore),
        "config": config_wire(recipe.config) if recipe.config else {},
        "version": version,
        "name": recipe.name,
        "cache": cache,
    }
    body = {k: v for k, v in body.items() if v}
    if recipe.debian is not None:
        body["debian"] = {"suite": recipe.debian, "packages": list(recipe.packages)}
    return body


def _tar(recipe: Recipe) -> IO[bytes]:
    """What is sent of a recipe, as a tar."""
    if recipe.tar is not None:
        return open(recipe.tar, "rb")
    body = tempfile.TemporaryFile()  # noqa: SIM115 # the caller closes it
    try:
        with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as out:
            if recipe.dir is not None:
                for entry in sorted(os.listdir(recipe.dir)):
                    out.add(os.path.join(recipe.dir, entry), arcname=entry, filter=_owned_by_root)
            for path, content in sorted((recipe.files or {}).items()):
                _add_file(out, path.lstrip("/"), content)
        body.seek(0)
    except BaseException:
        body.close()
        raise
    return body


def _add_file(out: tarfile.TarFile, path: str, content: bytes | str | os.PathLike[str]) -> None:
    if isinstance(content, os.PathLike):
        out.add(content, arcname=path, filter=_owned_by_root)
        return
    raw = content.encode() if isinstance(content, str) else content
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(raw), 0o644
    out.addfile(info, io.BytesIO(raw))


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


async def _built(
    response: Response,
    progress: Callable[[Progress], None] | None,
    log: Callable[[str], None] | None = None,
) -> Built:
    built: Built | None = None
    async for event in response.lines():
        if event.get("error"):
            raise from_problem(event["error"])
        if event.get("built"):
            built = decode(Built, event["built"])
        elif event.get("progress") and progress is not None:
            progress(decode(Progress, event["progress"]))
        elif event.get("log") and log is not None:
            log(event["log"])
    if built is None:
        raise Unavailable("connection_lost", "the stream ended without a world")
    return built


@contextlib.contextmanager
def _single_flight(key: str) -> Iterator[None]:
    """Hold the build of a key against the user's other processes."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddock" / "building"
    root.mkdir(parents=True, exist_ok=True)
    path = root / key
    with open(path, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
        # Whoever waits on it looks for the world first, so it may go.
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="paddock-world-"))
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _fill(call: WorldCall, directory: Path, verify: bool) -> None:
    call.fill(directory)
    if not verify:
        return
    with _temporary() as second:
        call.fill(second)
        one, other = tree(directory), tree(second)
    differs = sorted(p for p in one.keys() | other.keys() if one.get(p) != other.get(p))
    if differs:
        unsteady = clocks_and_dice(call.function.function)
        why = f"; it reaches {', '.join(unsteady)}" if unsteady else ""
        raise BadRequest(
            "not_reproducible",
            f"world {call.function.name}: two builds differ at {', '.join(differs[:5])}{why}",
            field="/function",
            hint="Draw from a seed that is an argument, and take times from arguments.",
        )
