"""Handles on episodes: calls, files, sessions, end, scores. The synchronous face is in _sync."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, TypeVar

from ._errors import BadRequest, CallConflict, EpisodeEnded, NotFound, PaddockError, Unavailable, from_problem
from ._http import BYTES, JSON, STREAM, TAR, Response, Transport, dumps, segment
from ._payload import decode_payload, encode_payload
from ._types import (
    Attempt,
    CallFault,
    CallResult,
    Capture,
    Chunk,
    End,
    EpisodeInfo,
    GraderRef,
    decode,
    graders_wire,
)

if TYPE_CHECKING:
    from ._client import Scope

Data = bytes | bytearray | str
Command = str | Sequence[str]
R = TypeVar("R")

_log = logging.getLogger("paddock")

# Tools that every world has; their arguments are the call's own fields.
BUILTIN = frozenset({"exec", "read_file", "write_file", "list_dir", "stat", "remove"})

# What a model does wrong in choosing a tool and its arguments, and what it is told.
_MISTAKES = {
    "unknown_tool": "unknown_tool",
    "bad_request": "invalid_arguments",
    "unknown_field": "invalid_arguments",
    "unknown_user": "invalid_arguments",
}

# Beyond this, bytes travel raw and not as base64 in JSON.
_RAW_FROM = 64 << 10
# What fits into a header beside them.
_MAX_HEADER = 16 << 10


def _text(data: str, field: str) -> bytes:
    """A model may write half a surrogate pair in JSON, which no encoding has."""
    try:
        return data.encode()
    except UnicodeEncodeError as e:
        raise BadRequest("bad_request", f"{field}: is no text: {e}", field=f"/{field}") from e


def _bytes(data: Data, field: str) -> bytes:
    if isinstance(data, str):
        return _text(data, field)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise BadRequest(
        "bad_request", f"{field}: want bytes or str, got {type(data).__name__}", field=f"/{field}"
    )


class CallStream:
    """A call whose output is iterated over as it comes; ``result`` is there at the end."""

    def __init__(self, episode: Episode, response: Response, seq: int) -> None:
        self._episode, self._response, self._seq = episode, response, seq
        self._lines = response.lines()
        self._result: CallResult | None = None

    def __aiter__(self) -> CallStream:
        return self

    async def __anext__(self) -> Chunk:
        async for event in self._lines:
            kind = event["type"]
            if kind == "result":
                self._result = decode(CallResult, event["result"])
                self._episode._counted(self._result.seq)
            elif kind == "error":
                raise from_problem(event["error"])
            else:
                raw = event.get("b64")
                return Chunk(kind, event.get("text", "").encode() if raw is None else base64.b64decode(raw))
        if self._result is None:
            raise Unavailable("connection_lost", "the stream ended without a result")
        raise StopAsyncIteration

    async def result(self) -> CallResult:
        """The call's result; reads what output is left."""
        while self._result is None:
            try:
                await self.__anext__()
            except StopAsyncIteration:
                break
        if self._result is None:
            raise Unavailable("connection_lost", "the stream was closed before its result")
        return self._result

    async def close(self) -> None:
        """Break the call off."""
        await self._lines.aclose()
        if self._result is None:
            self._response.close()
            self._episode._call_off(self._seq)

    async def __aenter__(self) -> CallStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Session:
    """A shell that keeps its directory and variables from one input to the next."""

    def __init__(self, episode: Episode, name: str) -> None:
        self.episode = episode
        self.name = name

    async def run(self, text: str, *, timeout: float | None = None, weights: str = "") -> CallResult:
        """Run shell text in the session."""
        return await self.episode._call(
            {"tool": "session", "session": self.name, "shell": text, "timeout_s": timeout, "weights": weights}
        )

    async def close(self) -> CallResult:
        return await self.episode._call({"tool": "session_close", "session": self.name})

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None, _: object) -> None:
        if not isinstance(e, PaddockError):
            with contextlib.suppress(EpisodeEnded):  # and the session with it
                await self.close()


