"""HTTP to the daemon's unix socket: what the blocking and the asyncio transport share.

Everything above a transport is written once, as coroutines. The asyncio transport suspends
them; the blocking one never does, so the synchronous face runs each to its end in one step.

No read timeout and no bound on connections: deadlines are the daemon's. Connections are
kept for reuse and belong to one process; after a fork the child opens its own.
"""

from __future__ import annotations

import abc
import errno
import grp
import http.client
import json
import os
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlencode

from ._errors import PaddockError, Unavailable, from_problem

DEFAULT_SOCKET = "/run/paddock/paddock.sock"
SOCKET_ENV = "PADDOCK_SOCKET"
JSON = "application/json"
STREAM = "application/x-ndjson"
BYTES = "application/octet-stream"
TAR = "application/x-tar"
BLOCK = 1 << 18

Body = bytes | IO[bytes] | None
R = TypeVar("R")


def socket_path(path: str | os.PathLike[str] | None = None) -> str:
    """Where the daemon is: the argument, else PADDOCK_SOCKET, else the default."""
    return os.fspath(path) if path else os.environ.get(SOCKET_ENV) or DEFAULT_SOCKET


def segment(text: str) -> str:
    """Escape one segment of a path."""
    return quote(text, safe="")


def dumps(value: Any) -> str:
    """JSON in ASCII, so that it may travel in a header."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise from_problem({"kind": "bad_request", "detail": f"not JSON: {e}"}) from e


class Response(abc.ABC):
    """An answer that is a success. Read it whole or close it."""

    media: str

    @abc.abstractmethod
    async def block(self) -> bytes:
        """Some more of the body; empty at its end, where the connection is given back."""

    @abc.abstractmethod
    def close(self) -> None:
        """Break the connection off: what the daemon does for it may end."""

    async def read(self) -> bytes:
        blocks = []
        while b := await self.block():
            blocks.append(b)
        return b"".join(blocks)

    async def json(self) -> Any:
        body = await self.read()
        try:
            return json.loads(body) if body else None
        except ValueError as e:
            raise Unavailable("connection_lost", f"the answer is no JSON: {e}") from e

    async def lines(self) -> AsyncGenerator[Any, None]:
        """The JSON values of a stream, as they come. Left early, it breaks the stream off."""
        rest, ended = b"", False
        try:
            while b := await self.block():
                *whole, rest = (rest + b).split(b"\n")
                for line in whole:
                    if line.strip():  # an empty one is the daemon's sign of life
                        yield json.loads(line)
            if rest.strip():
                raise Unavailable("connection_lost", "the stream broke off in the middle of a line")
            ended = True
        finally:
            if not ended:
                self.close()

    async def copy(self, to: IO[bytes]) -> None:
        try:
            while b := await self.block():
                to.write(b)
        except BaseException:
            self.close()
            raise


class Transport(abc.ABC):
    """Requests to one socket, with a pool of idle connections."""

    path: str

    @abc.abstractmethod
    async def once(self, method: str, url: str, body: Body, head: Mapping[str, str]) -> Response:
        """Send one request and return an answer that is a success; others raise."""

    @abc.abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abc.abstractmethod
    async def apart(self, work: Callable[[], R]) -> R:
        """Do work that blocks, where it holds up nothing else."""

    @abc.abstractmethod
    def last_word(self, method: str, url: str, body: Mapping[str, Any], head: Mapping[str, str]) -> None:
        """Send a small request whose answer nobody waits for, also while a task is being cancelled."""

    @abc.abstractmethod
    async def lease(self) -> str:
        """This process's lease at the daemon."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close idle connections."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        json_body: Any = None,
        body: Body = None,
        media: str = "",
        headers: Mapping[str, str] | None = None,
        accept: str = "",
    ) -> Response:
        """One request. Where the host is full it waits: 429 is for clients that cannot."""
        head = dict(headers or {})
        if json_body is not None:
            body, media = dumps(json_body).encode(), JSON
        if media:
            head["Content-Type"] = media
        if accept:
            head["Accept"] = accept
        url = path + ("?" + urlencode(query) if query else "")
        while True:
            try:
                return await self.once(method, url, body, head)
            except Unavailable as e:
                if e.kind != "over_capacity" or not (body is None or isinstance(body, bytes)):
                    raise
                await self.sleep(min(max(e.retry_after, 0.05), 30.0) * random.uniform(0.75, 1.25))

    async def json(self, method: str, path: str, **options: Any) -> Any:
        return await (await self.request(method, path, **options)).json()


class Explained:
    """Makes errors of the connection Unavailable."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, (OSError, EOFError, http.client.HTTPException)):
            raise Unavailable(
                "connection_lost",
                f"the connection to the daemon broke off: {e or type(e).__name__}",
                hint="Ask again under the same id: what was done is not done twice.",
            ) from e


def problem(status: int, text: bytes) -> PaddockError:
    """The exception for an answer that is no success."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "kind" not in found:
        return Unavailable(
            "version", f"status {status} without a problem document: is it paddock that listens there?"
        )
    return from_problem(found, status)


def explain_connect(path: str, e: OSError) -> Unavailable:
    """What is wrong where nothing can be connected to."""
    if e.errno == errno.ENOENT:
        return Unavailable(
            "unavailable",
            f"there is no socket {path}",
            hint=f"Start the daemon with `paddock serve`, or name its socket by argument or {SOCKET_ENV}.",
        )
    if e.errno == errno.ECONNREFUSED:
        return Unavailable(
            "unavailable",
            f"nobody listens on {path}",
            hint="The daemon is not running; start it with `paddock serve`.",
        )
    if e.errno in (errno.EACCES, errno.EPERM):
        detail, hint = _explain_denied(path)
        return Unavailable("permission_denied", detail, hint=hint)
    return Unavailable("unavailable", f"socket {path}: {e.strerror or e}")


def _explain_denied(path: str) -> tuple[str, str]:
    detail = f"uid {os.getuid()} may not connect to {path}"
    try:
        gid = os.stat(path).st_gid
    except OSError:
        return (
            f"{detail}: its directory is closed to this user",
            "Run as root, or as a user who may enter the directory.",
        )
    if gid == 0:
        return (
            f"{detail}: only root may",
            "Run as root, or start the daemon with --socket-group GROUP and join that group.",
        )
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return (
        f"{detail}: only root and members of group {group} may",
        f"Join it with `usermod -aG {group} USER` and log in again, or run as root.",
    )
