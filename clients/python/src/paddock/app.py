"""Served apps: programs of worlds that many rollouts reach over HTTP.

    from paddock import app

    game = app.deploy(client, "game", world, port=8000, command=["python3", "/game/server.py"], replicas=3)
    with game.session() as s:  # one replica, with one state
        s.post("/start", json={"seed": 7})
        s.get("/board").json()
    game.remove()

A session's state is in its replica. When that is gone the session raises SessionLost, and never
goes on from an empty state: begin another, and the rollout with it.
"""

from __future__ import annotations

import http.client
import json as _json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _http
from ._blocking import Connection, done
from ._errors import from_problem
from ._http import Explained, segment
from ._sync import Client
from ._types import World

ERROR = "Paddock-Error"
SESSION = "Paddock-Session"


@dataclass(frozen=True)
class Answer:
    """What the app answered, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return _json.loads(self.body)


class Session:
    """One client's hold of one replica. Use it as a context, or close it."""

    def __init__(self, app: App, id: str, replica: str) -> None:
        self.app = app
        self.id = id
        self.replica = replica
        self._connection: Connection | None = None
        self._mutex = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request to the app. A status of the app's own never raises, what the daemon refuses does."""
        head = {SESSION: self.id, **(headers or {})}
        if json is not None:
            body, head["Content-Type"] = _http.dumps(json).encode(), _http.JSON
        with self._mutex, Explained():
            fresh = self._connection is None
            if self._connection is None:
                self._connection = Connection(self.app._client._core.transport.path)
            try:
                answer = self._once(method, path, body, head)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._drop()
                if fresh or method not in ("GET", "HEAD"):
                    raise
                # The daemon closed a connection that nobody had used for long.
                self._connection = Connection(self.app._client._core.transport.path)
                answer = self._once(method, path, body, head)
            except BaseException:
                self._drop()
                raise
        if ERROR in answer.headers:
            raise from_problem(answer.json(), answer.status)
        return answer

    def _once(self, method: str, path: str, body: bytes, head: Mapping[str, str]) -> Answer:
        assert self._connection is not None
        self._connection.request(
            method, self.app.url.rstrip("/") + path, body=body or None, headers=dict(head)
        )
        response = self._connection.getresponse()
        return Answer(response.status, dict(response.headers.items()), response.read())

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> Answer:
        return self.request("POST", path, **options)

    def close(self) -> None:
        """End the session, so that its replica need not wait for it."""
        with self._mutex:
            self._drop()
        self.app._json("DELETE", f"/sessions/{segment(self.id)}")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class App:
    """An app of the daemon's."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    @property
    def url(self) -> str:
        """Where the app is, below the daemon's address."""
        return f"/apps/{self.name}/"

    def _json(self, method: str, path: str = "", body: Any = None) -> Any:
        transport = self._client._core.transport
        return done(transport.json(method, f"/v1/apps/{segment(self.name)}{path}", json_body=body))

    def show(self) -> dict[str, Any]:
        """The app as it is now: state, replicas, sessions; the fields of GET /v1/apps/NAME."""
        found: dict[str, Any] = self._json("GET")
        return found

    def session(self) -> Session:
        """Begin a session; waits until a replica is ready."""
        made = self._json("POST", "/sessions")
        return Session(self, made["session"], made["replica"])

    def scale(self, replicas: int, **scale: Any) -> dict[str, Any]:
        """Have so many replicas; with ``max`` and ``target`` as many more as the load needs."""
        found: dict[str, Any] = self._json("POST", "/scale", {"min": replicas, **scale})
        return found

    def update(self, **changes: Any) -> dict[str, Any]:
        """Change fields of the spec. Replicas are replaced one after another; nothing is dropped."""
        spec = {**self.show()["spec"], **{k: _plain(v) for k, v in changes.items()}}
        found: dict[str, Any] = self._json("PUT", "", spec)
        return found

    def remove(self) -> None:
        """Stop the app and forget it."""
        self._json("DELETE")


def deploy(
    client: Client,
    name: str,
    world: World | str,
    *,
    port: int,
    command: Sequence[str] = (),
    replicas: int = 1,
    **spec: Any,
) -> App:
    """Serve a program of a world. ``spec`` has further fields of POST /v1/apps.

    The same app again changes nothing; another one of that name raises SpecConflict.
    """
    scale = {"min": replicas, **spec.pop("scale", {})}
    body = {
        "name": name,
        "world": _plain(world),
        "port": port,
        "command": list(command),
        "scale": scale,
        **spec,
    }
    done(client._core.transport.json("POST", "/v1/apps", json_body=body))
    return App(client, name)


def _plain(value: Any) -> Any:
    return value.id if isinstance(value, World) else value


def apps(client: Client) -> list[dict[str, Any]]:
    """All apps of this user."""
    found: list[dict[str, Any]] = done(client._core.transport.json("GET", "/v1/apps"))["apps"]
    return found
