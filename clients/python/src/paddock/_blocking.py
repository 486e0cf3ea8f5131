"""The transport of the synchronous face. Its coroutines never suspend."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from . import _http
from ._errors import PaddockError, Unavailable
from ._http import BLOCK, STREAM, Body, Explained

R = TypeVar("R")


def done(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine over a blocking transport: it ends in one step."""
    try:
        work.send(None)
    except StopIteration as e:
        result: R = e.value
        return result
    work.close()
    raise RuntimeError("a coroutine over a blocking transport was suspended")


def each(items: AsyncGenerator[R, None]) -> Iterator[R]:
    """The same of a generator."""

    async def one() -> R:
        return await items.__anext__()

    try:
        while True:
            try:
                item = done(one())
            except StopAsyncIteration:
                return
            yield item
    finally:
        done(items.aclose())


class Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("paddock")
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        self.sock = sock

    def open_socket(self) -> socket.socket | None:
        return self.sock

    def stale(self) -> bool:
        """The other side has closed it, or says something that nobody asked for."""
        if self.sock is None:
            return True
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


class Response(_http.Response):
    def __init__(self, transport: Transport, conn: Connection, raw: http.client.HTTPResponse) -> None:
        self._transport, self._conn, self._raw = transport, conn, raw
        self.media = (raw.getheader("Content-Type") or "").partition(";")[0].strip()

    async def block(self) -> bytes:
        with self._broken_off():
            b = self._raw.read1(BLOCK)
            # read1 does not say that a body of known length was cut off.
            if not b and self._raw.length:
                raise http.client.IncompleteRead(b"", self._raw.length)
        if not b:
            self._release()
        return b

    async def read(self) -> bytes:
        with self._broken_off():
            body = self._raw.read()
        self._release()
        return body

    @contextlib.contextmanager
    def _broken_off(self) -> Iterator[None]:
        try:
            with Explained():
                yield
        except BaseException:
            self.close()
            raise

    def first_line(self) -> Any:
        """The first value of a stream that is then held open."""
        with self._broken_off():
            line = self._raw.readline()
            try:
                return json.loads(line)
            except ValueError as e:
                raise Unavailable("connection_lost", "the stream ended before it began") from e

    def alive(self) -> bool:
        """Whether the other side still holds the connection of a stream open.

        What it has sent meanwhile, its signs of life, is dropped.
        """
        sock = self._conn.open_socket()
        if sock is None:
            return False
        try:
            while sock.recv(1 << 12, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        self._raw.close()
        self._conn.close()

    def _release(self) -> None:
        self._raw.close()
        if self._raw.will_close:
            self._conn.close()
        else:
            self._transport.put(self._conn)


class Transport(_http.Transport):
    def __init__(self, path: str) -> None:
        self.path = path
        self._mu = threading.Lock()
        self._idle: list[Connection] = []

    @staticmethod
    def at(path: str) -> Transport:
        """The process's transport for a socket."""
        with _all_mu:
            return _all.setdefault(path, Transport(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return Transport.at, (self.path,)

    def put(self, conn: Connection) -> None:
        with self._mu:
            self._idle.append(conn)

    def close(self) -> None:
        with self._mu:
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent."""
        self._mu = threading.Lock()
        self.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 # never in an event loop

    async def apart(self, work: Callable[[], R]) -> R:
        return work()

    def last_word(self, method: str, url: str, body: Mapping[str, Any], head: Mapping[str, str]) -> None:
        with contextlib.suppress(PaddockError):
            done(self.request(method, url, json_body=body, headers=head)).close()

    async def lease(self) -> str:
        from ._lease import lease_id

        return lease_id(self)

    def _take(self) -> Connection:
        while True:
            with self._mu:
                conn = self._idle.pop() if self._idle else None
            if conn is None:
                break
            if not conn.stale():
                return conn
            conn.close()
        conn = Connection(self.path)
        try:
            conn.connect()
        except OSError as e:
            raise _http.explain_connect(self.path, e) from e
        return conn

    async def once(self, method: str, url: str, body: Body, head: Mapping[str, str]) -> Response:
        conn = self._take()
        try:
            with Explained():
                # Broken where it was refused before all of the body was read: the answer says why.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    conn.request(method, url, body=body, headers=head)
                raw = conn.getresponse()
            response = Response(self, conn, raw)
            if 200 <= raw.status < 300:
                return response
            text = await response.read()
        except BaseException:
            conn.close()
            raise
        raise _http.problem(raw.status, text)

    def open_stream(self, method: str, path: str) -> Response:
        """A stream that is then held open."""
        return done(self.once(method, path, None, {"Accept": STREAM}))


_all_mu = threading.Lock()
_all: dict[str, Transport] = {}


def _after_fork_in_child() -> None:
    global _all_mu
    _all_mu = threading.Lock()
    for transport in _all.values():
        transport.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
