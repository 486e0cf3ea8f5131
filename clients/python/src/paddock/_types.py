"""Results and requests as frozen dataclasses, and how they are read from JSON.

Names are the daemon's, but for output: ``stdout`` is text, ``stdout_raw`` its bytes and
``stdout_size`` the whole stream's length. Times are aware datetimes, durations seconds.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T")


def _wire(name: str, default: Any = "") -> Any:
    """A field that has another name on the wire."""
    return field(default=default, metadata={"wire": name})


@dataclass(frozen=True)
class Version:
    version: str = ""
    api: str = ""
    pid: int = 0
    uptime_s: float = 0.0
    launcher: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Capacity:
    """What episodes may reserve of the host, and what they have."""

    cpus: float = 0.0
    memory_bytes: int = 0
    used_cpus: float = 0.0
    used_memory_bytes: int = 0
    queued: int = 0
    max_queue: int = 0
    live: int = 0
    draining: bool = False


@dataclass(frozen=True)
class RunInfo:
    name: str = ""
    owner: str = ""
    seed: int = 0
    generation: int = 0
    created: datetime | None = None


@dataclass(frozen=True)
class LimitHit:
    """A bound that fired."""

    name: str = ""
    value: float = 0.0
    measured: float = 0.0


@dataclass(frozen=True)
class End:
    """How the agent's phase ended: ``status`` is what happened, ``cause`` who made it so."""

    status: str = ""
    cause: str = ""
    step: str = ""
    limit: LimitHit | None = None
    evidence: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Difference:
    """One value that differs from what is kept."""

    pointer: str = ""
    old: Any = None
    new: Any = None


@dataclass(frozen=True)
class Score:
    """What one grader said about one end state; ``reward`` is None where it gave none."""

    grader: str = ""
    status: str = ""
    cause: str = ""
    step: str = ""
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    evidence: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    source: str = ""
    weight: float = 0.0
    tries: int = 0
    seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Digests:
    """Each compared alone."""

    start: str = ""
    actions: str = ""
    observations: str = ""
    state: str = ""
    state_full: str = ""


@dataclass(frozen=True)
class Clocks:
    """Seconds per clock."""

    queue_s: float = 0.0
    start_s: float = 0.0
    setup_s: float = 0.0
    agent_s: float = 0.0
    wall_s: float = 0.0
    paused_s: float = 0.0
    end_s: float = 0.0
    score_s: float = 0.0


@dataclass(frozen=True)
class Usage:
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_peak_bytes: int = 0
    run_delay_s: float = 0.0


@dataclass(frozen=True)
class CaptureSummary:
    changes: int = 0
    bytes: int = 0
    stored: int = 0
    rescorable: bool = False
    truncated: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class PayloadSummary:
    bytes: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class Attempt:
    """One try at an episode; ``end`` is None while it is live."""

    n: int = 0
    state: str = ""
    generation: int = 0
    spec_digest: str = ""
    sample_seed: int = 0
    end: End | None = None
    scores: tuple[Score, ...] = ()
    reward: float | None = None
    valid: bool = False
    superseded: bool = False
    digests: Digests = Digests()
    clocks: Clocks = Clocks()
    usage: Usage = Usage()
    calls: int = 0
    output_bytes: int = 0
    capture: CaptureSummary | None = None
    answer: Any = None
    payload: PayloadSummary | None = None
    created: datetime | None = None
    ready: datetime | None = None
    ended_at: datetime | None = None
    done_at: datetime | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeaseState:
    kind: str = ""
    deadline: datetime | None = None


@dataclass(frozen=True)
class EpisodeInfo:
    """An episode with all its attempts, as it was when asked."""

    owner: str = ""
    run: str = ""
    id: str = ""
    group: str = ""
    task: str = ""
    weights: str = ""
    world: str = ""
    policy: str = ""
    policy_hash: str = ""
    spec_digest: str = ""
    effective: Mapping[str, Any] = field(default_factory=dict)
    clamped: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    env_seed: int = 0
    sample_seed: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    input: Any = None
    state: str = ""
    queue_position: int = 0
    lease: LeaseState = LeaseState()
    attempts: tuple[Attempt, ...] = ()
    reward: float | None = None
    valid: bool = False

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def end(self) -> End | None:
        """How the last attempt ended, None while it is live."""
        return self.attempts[-1].end if self.attempts else None


@dataclass(frozen=True)
class FileInfo:
    name: str = ""
    name_raw: bytes | None = _wire("name_b64", None)
    type: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime: datetime | None = None
    target: str = ""
    target_raw: bytes | None = _wire("target_b64", None)


