"""The connection to a simulator's environments, and its values as NumPy's."""

from __future__ import annotations

import base64
import binascii
import contextlib
import http.client
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from ._errors import BadRequest, PaddockError, Unavailable, from_problem
from ._http import JSON, Explained, dumps, explain_connect, problem, segment, socket_path
from ._types import End, decode

PROTOCOL = "paddock-envs/1"

# One value of a text that starts with it: what json.loads does besides is not needed for
# the daemon's own lines, of which there is one for each step of each environment.
_parse = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Ended:
    """How an environment's episode ended; ``reward`` is None where there is none to learn from."""

    end: End
    reward: float | None = None
    valid: bool = False


@dataclass(frozen=True)
class Fault:
    """Why nothing was done (``bad_action``, ``needs_reset``), or what the simulator did."""

    kind: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A state of an environment, which the daemon keeps; other processes may be given it.

    ``rollouts``, ``steps`` and ``reward`` are those of the way that led to the state, and
    an environment that is restored goes on with them. ``terminated`` or ``truncated``: the
    rollout was over, so a reset must be next.
    """

    id: str
    socket: str
    bytes: int = 0
    sha256: str = ""
    rollouts: int = 0
    steps: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    def drop(self) -> None:
        """Forget it. Environments that were restored from it go on."""
        ask(self.socket, "DELETE", f"/v1/snapshots/{segment(self.id)}")


def snapshot_of(found: Mapping[str, Any], socket: str) -> Snapshot:
    return Snapshot(
        id=found["id"],
        socket=socket,
        bytes=found["bytes"],
        sha256=found["sha256"],
        rollouts=found["rollouts"],
        steps=found["steps"],
        reward=float(found["return"]),
        terminated=found["terminated"],
        truncated=found["truncated"],
    )


class BadAction(BadRequest, ValueError):
    """The action is not one of the action space; the environment is as it was."""


class SnapshotRefused(BadRequest):
    """The environment is as it was. ``kind`` says why no snapshot was taken or restored.

    ``snapshot_unsupported``: the environment offers none; ``snapshot_too_large``: its state
    is beyond ``max_snapshot``; ``bad_snapshot``: its program does not know the state.
    """


def connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as e:
        sock.close()
        raise explain_connect(path, e) from e
    except BaseException:
        sock.close()
        raise
    return sock


def ask(path: str, method: str, url: str, body: Any = None) -> Any:
    """One request on a connection of its own."""
    conn = http.client.HTTPConnection("paddock")
    conn.sock = connect(path)
    try:
        with Explained():
            text = None if body is None else dumps(body)
            conn.request(method, url, body=text, headers={"Content-Type": JSON} if text else {})
            response = conn.getresponse()
            answer = response.read()
        if not 200 <= response.status < 300:
            raise problem(response.status, answer)
        return json.loads(answer) if answer else None
    finally:
        conn.close()


def recorded(
    path: str, run: str, id: str, attempt: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[bytes]]]:
    """The calls on record whose replies are kept whole: call, reply, raw parts."""
    url = f"/v1/runs/{segment(run)}/episodes/{segment(id)}/trajectory" + (
        f"?attempt={attempt}" if attempt else ""
    )
    conn = http.client.HTTPConnection("paddock")
    conn.sock = connect(path)
    try:
        with Explained():
            conn.request("GET", url)
            response = conn.getresponse()
        if response.status != 200:
            raise problem(response.status, response.read())
        while True:
            with Explained():
                line = response.readline()
            if not line:
                return
            found = json.loads(line)
            result = found["result"]
            head = base64.b64decode((result.get("stdout") or {}).get("head") or "")
            if not head:
                continue
            text, _, raw = head.partition(b"\n")
            try:
                reply = json.loads(text)
            except ValueError:
                continue  # another program's words
            frames = []
            for n in reply.get("frames") or () if isinstance(reply, dict) else ():
                frames.append(raw[:n])
                raw = raw[n:]
            if isinstance(reply, dict):
                yield found["call"], reply, frames
    finally:
        conn.close()


class Simulator:
    """A kind of environment that the daemon found to work, with sandboxes ready for it."""

    def __init__(self, spec: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> None:
        self.socket = socket_path(path)
        info = ask(self.socket, "POST", "/v1/simulators", dict(spec))
        self.id: str = info["id"]
        self.spec: dict[str, Any] = info["spec"]
        self.hello: dict[str, Any] = info["hello"]
        self.observation_space = space_of(self.hello["observation_space"])
        self.action_space = space_of(self.hello["action_space"])
        self.metadata: dict[str, Any] = dict(self.hello.get("metadata") or {})

    def made(self) -> int:
        """How many sandboxes are ready now."""
        return int(ask(self.socket, "GET", f"/v1/simulators/{segment(self.id)}")["made"])


class Envs:
    """One connection: lines go out, one answer for each comes back."""

    def __init__(self, simulator: Simulator) -> None:
        self._sock = connect(simulator.socket)
        self._in = self._sock.makefile("rb", buffering=1 << 18)
        self._mu = threading.Lock()
        self.pid = os.getpid()
        with Explained():
            head = (
                f"GET /v1/simulators/{segment(simulator.id)}/envs HTTP/1.1\r\nHost: paddock\r\n"
                f"Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n"
            )
            self._sock.sendall(head.encode())
            self._upgraded()

    def _upgraded(self) -> None:
        status = self._in.readline().split()
        headers = http.client.parse_headers(self._in)
        if len(status) < 2:
            raise Unavailable("connection_lost", "the daemon closed the connection")
        if status[1] != b"101":
            text = self._in.read(int(headers.get("Content-Length") or 0))
            self.close()
            raise problem(int(status[1]), text)

    def send(self, lines: Iterable[str]) -> None:
        with Explained():
            self._sock.sendall(("\n".join(lines) + "\n").encode())

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """The next answer, whosever it is, with its raw parts."""
        with Explained():
            line = self._in.readline()
            if not line.endswith(b"\n"):
                raise Unavailable("connection_lost", "the daemon closed the connection")
            reply: dict[str, Any] = _parse(str(line, "utf-8"))[0]
            frames = [self._in.read(n) for n in reply.get("frames") or ()]
        return reply, frames

    def ask(self, request: Mapping[str, Any] | str) -> tuple[dict[str, Any], list[bytes]]:
        """One request and its answer; a refused one raises."""
        with self._mu:
            self.send([request if isinstance(request, str) else dumps(request)])
            reply, frames = self.receive()
        refused(reply)
        return reply, frames

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()
            self._sock.close()


def refused(reply: Mapping[str, Any]) -> None:
    if reply.get("problem"):
        raise from_problem(reply["problem"])


def ended_of(reply: Mapping[str, Any]) -> Ended | None:
    found = reply.get("ended")
    if not found:
        return None
    reward = found.get("reward")
    return Ended(
        decode(End, found["end"]), None if reward is None else float(reward), bool(found.get("valid"))
    )


def fault_of(reply: Mapping[str, Any]) -> Fault | None:
    found = reply.get("fault")
    return decode(Fault, found) if found else None


def nothing_done(fault: Fault) -> BadRequest:
    """What is raised for a fault that left everything as it was."""
    return (SnapshotRefused if "snapshot" in fault.kind else BadAction)(fault.kind, fault.detail)


# Values. A decoder takes what JSON gave, and the message's raw parts.

Decoder = Callable[[Any, "list[bytes]"], Any]
Encoder = Callable[[Any], str]


def array_of(value: Mapping[str, Any], frames: list[bytes]) -> np.ndarray[Any, Any]:
    at = value.get("frame")
    data = binascii.a2b_base64(value["b64"]) if at is None else frames[at]
    return np.frombuffer(bytearray(data), dtype=value["$array"]).reshape(value["shape"])


def anything(value: Any, frames: list[bytes]) -> Any:
    """A value without a space: what infos hold."""
    if isinstance(value, dict):
        if "$array" in value:
            a = array_of(value, frames)
            return a[()] if a.shape == () else a
        if "$float" in value:
            return float(value["$float"])
        if "$repr" in value:
            return value["$repr"]
        return {k: v if type(v) is float else anything(v, frames) for k, v in value.items()}
    if isinstance(value, list):
        return [anything(v, frames) for v in value]
    return value


def decoder(space: spaces.Space[Any]) -> Decoder:
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return array_of
    if isinstance(space, spaces.Discrete):
        return lambda v, frames: np.int64(anything(v, frames))
    if isinstance(space, spaces.Dict):
        parts = {k: decoder(s) for k, s in space.spaces.items()}
        return lambda v, frames: {k: d(v[k], frames) for k, d in parts.items()}
    if isinstance(space, spaces.Tuple):
        items = [decoder(s) for s in space.spaces]
        return lambda v, frames: tuple(d(x, frames) for d, x in zip(items, v, strict=True))
    if isinstance(space, spaces.Sequence):
        one = decoder(space.feature_space)
        return lambda v, frames: tuple(one(x, frames) for x in v)
    return anything


def encode_array(a: np.ndarray[Any, Any]) -> str:
    kind = a.dtype.newbyteorder("<")
    data = base64.b64encode(a.astype(kind, copy=False).tobytes()).decode()
    return f'{{"$array":"{kind.str}","shape":{json.dumps(list(a.shape))},"b64":"{data}"}}'


def encode(value: Any) -> str:
    """An action as JSON. What is none of the space's is the daemon's to refuse."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf":
            return encode_array(value)
        return encode(value.tolist())
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else json.dumps({"$float": repr(value)})
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(str(k))}:{encode(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(encode(v) for v in value) + "]"
    try:
        return json.dumps(value)
    except TypeError as e:
        raise BadAction("bad_action", f"the action {value!r:.100} cannot be told in JSON") from e


def encoder(space: spaces.Space[Any]) -> Encoder:
    if isinstance(space, spaces.Box):
        dtype, shape = space.dtype, space.shape
        kind = dtype.newbyteorder("<")
        head = f'{{"$array":"{kind.str}","shape":{json.dumps(list(shape), separators=(",", ":"))},"b64":"'

        def box(value: Any) -> str:
            try:
                a = np.asarray(value, dtype=dtype)
            except (TypeError, ValueError):
                return encode(value)
            if a.shape != shape:
                return encode_array(a)
            data = binascii.b2a_base64(a.astype(kind, copy=False).tobytes(), newline=False)
            return f'{head}{data.decode()}"}}'

        return box
    return encode


def space_of(schema: Mapping[str, Any]) -> spaces.Space[Any]:
    """The space of a schema whose member ``space`` says which."""
    found = schema.get("space") or {}
    kind = found.get("type")
    if kind == "Discrete":
        return spaces.Discrete(int(found["n"]), start=int(found.get("start", 0)))
    if kind == "Box":
        dtype = np.dtype(found["dtype"])
        shape = tuple(found["shape"])
        low, high = (_bound(found[k], dtype, shape) for k in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "MultiDiscrete":
        nvec = anything(found["nvec"], [])
        start = anything(found["start"], []) if "start" in found else None
        return spaces.MultiDiscrete(nvec, dtype=np.dtype(found["dtype"]).type, start=start)
    if kind == "MultiBinary":
        return spaces.MultiBinary(found["n"])
    if kind == "Dict":
        names = found.get("order") or list(schema["properties"])
        return spaces.Dict({k: space_of(schema["properties"][k]) for k in names})
    if kind == "Tuple":
        return spaces.Tuple([space_of(s) for s in schema["prefixItems"]])
    if kind == "Text":
        return spaces.Text(found["max_length"], min_length=found["min_length"], charset=found["charset"])
    if kind == "Sequence":
        return spaces.Sequence(space_of(schema["items"]), stack=bool(found.get("stack")))
    if schema.get("type") == "integer" and "minimum" in schema and "maximum" in schema:
        low = int(schema["minimum"])
        return spaces.Discrete(int(schema["maximum"]) - low + 1, start=low)
    raise PaddockError("unknown_space", f"gymnasium has no space for {json.dumps(schema)[:256]}")


def _bound(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    if isinstance(value, dict) and "$array" in value:
        return array_of(value, [])
    return np.full(shape, anything(value, []), dtype=dtype)
