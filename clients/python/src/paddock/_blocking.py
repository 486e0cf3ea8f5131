"""HTTP over the daemon's unix socket.

No read timeout and no bound on connections: deadlines are the daemon's. Connections are
kept for reuse and belong to one process; after a fork the child opens its own.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import grp
import http.client
import json
import os
import random
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any
from urllib.parse import quote, urlencode

from ._errors import PaddockError, Unavailable, from_problem

DEFAULT_SOCKET = "/run/paddock/paddock.sock"
SOCKET_ENV = "PADDOCK_SOCKET"
JSON = "application/json"
STREAM = "application/x-ndjson"
BYTES = "application/octet-stream"
TAR = "application/x-tar"

Body = bytes | IO[bytes] | None


def socket_path(path: str | os.PathLike[str] | None = None) -> str:
    """Where the daemon is: the argument, else PADDOCK_SOCKET, else the default."""
    return os.fspath(path) if path else os.environ.get(SOCKET_ENV) or DEFAULT_SOCKET


def segment(text: str) -> str:
    """Escape one segment of a path."""
    return quote(text, safe="")


class Abort:
    """Breaks off the requests of one thread of work from another thread."""

    def __init__(self) -> None:
        self._mu = threading.Lock()
        self._sock: socket.socket | None = None
        self.done = threading.Event()

    def hold(self, sock: socket.socket | None) -> None:
        with self._mu:
            self._sock = sock
            if sock is not None and self.done.is_set():
                _shutdown(sock)

    def abort(self) -> None:
        with self._mu:
            self.done.set()
            if self._sock is not None:
                _shutdown(self._sock)


def _shutdown(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        sock.shutdown(socket.SHUT_RDWR)


current_abort: contextvars.ContextVar[Abort | None] = contextvars.ContextVar("paddock_abort", default=None)


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


class Response:
    """An answer that is a success. Read it whole or close it."""

    def __init__(self, transport: Transport, conn: Connection, raw: http.client.HTTPResponse) -> None:
        self._transport, self._conn, self._raw = transport, conn, raw
        self.status = raw.status
        self.media = (raw.getheader("Content-Type") or "").partition(";")[0].strip()

    def read(self) -> bytes:
        try:
            with self._transport.explained():
                body = self._raw.read()
        except BaseException:
            self.close()
            raise
        self._release()
        return body

    def json(self) -> Any:
        body = self.read()
        try:
            return json.loads(body) if body else None
        except ValueError as e:
            raise Unavailable("connection_lost", f"the answer is no JSON: {e}") from e

    def lines(self) -> Iterator[Any]:
        """The JSON values of a stream, as they come."""
        try:
            while True:
                with self._transport.explained():
                    line = self._raw.readline()
                if not line:
                    break
                if not line.strip():
                    continue  # the daemon's sign of life
                if not line.endswith(b"\n"):
                    raise Unavailable("connection_lost", "the stream broke off in the middle of a line")
                yield json.loads(line)
        except BaseException:
            self.close()
            raise
        self._release()

    def first_line(self) -> Any:
        """The first value of a stream that is then held open."""
        try:
            with self._transport.explained():
                line = self._raw.readline()
            return json.loads(line)
        except ValueError as e:
            self.close()
            raise Unavailable("connection_lost", "the stream ended before it began") from e
        except BaseException:
            self.close()
            raise

    def copy(self, to: IO[bytes]) -> None:
        try:
            while True:
                with self._transport.explained():
                    block = self._raw.read(1 << 18)
                if not block:
                    break
                to.write(block)
        except BaseException:
            self.close()
            raise
        self._release()

    def alive(self) -> bool:
        """Whether the other side still holds the connection of a stream open."""
        sock = self._conn.open_socket()
        if sock is None:
            return False
        try:
            return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Break the connection off: what the daemon does for it may end."""
        self._transport.letgo()
        self._raw.close()
        self._conn.close()

    def _release(self) -> None:
        self._transport.letgo()
        self._raw.close()  # readline leaves a body of known length open at its end
        if self._raw.will_close:
            self._conn.close()
        else:
            self._transport.put(self._conn)


class _Explained:
    """Makes errors of the connection Unavailable."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, (OSError, http.client.HTTPException)):
            raise Unavailable(
                "connection_lost",
                f"the connection to the daemon broke off: {e or type(e).__name__}",
                hint="Ask again under the same id: what was done is not done twice.",
            ) from e


class Transport:
    """Requests to one socket, with a pool of idle connections."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._mu = threading.Lock()
        self._idle: list[Connection] = []

    @staticmethod
    def at(path: str) -> Transport:
        """The process's transport for a socket."""
        with _all_mu:
            return _all.setdefault(path, Transport(path))

    def explained(self) -> _Explained:
        return _Explained()

    def letgo(self) -> None:
        abort = current_abort.get()
        if abort is not None:
            abort.hold(None)

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
            raise _explain_connect(self.path, e) from e
        return conn

    def request(
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
        """Send a request and return an answer that is a success; others raise.

        Where the host is full it waits: 429 is for clients that cannot.
        """
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
                return self._once(method, url, body, head)
            except Unavailable as e:
                if e.kind != "over_capacity" or not (body is None or isinstance(body, bytes)):
                    raise
                sleep(min(max(e.retry_after, 0.05), 30.0) * random.uniform(0.75, 1.25))

    def _once(self, method: str, url: str, body: Body, head: dict[str, str]) -> Response:
        conn = self._take()
        abort = current_abort.get()
        if abort is not None:
            abort.hold(conn.open_socket())
        try:
            with self.explained():
                # Broken where it was refused before all of the body was read: the answer says why.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    conn.request(method, url, body=body, headers=head)
                raw = conn.getresponse()
            response = Response(self, conn, raw)
            if 200 <= raw.status < 300:
                return response
            text = response.read()
        except BaseException:
            self.letgo()
            conn.close()
            raise
        raise _problem(raw.status, text)

    def json(self, method: str, path: str, **options: Any) -> Any:
        return self.request(method, path, **options).json()


def dumps(value: Any) -> str:
    """JSON in ASCII, so that it may travel in a header."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError as e:
        raise from_problem({"kind": "bad_request", "detail": f"not JSON: {e}"}) from e


def _problem(status: int, text: bytes) -> PaddockError:
    try:
        problem = json.loads(text)
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "kind" not in problem:
        return Unavailable(
            "version", f"status {status} without a problem document: is it paddock that listens there?"
        )
    return from_problem(problem, status)


def sleep(seconds: float) -> None:
    """Sleep, unless the work is aborted meanwhile."""
    abort = current_abort.get() or Abort()
    if abort.done.wait(seconds):
        raise Unavailable("connection_lost", "cancelled")


def _explain_connect(path: str, e: OSError) -> Unavailable:
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


_all_mu = threading.Lock()
_all: dict[str, Transport] = {}


def _after_fork_in_child() -> None:
    global _all_mu
    _all_mu = threading.Lock()
    for transport in _all.values():
        transport.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