@dataclass(frozen=True)
class CallFault:
    """Why a call did nothing, or ended without an exit; ``kind`` is stable."""

    kind: str = ""
    path: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Changed:
    """One path that a call changed."""

    path: str = ""
    path_raw: bytes | None = _wire("path_b64", None)
    kind: str = ""
    type: str = ""
    size: int = 0


@dataclass(frozen=True)
class CallResult:
    """The answer to one call. A missing exit code is None: the program did not exit by itself."""

    seq: int = 0
    attempt: int = 0
    tool: str = ""
    exit_code: int | None = None
    signal: int = 0
    fault: CallFault | None = None
    timed_out: bool = False
    cpu_timed_out: bool = False
    oom: bool = False
    pids_limit: bool = False
    output_held: bool = False
    leftover: int = 0
    limit: LimitHit | None = None
    stdout: str = ""
    stdout_b64: bytes | None = field(default=None, repr=False)
    stdout_tail: str = ""
    stdout_tail_b64: bytes | None = field(default=None, repr=False)
    stdout_size: int = _wire("stdout_bytes", 0)
    stdout_dropped: int = 0
    stdout_sha256: str = field(default="", repr=False)
    stderr: str = ""
    stderr_b64: bytes | None = field(default=None, repr=False)
    stderr_tail: str = ""
    stderr_tail_b64: bytes | None = field(default=None, repr=False)
    stderr_size: int = _wire("stderr_bytes", 0)
    stderr_dropped: int = 0
    stderr_sha256: str = field(default="", repr=False)
    info: FileInfo | None = None
    entries: tuple[FileInfo, ...] = ()
    more: bool = False
    count: int = 0
    session: str = ""
    usage: Usage = field(default=Usage(), repr=False)
    changes: tuple[Changed, ...] = ()
    more_changes: bool = False
    hints: tuple[str, ...] = ()
    started: datetime | None = field(default=None, repr=False)
    took_s: float = 0.0
    kept: bool = False
    end: End | None = None

    @property
    def ok(self) -> bool:
        """The program exited 0, or the call, where it runs no program, did its work."""
        if self.fault is not None or self.timed_out or self.cpu_timed_out or self.signal or self.oom:
            return False
        return self.exit_code == 0 or (self.exit_code is None and self.tool in _PROGRAMLESS)

    @property
    def stdout_raw(self) -> bytes:
        """The beginning of stdout as it was written: all of it unless ``stdout_dropped``."""
        return self.stdout.encode() if self.stdout_b64 is None else self.stdout_b64

    @property
    def stderr_raw(self) -> bytes:
        return self.stderr.encode() if self.stderr_b64 is None else self.stderr_b64

    @property
    def data(self) -> bytes:
        """What ``read`` read."""
        return self.stdout_raw

    @property
    def text(self) -> str:
        """What a model is shown: stdout, then stderr, with marks where something was dropped."""
        parts = [
            self.stdout,
            f"\n[{self.stdout_dropped} bytes left out]\n{self.stdout_tail}" if self.stdout_dropped else "",
            self.stderr,
            f"\n[{self.stderr_dropped} bytes left out]\n{self.stderr_tail}" if self.stderr_dropped else "",
        ]
        if self.fault is not None:
            parts.append(": ".join(p for p in (self.fault.path, self.fault.detail or self.fault.kind) if p))
        return "".join(parts)


_PROGRAMLESS = frozenset(
    {"read_file", "write_file", "list_dir", "stat", "remove", "upload", "download", "session_close"}
)


@dataclass(frozen=True)
class Chunk:
    """Output as it comes; ``stream`` is stdout or stderr."""

    stream: str
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Change:
    """One path that differs from the world."""

    path: str = ""
    path_raw: bytes | None = _wire("path_b64", None)
    kind: str = ""
    type: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""
    opaque: bool = False
    linked_to: str = ""
    rdev: int = 0
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Capture:
    """What an attempt changed."""

    changes: tuple[Change, ...] = ()
    state: str = ""
    state_full: str = ""
    bytes: int = 0
    stored: int = 0
    rescorable: bool = False
    truncated: bool = False
    took_s: float = 0.0


@dataclass(frozen=True)
class Tool:
    """A command that an agent may call by name; its arguments arrive as JSON on stdin."""

    name: str = ""
    command: tuple[str, ...] = ()
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    timeout_s: float = 0.0


@dataclass(frozen=True)
class WorldConfig:
    env: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    setup: tuple[str, ...] = ()


