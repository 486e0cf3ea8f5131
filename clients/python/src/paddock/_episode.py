"""Handles on episodes: calls, files, sessions, end, scores."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from ._errors import EpisodeEnded, NotFound, PaddockError, Unavailable, from_problem
from ._http import BYTES, JSON, STREAM, TAR, Response, dumps, segment, sleep
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

# Beyond this, bytes travel raw and not as base64 in JSON.
_RAW_FROM = 64 << 10
# What fits into a header beside them.
_MAX_HEADER = 16 << 10


def _bytes(data: Data) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)


class CallStream:
    """A call whose output is iterated over as it comes; ``result`` is there at the end."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._lines = response.lines()
        self._result: CallResult | None = None

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        for event in self._lines:
            kind = event["type"]
            if kind == "result":
                self._result = decode(CallResult, event["result"])
            elif kind == "error":
                raise from_problem(event["error"])
            else:
                raw = event.get("b64")
                return Chunk(kind, event.get("text", "").encode() if raw is None else base64.b64decode(raw))
        if self._result is None:
            raise Unavailable("connection_lost", "the stream ended without a result")
        raise StopIteration

    @property
    def result(self) -> CallResult:
        """The call's result; reads what output is left."""
        while self._result is None:
            try:
                next(self)
            except StopIteration:
                break
        if self._result is None:
            raise Unavailable("connection_lost", "the stream was closed before its result")
        return self._result

    def close(self) -> None:
        """Break the call off."""
        self._lines.close() if hasattr(self._lines, "close") else None
        if self._result is None:
            self._response.close()

    def __enter__(self) -> CallStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """A shell that keeps its directory and variables from one input to the next."""

    def __init__(self, episode: Episode, name: str) -> None:
        self.episode = episode
        self.name = name

    def run(self, text: str, *, timeout: float | None = None, weights: str = "") -> CallResult:
        """Run shell text in the session."""
        return self.episode._call(
            {"tool": "session", "session": self.name, "shell": text, "timeout_s": timeout, "weights": weights}
        )

    def close(self) -> CallResult:
        return self.episode._call({"tool": "session_close", "session": self.name})

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, _: object) -> None:
        if not isinstance(e, PaddockError):
            with contextlib.suppress(EpisodeEnded):  # and the session with it
                self.close()


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

    def __reduce__(self) -> tuple[Any, ...]:
        return Episode, (self._scope, self.info, self.kept)

    def __repr__(self) -> str:
        return f"<Episode {self.run}/{self.id} attempt {self.attempt} {self.info.state}>"

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

    def exec(
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

        ``seq`` numbers the call, so that asking again gets the kept answer; unset, the daemon
        numbers it.
        """
        return self._call(
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

    def stream(
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
            spec["stdin"] = base64.b64encode(_bytes(stdin)).decode()
        return CallStream(self._request("POST", "/calls", json_body=_set(spec), accept=STREAM))

    def tool(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        weights: str = "",
        seq: int = 0,
    ) -> CallResult:
        """Call a tool of the world by name. One that it does not have is a result with a fault."""
        spec = {"tool": name, "args": args, "timeout_s": timeout, "weights": weights, "seq": seq}
        try:
            return self._call(spec)
        except PaddockError as e:
            if e.kind != "unknown_tool":
                raise
            # The model chose the name: what it does wrong is for it to read.
            return CallResult(
                attempt=self.attempt, tool=name, fault=CallFault("unknown_tool", detail=e.detail)
            )

    def session(self, *, cwd: str = "", user: str = "", env: Mapping[str, str] | None = None) -> Session:
        """Open a shell session."""
        opened = self._call({"tool": "session_open", "cwd": cwd, "user": user, "env": env})
        if opened.fault is not None:
            raise from_problem(
                {"kind": opened.fault.kind, "detail": f"session: {opened.fault.detail or opened.fault.path}"}
            )
        return Session(self, opened.session)

    # Files. What is wrong with a path is in the result's fault.

    def read(
        self,
        path: str,
        *,
        offset: int = 0,
        max: int | str | None = None,
        user: str = "",
    ) -> CallResult:
        """Read a file; ``data`` and ``text`` of the result are its content."""
        return self._call({"tool": "read_file", "path": path, "offset": offset, "max": max, "user": user})

    def write(self, path: str, data: Data, *, mode: int = 0, user: str = "") -> CallResult:
        """Write a file; its directory must be there."""
        spec = {"tool": "write_file", "path": path, "mode": mode, "user": user}
        return self._call(spec, data, inline="content")

    def list(self, path: str, *, user: str = "") -> CallResult:
        """List a directory: ``entries``, and ``more`` where there are too many."""
        return self._call({"tool": "list_dir", "path": path, "user": user})

    def stat(self, path: str, *, user: str = "") -> CallResult:
        """Look at a path: ``info``."""
        return self._call({"tool": "stat", "path": path, "user": user})

    def remove(self, path: str, *, user: str = "") -> CallResult:
        return self._call({"tool": "remove", "path": path, "user": user})

    def upload(self, tar: bytes | IO[bytes], path: str = "/", *, user: str = "") -> CallResult:
        """Unpack a tar (plain, gzip or zstd) under a directory."""
        answer = self._request("PUT", "/archive", query=_archive(path, user), body=tar, media=TAR).json()
        return decode(CallResult, answer)

    def download(self, path: str, to: IO[bytes] | None = None, *, user: str = "") -> bytes | None:
        """A file or tree as a tar: into ``to``, else returned. None where there is no such path."""
        try:
            response = self._request("GET", "/archive", query=_archive(path, user))
        except NotFound as e:
            if e.field == "path":
                return None  # the agent's doing
            raise
        if to is None:
            return response.read()
        response.copy(to)
        return b""

    # The end.

    def finish(self, answer: Any = None, payload: Any = None) -> EpisodeInfo:
        """End the attempt; where graders were given, it is scored when this returns.

        The payload is bytes, or an object of JSON, tuples and bytes; ``payload()`` gives it back.
        """
        head: dict[str, Any] = {"attempt": self.attempt}
        if answer is not None:
            head["answer"] = answer
        if payload is None:
            return self._update("/finish", head)
        raw, text = encode_payload(payload), dumps(head)
        if len(text) > _MAX_HEADER:
            return self._update("/finish", {**head, "payload": base64.b64encode(raw).decode()})
        response = self._request("POST", "/finish", body=raw, media=BYTES, headers={"Paddock-Finish": text})
        return self._learn(response.json())

    def abort(self, reason: str = "") -> EpisodeInfo:
        """End the attempt because the client cannot go on: cause ``client``, no reward."""
        return self._update("/abort", {"reason": reason})

    def pause(self) -> EpisodeInfo:
        """Freeze the episode and its clocks."""
        return self._update("/pause")

    def resume(self) -> EpisodeInfo:
        return self._update("/resume")

    def keepalive(self) -> EpisodeInfo:
        """Renew a lease of kind ttl."""
        return self._update("/keepalive")

    def refresh(self) -> EpisodeInfo:
        """Look again; this renews no lease."""
        return self._learn(self._request("GET", "").json())

    def wait(self) -> EpisodeInfo:
        """Wait until the episode is done: it has ended and is scored where graders were given."""
        pause = 0.005
        while self.refresh().state != "done":
            sleep(pause)
            pause = min(pause * 1.5, 0.5)
        return self.info

    def delete(self) -> None:
        """End the episode and forget it."""
        self._request("DELETE", "").read()

    def score(self, *graders: GraderRef, attempt: int = 0) -> EpisodeInfo:
        """Score the kept end state; no agent runs."""
        return self._update("/scores", {"attempt": attempt, "graders": graders_wire(graders)})

    def write_reward(
        self,
        name: str,
        reward: float | None,
        *,
        metrics: Mapping[str, float] | None = None,
        attempt: int = 0,
    ) -> EpisodeInfo:
        """Write a reward that the client itself found (source ``client``)."""
        body = {"attempt": attempt, "name": name, "reward": reward, "metrics": dict(metrics or {})}
        return self._update("/rewards", body)

    # What is kept.

    def changes(self, *, attempt: int = 0) -> Capture:
        """What an ended attempt changed; attempt 0 is the last."""
        return decode(Capture, self._request("GET", "/changes", query=_attempt(attempt)).json())

    def trajectory(self, *, attempt: int = 0) -> tuple[Mapping[str, Any], ...]:
        """The calls of an attempt as they were recorded."""
        return tuple(self._request("GET", "/trajectory", query=_attempt(attempt)).lines())

    def payload(self, *, attempt: int = 0) -> Any:
        """What finish was given: bytes, or the object."""
        return decode_payload(self._request("GET", "/payload", query=_attempt(attempt)).read())

    # How.

    def _request(self, method: str, path: str, **options: Any) -> Response:
        return self._scope.request(method, self._path + path, **options)

    def _update(self, path: str, body: Mapping[str, Any] | None = None) -> EpisodeInfo:
        return self._learn(self._request("POST", path, json_body=body).json())

    def _learn(self, answer: Any) -> EpisodeInfo:
        self.info = decode(EpisodeInfo, answer)
        return self.info

    def _call(self, spec: Mapping[str, Any], data: Data | None = None, inline: str = "stdin") -> CallResult:
        body = _set(spec)
        body["attempt"] = self.attempt
        options: dict[str, Any] = {"json_body": body}
        if data is not None:
            raw, text = _bytes(data), json.dumps(body, separators=(",", ":"))
            if len(raw) >= _RAW_FROM and len(text) <= _MAX_HEADER:
                options = {"body": raw, "media": BYTES, "headers": {"Paddock-Call": text}}
            else:
                body[inline] = base64.b64encode(raw).decode()
        return decode(CallResult, self._request("POST", "/calls", accept=JSON, **options).json())

    def __enter__(self) -> Episode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(e, EpisodeEnded):
            self.wait()
            return True
        if isinstance(e, PaddockError) and e.kind in _LOST:
            return False  # there is nothing to abort, or nobody to tell
        if self.end is None:
            try:
                self.abort(f"{type(e).__name__}: {e}"[:1000] if e is not None else "left without finish")
            except PaddockError as failed:
                # It ended by itself meanwhile; otherwise the lease ends it, and e says more.
                if e is None and not isinstance(failed, EpisodeEnded):
                    raise
                if e is None:
                    self.wait()
        return False


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
        **({"shell": command} if isinstance(command, str) else {"argv": [os.fspath(a) for a in command]}),
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