class Episode:
    """A handle on one attempt of an episode. It can be pickled and used in another process.

    As a context manager it cares for the end: an exception that leaves the block aborts the
    attempt (cause ``client``, no reward), but EpisodeEnded is a normal end and stays inside.
    A block left without ``finish`` aborts too: a reward is never made by omission.
    """

    def __init__(self, scope: Scope, info: EpisodeInfo, kept: bool = False) -> None:
        self._scope = scope
        self.info = info
        #: Nothing was started by create: this is what is kept of the id, or was live already.
        self.kept = kept
        self.attempt = info.attempts[-1].n if info.attempts else 0
        # The next call's number, where this handle alone calls: it made the attempt.
        self._next: int | None = None if kept else 1
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy lets the daemon number its calls, for it is not alone.
        return Episode, (self._scope, self.info, True)

    def __repr__(self) -> str:
        return f"<Episode {self.run}/{self.id} attempt {self.attempt} {self.info.state}>"

    @property
    def transport(self) -> Transport:
        return self._scope.transport

    @property
    def run(self) -> str:
        return self.info.run

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def sample_seed(self) -> int:
        """The seed for sampling tokens."""
        return self.info.sample_seed

    @property
    def env_seed(self) -> int:
        return self.info.env_seed

    @property
    def end(self) -> End | None:
        """How the attempt ended, as far as this handle was told."""
        last = self.info.last
        return last.end if last else None

    @property
    def last(self) -> Attempt | None:
        return self.info.last

    @property
    def reward(self) -> float | None:
        return self.info.reward

    @property
    def valid(self) -> bool:
        return self.info.valid

    @property
    def _path(self) -> str:
        return f"/v1/runs/{segment(self.run)}/episodes/{segment(self.id)}"

    # Calls.

    async def exec(
        self,
        command: Command,
        *,
        stdin: Data | None = None,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        timeout: float | None = None,
        cpu: float | None = None,
        max_stdout: int | str | None = None,
        max_stderr: int | str | None = None,
        leftovers: str = "",
        weights: str = "",
        parallel: bool = False,
        pty: tuple[int, int] | None = None,
        seq: int = 0,
    ) -> CallResult:
        """Run a program: shell text (str) or an argv. How it ended is in the result.

        ``seq`` numbers the call, so that asking again gets the kept answer. Unset, calls are
        numbered from 1, and one whose connection breaks off is asked for once again.
        """
        return await self._call(
            _exec_spec(
                command,
                cwd,
                env,
                user,
                timeout,
                cpu,
                max_stdout,
                max_stderr,
                leftovers,
                weights,
                parallel,
                pty,
                seq,
            ),
            stdin,
        )

    async def stream(
        self,
        command: Command,
        *,
        stdin: Data | None = None,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        timeout: float | None = None,
        cpu: float | None = None,
        max_stdout: int | str | None = None,
        max_stderr: int | str | None = None,
        leftovers: str = "",
        weights: str = "",
        parallel: bool = False,
        pty: tuple[int, int] | None = None,
        seq: int = 0,
    ) -> CallStream:
        """The same as exec, with the output as it comes. stdin is sent first, up to about 45 MiB."""
        spec = _exec_spec(
            command,
            cwd,
            env,
            user,
            timeout,
            cpu,
            max_stdout,
            max_stderr,
            leftovers,
            weights,
            parallel,
            pty,
            seq,
        )
        spec["attempt"] = self.attempt
        if stdin is not None:
            # In JSON: the daemon has all of it before output comes, so neither side waits for the other.
            spec["stdin"] = base64.b64encode(_bytes(stdin, "stdin")).decode()
        body = _set(spec)

        async def send() -> CallStream:
            response = await self._request("POST", "/calls", json_body=body, accept=STREAM)
            return CallStream(self, response, body.get("seq", 0) if auto else 0)

        auto = not seq
        return await self._numbering(body, send)

    async def tool(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        weights: str = "",
        seq: int = 0,
    ) -> CallResult:
        """Make the call that a model asks for: a tool of the world, or one that every world has.

        Those are ``exec`` (``shell`` or ``argv``), ``read_file``, ``write_file``, ``list_dir``,
        ``stat`` and ``remove`` (``path``). A tool that is not there and arguments that do not
        fit are results with a fault, for the model to read.
        """
        spec: dict[str, Any] = {"tool": name, "timeout_s": timeout, "weights": weights, "seq": seq}
        try:
            if args is not None and not isinstance(args, Mapping):
                raise BadRequest("bad_request", f"args: want an object, got {type(args).__name__}")
            if name in BUILTIN:
                given = dict(args or {})
                if isinstance(given.get("content"), str):
                    given["content"] = base64.b64encode(_text(given["content"], "content")).decode()
                spec = {**given, **spec}
            else:
                spec["args"] = args
            return await self._call(spec)
        except BadRequest as e:
            kind = _MISTAKES.get(e.kind)
            if kind is None:
                raise
            return CallResult(attempt=self.attempt, tool=name, fault=CallFault(kind, detail=e.detail))

    async def session(
        self, *, cwd: str = "", user: str = "", env: Mapping[str, str] | None = None
    ) -> Session:
        """Open a shell session."""
        opened = await self._call({"tool": "session_open", "cwd": cwd, "user": user, "env": env})
        if opened.fault is not None:
            raise from_problem(
                {"kind": opened.fault.kind, "detail": f"session: {opened.fault.detail or opened.fault.path}"}
            )
        return Session(self, opened.session)

    # Files. What is wrong with a path is in the result's fault.

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        max: int | str | None = None,
        user: str = "",
    ) -> CallResult:
        """Read a file; ``data`` and ``text`` of the result are its content."""
        return await self._call(
            {"tool": "read_file", "path": path, "offset": offset, "max": max, "user": user}
        )

    async def write(self, path: str, data: Data, *, mode: int = 0, user: str = "") -> CallResult:
        """Write a file; its directory must be there."""
        spec = {"tool": "write_file", "path": path, "mode": mode, "user": user}
        return await self._call(spec, data, inline="content")

    async def list(self, path: str, *, user: str = "") -> CallResult:
        """List a directory: ``entries``, and ``more`` where there are too many."""
        return await self._call({"tool": "list_dir", "path": path, "user": user})

    async def stat(self, path: str, *, user: str = "") -> CallResult:
        """Look at a path: ``info``."""
        return await self._call({"tool": "stat", "path": path, "user": user})

    async def remove(self, path: str, *, user: str = "") -> CallResult:
        return await self._call({"tool": "remove", "path": path, "user": user})

    async def upload(self, tar: bytes | IO[bytes], path: str = "/", *, user: str = "") -> CallResult:
        """Unpack a tar (plain, gzip or zstd) under a directory."""
        answer = await self._json("PUT", "/archive", query=_archive(path, user), body=tar, media=TAR)
        return self._counted_result(decode(CallResult, answer))

    async def download(self, path: str, to: IO[bytes] | None = None, *, user: str = "") -> bytes | None:
        """A file or tree as a tar: into ``to``, else returned.

        None where there is no such path, or a part of the tree cannot be read.
        """
        try:
            response = await self._request("GET", "/archive", query=_archive(path, user))
        except NotFound as e:
            if e.field == "path":
                return None  # the agent's doing
            raise
        self._counted(self._next or 0)
        if to is None:
            return await response.read()
        await response.copy(to)
        return b""

    async def fork(self, n: int | Sequence[str]) -> tuple[Episode, ...]:
        """Episodes that go on from this live one's files, under ids of theirs or ``ID.f0`` on.

        They have its spec and environment seed, and sample seeds of their own. Processes are
        not taken along. Asked for again, the same ids are the same episodes.
        """
        ids = [f"{self.id}.f{i}" for i in range(n)] if isinstance(n, int) else list(n)
        answer = await self._json("POST", "/fork", json_body={"ids": ids, "attempt": self.attempt})
        return tuple(
            Episode(self._scope, decode(EpisodeInfo, e["episode"]), bool(e["kept"]))
            for e in answer["episodes"]
        )

    # The end.

    async def finish(self, answer: Any = None, payload: Any = None) -> EpisodeInfo:
        """End the attempt; where graders were given, it is scored when this returns.

        The payload is bytes, or an object of JSON, tuples and bytes; ``payload()`` gives it back.
        An answer that JSON cannot carry (a number that is not finite, a key twice, more than
        60 levels or 16 MiB) is none, and logged: an agent wrote it, and what an agent does
        never raises. Halves of surrogate pairs in a text are U+FFFD.
        """
        try:
            return await self._finish(answer, payload)
        except BadRequest as e:
            # A value of another type is the rollout's mistake, not the agent's.
            if answer is None or isinstance(e.__cause__, TypeError):
                raise
            if isinstance(answer, str):
                whole = answer.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                if whole != answer:
                    return await self.finish(whole, payload)
            info = await self._finish(None, payload)  # raises when it was not the answer
            _log.warning("episode %s: the answer is left out: %s", self.id, e)
            return info

    async def _finish(self, answer: Any, payload: Any) -> EpisodeInfo:
        head: dict[str, Any] = {"attempt": self.attempt}
        if answer is not None:
            head["answer"] = answer
        if payload is None:
            return await self._update("/finish", head)
        raw, text = encode_payload(payload), dumps(head)
        if len(text) > _MAX_HEADER:
            return await self._update("/finish", {**head, "payload": base64.b64encode(raw).decode()})
        options = {"body": raw, "media": BYTES, "headers": {"Paddock-Finish": text}}
        return self._learn(await self._json("POST", "/finish", **options))

    async def abort(self, reason: str = "") -> EpisodeInfo:
        """End the attempt because the client cannot go on: cause ``client``, no reward."""
        return await self._update("/abort", {"reason": reason})

    async def pause(self) -> EpisodeInfo:
        """Freeze the episode and its clocks."""
        return await self._update("/pause")

    async def resume(self) -> EpisodeInfo:
        return await self._update("/resume")

    async def keepalive(self) -> EpisodeInfo:
        """Renew a lease of kind ttl."""
        return await self._update("/keepalive")

    async def refresh(self) -> EpisodeInfo:
        """Look again; this renews no lease."""
        return self._learn(await self._json("GET", ""))

    async def wait(self) -> EpisodeInfo:
        """Wait until the episode is done: it has ended and is scored where graders were given."""
        pause = 0.005
        while (await self.refresh()).state != "done":
            await self.transport.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        return self.info

    async def delete(self) -> None:
        """End the episode and forget it."""
        await self._read("DELETE", "")

    async def score(self, *graders: GraderRef, attempt: int = 0) -> EpisodeInfo:
        """Score the kept end state; no agent runs."""
        return await self._update("/scores", {"attempt": attempt, "graders": graders_wire(graders)})

    async def write_reward(
        self,
        name: str,
        reward: float | None,
        *,
        metrics: Mapping[str, float] | None = None,
        attempt: int = 0,
    ) -> EpisodeInfo:
        """Write a reward that the client itself found (source ``client``)."""
        body = {"attempt": attempt, "name": name, "reward": reward, "metrics": dict(metrics or {})}
        return await self._update("/rewards", body)

    # What is kept.

    async def changes(self, *, attempt: int = 0) -> Capture:
        """What an ended attempt changed; attempt 0 is the last."""
        return decode(Capture, await self._json("GET", "/changes", query=_attempt(attempt)))

    async def trajectory(self, *, attempt: int = 0) -> tuple[Mapping[str, Any], ...]:
        """The calls of an attempt as they were recorded."""
        response = await self._request("GET", "/trajectory", query=_attempt(attempt))
        return tuple([line async for line in response.lines()])

    async def payload(self, *, attempt: int = 0) -> Any:
        """What finish was given: bytes, or the object."""
        return decode_payload(await self._read("GET", "/payload", query=_attempt(attempt)))

    # How.

    async def _request(self, method: str, path: str, **options: Any) -> Response:
        return await self._scope.request(method, self._path + path, **options)

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        return await (await self._request(method, path, **options)).json()

    async def _read(self, method: str, path: str, **options: Any) -> bytes:
        return await (await self._request(method, path, **options)).read()

    async def _update(self, path: str, body: Mapping[str, Any] | None = None) -> EpisodeInfo:
        return self._learn(await self._json("POST", path, json_body=body))

    def _learn(self, answer: Any) -> EpisodeInfo:
        self.info = decode(EpisodeInfo, answer)
        return self.info

    async def _call(
        self, spec: Mapping[str, Any], data: Data | None = None, inline: str = "stdin"
    ) -> CallResult:
        body = _set(spec)
        body["attempt"] = self.attempt
        raw = None if data is None else _bytes(data, inline)

        async def send() -> CallResult:
            return decode(
                CallResult, await self._json("POST", "/calls", accept=JSON, **_sent(body, raw, inline))
            )

        async def send_numbered() -> CallResult:
            try:
                result = await send()
            except Unavailable as e:
                if e.kind != "connection_lost":
                    raise
                return await send()  # under the same number: it is not done twice
            if result.kept:
                raise CallConflict("call_conflict", "another handle made this very call under this number")
            return result

        return self._counted_result(await self._numbering(body, send_numbered, send))

    async def _numbering(
        self,
        body: dict[str, Any],
        numbered: Callable[[], Awaitable[R]],
        unnumbered: Callable[[], Awaitable[R]] | None = None,
    ) -> R:
        """Number a call and make it. Where others call as well, the daemon numbers from then on."""
        unnumbered = unnumbered or numbered
        if "seq" in body or self._next is None or self._pid != os.getpid():
            return await unnumbered()
        body["seq"] = self._next
        self._next += 1
        try:
            return await numbered()
        except CallConflict as e:
            if e.kind != "call_conflict":
                raise
            self._next = None
            del body["seq"]
            return await unnumbered()
        except PaddockError:
            raise
        except BaseException:
            self._call_off(body["seq"])
            raise

    def _call_off(self, seq: int) -> None:
        """End a numbered call that nobody waits for: its connection alone does not."""
        if seq:
            body = {"attempt": self.attempt, "seq": seq}
            self._scope.last_word("POST", self._path + "/calls/cancel", body)

    def _counted(self, seq: int) -> None:
        if self._next is not None:
            self._next = max(self._next, seq + 1)

    def _counted_result(self, result: CallResult) -> CallResult:
        self._counted(result.seq)
        return result

    async def __aenter__(self) -> Episode:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(e, EpisodeEnded):
            await self.wait()
            return True
        if isinstance(e, PaddockError) and e.kind in _LOST:
            return False  # there is nothing to abort, or nobody to tell
        if self.end is None:
            try:
                await self.abort(
                    f"{type(e).__name__}: {e}"[:1000] if e is not None else "left without finish"
                )
            except PaddockError as failed:
                # It ended by itself meanwhile; otherwise the lease ends it, and e says more.
                if e is None and not isinstance(failed, EpisodeEnded):
                    raise
                if e is None:
                    await self.wait()
        return False