@dataclass(frozen=True)
class World:
    """A sealed, immutable image."""

    id: str = ""
    layers: tuple[str, ...] = ()
    config: WorldConfig = WorldConfig()
    names: tuple[str, ...] = ()
    size_bytes: int = 0
    entries: int = 0
    recipe: str = ""
    key: str = ""
    created: datetime | None = None


@dataclass(frozen=True)
class Built:
    """The answer to a build; ``hit``: the cache had it."""

    world: World = World()
    hit: bool = False
    network: bool = False
    took_s: float = 0.0


@dataclass(frozen=True)
class Progress:
    step: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Grader:
    """A grader by its digest, with its weight in the reward (the first of a list weighs 1)."""

    digest: str
    weight: float | None = None

    def weighing(self, weight: float) -> Grader:
        return Grader(self.digest, weight)


@dataclass(frozen=True)
class Call:
    """One call of a batch's agent: shell text or argv, or another tool with its fields."""

    command: str | Sequence[str] = ""
    tool: str = "exec"
    options: Mapping[str, Any] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        out: dict[str, Any] = {"tool": self.tool, **self.options}
        if self.command:
            out["shell" if isinstance(self.command, str) else "argv"] = (
                self.command if isinstance(self.command, str) else list(self.command)
            )
        return out


@dataclass(frozen=True)
class Agent:
    """Who acts in an episode of a batch: exactly one of calls, command, host, client."""

    calls: Sequence[Call | str] = ()
    command: Call | str | None = None
    host: Sequence[str] = ()
    client: bool = False
    answer: Any = None

    def wire(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self.calls:
            out["calls"] = [_call(c) for c in self.calls]
        if self.command is not None:
            out["command"] = _call(self.command)
        if self.client:
            out["client"] = True
        if self.host:
            out["host"] = list(self.host)
        if self.answer is not None:
            out["answer"] = self.answer
        return out


def _call(call: Call | str) -> dict[str, Any]:
    return (Call(call) if isinstance(call, str) else call).wire()


WorldRef = World | Built | str
GraderRef = Grader | str


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """What an episode shall be. Unset fields are left to the daemon's defaults."""

    world: WorldRef
    id: str = ""
    group: str = ""
    task: str = ""
    weights: str = ""
    input: Any = None
    policy: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    requests: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    endpoints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    leftovers: str = ""
    tools: Sequence[Tool] = ()
    graders: Sequence[GraderRef] = ()
    env_seed: int | None = None
    sample_seed: int | None = None
    retry_seed: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    retries: int | None = None
    priority: int | None = None
    on_conflict: str = ""
    attempt: str = ""
    agent: Agent | None = None

    def wire(self) -> dict[str, Any]:
        out = {k: v for k, v in vars(self).items() if not _is_unset(v)}
        out["world"] = world_ref(self.world)
        if self.tools:
            out["tools"] = [tool_wire(t) for t in self.tools]
        if self.graders:
            out["graders"] = graders_wire(self.graders)
        if self.agent is not None:
            out["agent"] = self.agent.wire()
        return out


def _is_unset(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, (str, tuple, list, dict)) and not value


def world_ref(world: WorldRef) -> str:
    if isinstance(world, Built):
        return world.world.id
    if isinstance(world, World):
        return world.id
    if isinstance(world, str):
        return world
    from ._errors import BadRequest  # which needs the types of this module

    raise BadRequest(
        "bad_request", f"world: want a world, its id or its name, got {type(world).__name__}", field="/world"
    )


def graders_wire(graders: Sequence[GraderRef]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for g in graders:
        if isinstance(g, str):
            g = Grader(g)
        out.append({"grader": g.digest} if g.weight is None else {"grader": g.digest, "weight": g.weight})
    return out


def tool_wire(tool: Tool) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(tool).items() if v}


def config_wire(config: WorldConfig) -> dict[str, Any]:
    out: dict[str, Any] = {k: v for k, v in vars(config).items() if v}
    if config.tools:
        out["tools"] = [tool_wire(t) for t in config.tools]
    return out


@dataclass(frozen=True)
class BatchResult:
    """One episode's result in a batch; it may come again with the same (id, attempt)."""

    seq: int = 0
    line: int = 0
    refill_of: str = ""
    run: str = ""
    id: str = ""
    group: str = ""
    task: str = ""
    weights: str = ""
    attempt: int = 0
    status: str = ""
    cause: str = ""
    step: str = ""
    flags: tuple[str, ...] = ()
    reason: str = ""
    reward: float | None = None
    valid: bool = False
    scores: tuple[Score, ...] = ()
    digests: Digests = Digests()
    clocks: Clocks = Clocks()
    calls: int = 0
    answer: Any = None
    payload: PayloadSummary | None = None
    evidence: tuple[str, ...] = ()
    at: datetime | None = None


def advantages(
    rewards: Sequence[float | None], *, normalize: bool = True, min_valid: int = 2
) -> tuple[float | None, ...]:
    """Advantages of one group, over its valid members only.

    A member without a reward has None, never 0, and is in neither mean nor deviation. With
    fewer than ``min_valid`` valid members the group is void: all are None. Members that all
    have one reward have advantage 0.
    """
    known = [r for r in rewards if r is not None]
    if len(known) < max(min_valid, 1):
        return (None,) * len(rewards)
    if all(r == known[0] for r in known):
        return tuple(None if r is None else 0.0 for r in rewards)
    mean = math.fsum(known) / len(known)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in known) / len(known)) if normalize else 1.0
    return tuple(None if r is None else (r - mean) / std for r in rewards)


