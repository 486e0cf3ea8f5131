"""The transport of asyncio: one connection for each request that is in flight.

Cancelling a task closes its connection, and the daemon ends the call. Connections belong
to the event loop that opened them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import _blocking, _http
from ._http import BLOCK, Body, Explained
from ._lease import held_lease, lease_id

R = TypeVar("R")

# A head's bound; bodies have none.
_HEAD = 1 << 20


class Connection:
    """One HTTP/1.1 connection, used by one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._left = 0
        self._chunked = self._to_end = False
        self.keep = True

    def stale(self) -> bool:
        """The other side has closed it."""
        return self._reader.at_eof() or self._writer.is_closing()

    def abort(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # its event loop is closed, and it with it
            self._writer.close()

    async def send(self, method: str, url: str, body: Body, head: Mapping[str, str]) -> None:
        lines = [f"{method} {url} HTTP/1.1", "Host: paddock", *(f"{k}: {v}" for k, v in head.items())]
        if body is None or isinstance(body, bytes):
            lines.append(f"Content-Length: {len(body or b'')}")
        else:
            lines.append("Transfer-Encoding: chunked")
        text = "\r\n".join(lines)
        self._writer.write((text + "\r\n\r\n").encode("latin-1"))
        if isinstance(body, bytes):
            self._writer.write(body)
        elif body is not None:
            while b := body.read(BLOCK):
                self._writer.write(b"%x\r\n%b\r\n" % (len(b), b))
                await self._writer.drain()
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the header of the answer."""
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as e:
            raise EOFError("no answer came") from e
        first, *rest = raw.decode("latin-1").split("\r\n")
        header = {}
        for line in rest:
            name, _, value = line.partition(":")
            header[name.strip().lower()] = value.strip()
        try:
            status = int(first.split(" ", 2)[1])
            self._left = int(header.get("content-length", 0))
        except (ValueError, IndexError) as e:
            raise EOFError(f"the answer is no HTTP: {first[:100]!r}") from e
        self._chunked = header.get("transfer-encoding", "").lower() == "chunked"
        empty = status in (204, 304)
        self._to_end = not (empty or self._chunked or "content-length" in header)
        self.keep = not self._to_end and header.get("connection", "").lower() != "close"
        return status, header

    async def block(self) -> bytes:
        """Some more of the body; empty at its end."""
        if self._to_end:
            return await self._reader.read(BLOCK)
        if self._chunked and not self._left and not await self._next_chunk():
            return b""
        if not self._left:
            return b""
        b = await self._reader.read(min(self._left, BLOCK))
        if not b:
            raise EOFError(f"{self._left} bytes of the answer are missing")
        self._left -= len(b)
        if self._chunked and not self._left:
            await self._line()
        return b

    async def _next_chunk(self) -> bool:
        text = (await self._line()).partition(b";")[0]
        try:
            self._left = int(text, 16)
        except ValueError as e:
            raise EOFError(f"the answer is no HTTP: chunk {text[:100]!r}") from e
        if self._left:
            return True
        while await self._line():
            pass  # trailers
        self._chunked = False
        return False

    async def _line(self) -> bytes:
        try:
            return (await self._reader.readuntil(b"\r\n"))[:-2]
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as e:
            raise EOFError("the answer broke off") from e


class Response(_http.Response):
    def __init__(self, transport: Transport, conn: Connection, header: Mapping[str, str]) -> None:
        self._transport, self._conn = transport, conn
        self.media = header.get("content-type", "").partition(";")[0].strip()

    async def block(self) -> bytes:
        try:
            with Explained():
                b = await self._conn.block()
        except BaseException:
            self.close()
            raise
        if not b:
            self._transport.put(self._conn)
        return b

    def close(self) -> None:
        self._conn.abort()


class _Turns:
    """Lets a few requests go on in each pass of an event loop.

    Hundreds of answers that come at once would else be decoded in one pass, during which
    nothing else of the loop moves.
    """

    _OF_A_PASS = 4

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._left = self._OF_A_PASS
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._scheduled = False

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._pass)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _pass(self) -> None:
        self._left = self._OF_A_PASS
        while self._left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled meanwhile
                turn.set_result(None)
                self._left -= 1
        loop = self._loop()
        self._scheduled = loop is not None and self._left < self._OF_A_PASS
        if loop is not None and self._scheduled:
            loop.call_soon(self._pass)


class Transport(_http.Transport):
    def __init__(self, path: str) -> None:
        self.path = path
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]
        self._turns = weakref.WeakKeyDictionary()
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Connection]]
        self._idle = weakref.WeakKeyDictionary()

    @staticmethod
    def at(path: str) -> Transport:
        """The process's transport for a socket."""
        with _all_mu:
            return _all.setdefault(path, Transport(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return Transport.at, (self.path,)

    def put(self, conn: Connection) -> None:
        if conn.keep and not conn.stale():
            self._idle.setdefault(asyncio.get_running_loop(), []).append(conn)
        else:
            conn.close()

    def close(self) -> None:
        """Close this event loop's idle connections."""
        for conn in self._idle.pop(asyncio.get_running_loop(), []):
            conn.close()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def apart(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    def last_word(self, method: str, url: str, body: Mapping[str, Any], head: Mapping[str, str]) -> None:
        # In a thread: a task would itself be cancelled where the event loop is about to end.
        blocking = _blocking.Transport.at(self.path)
        asyncio.get_running_loop().run_in_executor(None, blocking.last_word, method, url, body, head)

    async def lease(self) -> str:
        blocking = _blocking.Transport.at(self.path)
        held = held_lease(blocking)
        return held if held else await self.apart(functools.partial(lease_id, blocking))

    async def _take(self) -> Connection:
        idle = self._idle.get(asyncio.get_running_loop(), [])
        while idle:
            conn = idle.pop()
            if not conn.stale():
                return conn
            conn.close()
        try:
            reader, writer = await asyncio.open_unix_connection(self.path, limit=_HEAD)
        except OSError as e:
            raise _http.explain_connect(self.path, e) from e
        return Connection(reader, writer)

    def _turns_here(self) -> _Turns:
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            turns = self._turns[loop] = _Turns(loop)
        return turns

    async def once(self, method: str, url: str, body: Body, head: Mapping[str, str]) -> Response:
        turns = self._turns_here()
        await turns.take()
        conn = await self._take()
        try:
            with Explained():
                # Broken where it was refused before all of the body was read: the answer says why.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    await conn.send(method, url, body, head)
                status, header = await conn.head()
            await turns.take()
            response = Response(self, conn, header)
            if 200 <= status < 300:
                return response
            text = await response.read()
        except BaseException:
            conn.abort()
            raise
        raise _http.problem(status, text)


_all_mu = threading.Lock()
_all: dict[str, Transport] = {}
_left_to_the_parent: list[Transport] = []


def _after_fork_in_child() -> None:
    # Closing them here would take them out of the parent's epoll: they are kept, unused.
    global _all_mu
    _all_mu = threading.Lock()
    _left_to_the_parent.extend(_all.values())
    for path in list(_all):
        _all[path] = Transport(path)


os.register_at_fork(after_in_child=_after_fork_in_child)