def _sent(body: Mapping[str, Any], raw: bytes | None, inline: str) -> dict[str, Any]:
    """How a call travels: its input in JSON, or raw with the rest in a header."""
    if raw is None:
        return {"json_body": body}
    if len(raw) >= _RAW_FROM:
        text = dumps(body)
        if len(text) <= _MAX_HEADER:
            return {"body": raw, "media": BYTES, "headers": {"Paddock-Call": text}}
    return {"json_body": {**body, inline: base64.b64encode(raw).decode()}}


_LOST = frozenset({"superseded", "fenced", "not_found", "episode_deleted", "unavailable", "connection_lost"})


def _exec_spec(
    command: Command,
    cwd: str,
    env: Mapping[str, str] | None,
    user: str,
    timeout: float | None,
    cpu: float | None,
    max_stdout: int | str | None,
    max_stderr: int | str | None,
    leftovers: str,
    weights: str,
    parallel: bool,
    pty: tuple[int, int] | None,
    seq: int,
) -> dict[str, Any]:
    return {
        "tool": "exec",
        **({"shell": command} if isinstance(command, str) else {"argv": _argv(command)}),
        "cwd": cwd,
        "env": dict(env) if env else None,
        "user": user,
        "timeout_s": timeout,
        "cpu_s": cpu,
        "max_stdout": max_stdout,
        "max_stderr": max_stderr,
        "leftovers": leftovers,
        "weights": weights,
        "parallel": parallel,
        "pty": {"rows": pty[0], "cols": pty[1]} if pty else None,
        "seq": seq,
    }


def _set(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are set."""
    return {k: v for k, v in spec.items() if v is not None and v != "" and v is not False and v != 0}


def _archive(path: str, user: str) -> dict[str, str]:
    return {"path": path, "user": user} if user else {"path": path}


def _attempt(n: int) -> dict[str, int]:
    return {"attempt": n} if n else {}


def _argv(command: Sequence[str]) -> list[str]:
    if isinstance(command, Sequence) and not isinstance(command, (bytes, bytearray)):
        words = [os.fspath(a) if isinstance(a, os.PathLike) else a for a in command]
        if all(isinstance(w, str) for w in words):
            return words
    raise BadRequest(
        "bad_request", f"command: want str or a sequence of str, got {command!r:.200}", field="/command"
    )