@dataclass(frozen=True)
class Group:
    """What came of one group; mean and std are over valid members only."""

    group: str = ""
    wanted: int = 0
    done: int = 0
    valid: int = 0
    void: int = 0
    surplus: int = 0
    refills: int = 0
    seq: int = 0
    ids: tuple[str, ...] = ()
    rewards: tuple[float | None, ...] = ()
    mean: float | None = None
    std: float | None = None
    spread: bool = False
    causes: Mapping[str, int] = field(default_factory=dict)
    complete: bool = False
    is_void: bool = False
    biased: bool = False

    def advantages(self, *, normalize: bool = True) -> tuple[float | None, ...]:
        """Advantages in order of the manifest; None for members without a reward."""
        if self.is_void:
            return (None,) * len(self.rewards)
        return advantages(self.rewards, normalize=normalize, min_valid=1)


@dataclass(frozen=True)
class BatchInfo:
    id: str = ""
    owner: str = ""
    run: str = ""
    state: str = ""
    sealed: bool = False
    of: str = ""
    created: datetime | None = None
    total: int = 0
    done: int = 0
    valid: int = 0
    void: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    error: str = ""
    seq: int = 0
    group_seq: int = 0


@dataclass(frozen=True)
class Policy:
    name: str = ""
    description: str = ""
    hash: str = ""
    network: str = ""
    uid: int = 0
    gid: int = 0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    spec: Mapping[str, Any] | None = None


def decode(cls: type[T], value: Any) -> T:
    """Read a dataclass from JSON; what it does not know is left out, what is missing is default."""
    if not isinstance(value, dict):
        raise ValueError(f"{cls.__name__}: want an object, got {type(value).__name__}")
    kwargs = {}
    for name, wire, convert in _plan(typing.cast(Any, cls)):
        found = value.get(wire)
        if found is not None:
            kwargs[name] = found if convert is None else convert(found)
    return cls(**kwargs)


Converter = Callable[[Any], Any]


@functools.cache
def _plan(cls: Any) -> tuple[tuple[str, str, Converter | None], ...]:
    hints = typing.get_type_hints(cls, vars(sys.modules[cls.__module__]), {})
    return tuple(
        (f.name, f.metadata.get("wire", f.name), _converter(hints[f.name])) for f in dataclasses.fields(cls)
    )


def _converter(hint: Any) -> Converter | None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = (a for a in args if a is not type(None))
        return _converter(hint)
    if origin is tuple:
        item = _converter(args[0]) or _same
        return lambda v: tuple(item(x) if x is not None else None for x in v)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        of = _converter(args[1])
        return None if of is None else functools.partial(_each_value, of)
    if dataclasses.is_dataclass(hint):
        return functools.partial(decode, typing.cast(type[Any], hint))
    plain: dict[Any, Converter] = {bytes: base64.b64decode, datetime: _when, float: float}
    return plain.get(hint)


def _same(value: Any) -> Any:
    return value


def _each_value(convert: Converter, values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: convert(v) for k, v in values.items()}


def _when(text: str) -> datetime | None:
    """RFC 3339 with up to nine digits, which Python before 3.11 does not read."""
    if text.startswith("0001-01-01T00:00:00"):
        return None
    if text.endswith("Z"):
        text = text[:-1] + "+00:00"
    head, dot, rest = text.partition(".")
    if dot:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        text = f"{head}.{rest[:digits][:6]:0<6}{rest[digits:]}"
    return datetime.fromisoformat(text)
