"""Graders: files and a command, kept by the daemon under their digest."""

from __future__ import annotations

import base64
import inspect
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import BadRequest
from ._types import Grader, GraderRef

if TYPE_CHECKING:
    from ._client import Scope
    from ._episode import Episode

log = logging.getLogger("paddock")

GraderFiles = Mapping[str, "bytes | str | os.PathLike[str]"] | str | os.PathLike[str]

# How a directory that is a grader by itself is run, by the name of its entry.
ENTRIES: Mapping[str, tuple[str, ...]] = {
    "grade": (),
    "grade.sh": ("sh",),
    "grade.py": ("python3",),
}


class PendingGrader:
    """A grader that is sent when it is first needed, or awaited for."""

    def __init__(self, scope: Scope, body: Mapping[str, Any], weight: float | None) -> None:
        self._scope, self._body, self._weight = scope, body, weight
        self._kept: Grader | None = None

    def __await__(self) -> Generator[Any, Any, Grader]:
        return self.keep().__await__()

    async def keep(self) -> Grader:
        """Have the daemon keep it. The same content is the same grader."""
        if self._kept is None:
            answer = await self._scope.json("POST", "/v1/graders", json_body=self._body)
            self._kept = Grader(str(answer["grader"]), self._weight)
        return self._kept

    def __reduce__(self) -> tuple[Any, ...]:
        return PendingGrader, (self._scope, self._body, self._weight)


@dataclass(frozen=True)
class Judge:
    """A reward that the client finds, for episodes of a queue: ``source`` is ``client``.

    The function is given the ended episode: a coroutine function an aio one, a plain function
    a synchronous one, in a thread. It returns the reward, or None where it found none, or
    (reward, metrics). What it raises is no reward: the client's null, asked for again.
    """

    name: str
    function: Callable[[Any], Any]
    weight: float | None = None

    def wire(self) -> dict[str, Any]:
        out: dict[str, Any] = {"grader": f"client:{self.name}"}
        if self.weight is not None:
            out["weight"] = self.weight
        return out


@dataclass(frozen=True)
class Found:
    """What a judge found."""

    reward: float | None
    metrics: Mapping[str, float]
    reason: str = ""


async def play_judge(judge: Judge, ep: Episode, synchronous: Callable[[Episode], Any]) -> Found:
    """Have a judge find the reward."""
    try:
        if inspect.iscoroutinefunction(judge.function):
            found = await judge.function(ep)
        else:
            found = await ep.transport.apart(lambda: judge.function(synchronous(ep)))
        reward, metrics = found if isinstance(found, tuple) else (found, {})
        return Found(None if reward is None else float(reward), dict(metrics))
    except Exception as e:
        log.warning("judge %s of %s raised", judge.name, ep.id, exc_info=True)
        return Found(None, {}, f"{type(e).__name__}: {e}"[:1000])


async def kept(graders: Sequence[GraderRef | PendingGrader]) -> list[GraderRef]:
    return [await g.keep() if isinstance(g, PendingGrader) else g for g in graders]


def grader_body(
    command: Sequence[str] | str | os.PathLike[str], files: GraderFiles | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The request. A command that is a directory alone is run by its entry."""
    body = {k: v for k, v in options.items() if v is not None and v != "" and v != [] and v != {}}
    if isinstance(command, (str, os.PathLike)):
        if files is not None:
            raise BadRequest("bad_request", "command: want a sequence of str beside files", field="/command")
        files = command
        command = _entry(Path(command), options.get("dir") or "/grader")
    if files is None:
        raise BadRequest("bad_request", "files: the grader has none", field="/files")
    body["command"] = list(command)
    body["files"] = _read(files)
    return body


def _entry(directory: Path, inside: str) -> list[str]:
    found = [name for name in ENTRIES if (directory / name).is_file()]
    if len(found) != 1:
        raise BadRequest(
            "bad_request",
            f"grader {directory}: want exactly one of {', '.join(ENTRIES)} in it, found {found or 'none'}",
            field="/command",
            hint="Or give the command and the files: grader(command, files).",
        )
    return [*ENTRIES[found[0]], f"{inside}/{found[0]}"]


def _read(files: GraderFiles) -> dict[str, Any]:
    if not isinstance(files, Mapping):
        root = Path(files)
        if not root.is_dir():
            raise BadRequest("bad_request", f"files: {root} is no directory", field="/files")
        files = {str(p.relative_to(root)): p for p in sorted(root.rglob("*")) if p.is_file()}
    out: dict[str, Any] = {}
    for name, content in files.items():
        mode = 0o644
        if isinstance(content, os.PathLike):
            mode = os.stat(content).st_mode & 0o777
            content = Path(content).read_bytes()
        raw = content.encode() if isinstance(content, str) else content
        out[name] = {"bytes": base64.b64encode(raw).decode(), "mode": mode}
    return out
