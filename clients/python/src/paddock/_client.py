"""The client and its runs, as coroutines over a transport. The synchronous face is in _sync."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ._batch import Batch
from ._episode import Episode
from ._errors import BadRequest, Unavailable, from_problem
from ._graders import GraderFiles, PendingGrader, grader_body, kept
from ._http import JSON, Response, Transport, segment
from ._queue import AnyGrader, Queue, Rollout
from ._types import (
    BatchInfo,
    Capacity,
    EpisodeInfo,
    EpisodeSpec,
    GraderRef,
    Policy,
    RunInfo,
    Tool,
    Version,
    WorldRef,
    decode,
)
from ._worlds import Worlds

if TYPE_CHECKING:
    from typing_extensions import Unpack

API = "v1"
DEFAULT_RUN = "default"


class RunDefaults(TypedDict, total=False):
    """What a run's episodes are unless they say otherwise. Mappings are merged."""

    policy: str
    env: Mapping[str, str]
    limits: Mapping[str, Any]
    requests: Mapping[str, Any]
    budgets: Mapping[str, float]
    endpoints: Mapping[str, Mapping[str, Any]]
    leftovers: str
    tools: Sequence[Tool]
    retry_seed: str
    labels: Mapping[str, str]
    retries: int
    priority: int
    on_conflict: str


def check_defaults(defaults: Mapping[str, Any]) -> None:
    for name in defaults:
        if name not in RunDefaults.__annotations__:
            raise BadRequest(
                "unknown_field",
                f"{name} is no default of a run",
                field=f"/{name}",
                hint=f"There are {', '.join(RunDefaults.__annotations__)}.",
            )


class Scope:
    """What a client and a run have in common: a name space of episode ids."""

    def __init__(
        self,
        transport: Transport,
        run: str = DEFAULT_RUN,
        generation: int = 0,
        seed: int = 0,
        defaults: RunDefaults | None = None,
    ) -> None:
        self.transport = transport
        self._run = run
        self._generation = generation
        self.seed = seed
        self.defaults = defaults or RunDefaults()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.transport, self._run, self._generation, self.seed, self.defaults)

    @property
    def socket(self) -> str:
        return self.transport.path

    @property
    def generation(self) -> int:
        return self._generation

    async def request(self, method: str, path: str, **options: Any) -> Response:
        """One request, with the run's generation."""
        headers = {**(options.pop("headers", None) or {}), **self._generation_header()}
        return await self.transport.request(method, path, headers=headers, **options)

    def last_word(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """A small request whose answer nobody waits for."""
        self.transport.last_word(method, path, body, self._generation_header())

    def _generation_header(self) -> dict[str, str]:
        return {"Paddock-Generation": str(self._generation)} if self._generation else {}

    async def json(self, method: str, path: str, **options: Any) -> Any:
        return await (await self.request(method, path, **options)).json()

    async def read(self, method: str, path: str, **options: Any) -> bytes:
        return await (await self.request(method, path, **options)).read()

    @property
    def _base(self) -> str:
        return f"/v1/runs/{segment(self._run)}"

    async def create(
        self,
        world: WorldRef,
        id: str = "",
        *,
        group: str = "",
        task: str = "",
        weights: str = "",
        input: Any = None,
        policy: str = "",
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, Any] | None = None,
        requests: Mapping[str, Any] | None = None,
        budgets: Mapping[str, float] | None = None,
        endpoints: Mapping[str, Mapping[str, Any]] | None = None,
        leftovers: str = "",
        tools: Sequence[Tool] = (),
        graders: Sequence[GraderRef | PendingGrader] = (),
        env_seed: int | None = None,
        sample_seed: int | None = None,
        retry_seed: str = "",
        labels: Mapping[str, str] | None = None,
        retries: int | None = None,
        priority: int | None = None,
        on_conflict: str = "",
        attempt: str = "",
        lease: str = "connection",
        ttl: float | None = None,
    ) -> Episode:
        """Make an episode, or get what is kept of its id. Returns when it is live or has ended.

        It lives as long as this process (lease ``connection``), or by a time to live (``ttl``).
        """
        return await self.create_from(
            EpisodeSpec(
                world=world,
                id=id,
                group=group,
                task=task,
                weights=weights,
                input=input,
                policy=policy,
                env=env or {},
                limits=limits or {},
                requests=requests or {},
                budgets=budgets or {},
                endpoints=endpoints or {},
                leftovers=leftovers,
                tools=tools,
                graders=await kept(graders),
                env_seed=env_seed,
                sample_seed=sample_seed,
                retry_seed=retry_seed,
                labels=labels or {},
                retries=retries,
                priority=priority,
                on_conflict=on_conflict,
                attempt=attempt,
            ),
            lease="ttl" if ttl is not None else lease,
            ttl=ttl,
        )

    async def create_from(
        self, spec: EpisodeSpec, *, lease: str = "connection", ttl: float | None = None
    ) -> Episode:
        """The same from a spec."""
        body = self.filled(spec).wire()
        if "agent" in body:
            raise from_problem(
                {"kind": "bad_request", "field": "agent", "detail": "agents act in batches only"}
            )
        body["lease"] = {"kind": lease}
        if ttl is not None:
            body["lease"]["ttl_s"] = ttl
        if lease == "connection":
            body["lease"]["conn"] = await self.transport.lease()
        answer = await self.json("POST", f"{self._base}/episodes", json_body=body)
        return Episode(self, decode(EpisodeInfo, answer["episode"]), bool(answer["kept"]))

    def filled(self, spec: EpisodeSpec) -> EpisodeSpec:
        """The spec with the run's defaults where it is silent."""
        more: dict[str, Any] = {}
        for name, default in self.defaults.items():
            said = getattr(spec, name)
            if isinstance(default, Mapping):
                more[name] = {**default, **said}
            elif said is None or said == "" or said == ():
                more[name] = default
        return dataclasses.replace(spec, **more) if more else spec

    async def episode(self, id: str) -> Episode:
        """A handle on an episode that is there."""
        answer = await self.json("GET", f"{self._base}/episodes/{segment(id)}")
        return Episode(self, decode(EpisodeInfo, answer), True)

    async def episodes(self, prefix: str = "") -> AsyncGenerator[EpisodeInfo, None]:
        """Episodes in order of their ids."""
        after = ""
        while True:
            query = {k: v for k, v in (("prefix", prefix), ("after", after)) if v}
            page = await self.json("GET", f"{self._base}/episodes", query=query)
            for e in page["episodes"]:
                info = decode(EpisodeInfo, e)
                after = info.id
                yield info
            if not page["more"]:
                return

    async def cancel(self, prefix: str = "", reason: str = "") -> int:
        """Cancel live episodes whose ids have the prefix; how many is returned."""
        body = {"prefix": prefix, "reason": reason}
        return int((await self.json("POST", f"{self._base}/cancel", json_body=body))["cancelled"])

    async def batch(
        self,
        episodes: Sequence[EpisodeSpec],
        id: str = "",
        *,
        seed: int = 0,
        parallel: int = 0,
        deadline: float = 0.0,
        on_void: str = "",
        min_valid: int = 0,
    ) -> Batch:
        """Let the daemon run many episodes with their agents; asked again, it is the same batch."""
        body: dict[str, Any] = {
            "id": id,
            "run": "" if self._run == DEFAULT_RUN else self._run,
            "seed": seed,
            "parallel": parallel,
            "deadline_s": deadline,
            "on_void": on_void,
            "min_valid": min_valid,
        }
        body = {k: v for k, v in body.items() if v}
        body["episodes"] = [self.filled(e).wire() for e in episodes]
        return Batch(self, decode(BatchInfo, await self.json("POST", "/v1/batches", json_body=body)))

    async def get_batch(self, id: str) -> Batch:
        return Batch(self, decode(BatchInfo, await self.json("GET", f"/v1/batches/{segment(id)}")))

    async def batches(self) -> tuple[BatchInfo, ...]:
        found = (await self.json("GET", "/v1/batches"))["batches"] or ()
        return tuple(decode(BatchInfo, b) for b in found)

    def grader(
        self,
        command: Sequence[str] | str | os.PathLike[str],
        files: GraderFiles | None = None,
        *,
        dir: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        policy: str = "",
        limits: Mapping[str, Any] | None = None,
        verdict: str = "",
        mode: str = "",
        boot: Sequence[Sequence[str]] = (),
        reward_range: tuple[float, float] | None = None,
        on_no_verdict: float | None = None,
        protected: Sequence[str] = (),
        on_tamper: str = "",
        weight: float | None = None,
    ) -> PendingGrader:
        """A grader: a command and files (name to content or path, or a directory).

        A directory alone is run by its entry: ``grade`` (an executable), ``grade.sh`` or
        ``grade.py``. The files are in /grader unless ``dir`` is given. The same content is the
        same grader. It is sent when it is first needed, or awaited for.
        """
        options = {
            "dir": dir,
            "env": dict(env or {}),
            "user": user,
            "policy": policy,
            "limits": dict(limits or {}),
            "verdict": verdict,
            "mode": mode,
            "boot": [list(b) for b in boot],
            "reward_range": None if reward_range is None else list(reward_range),
            "on_no_verdict": on_no_verdict,
            "protected": list(protected),
            "on_tamper": on_tamper,
        }
        return PendingGrader(self, grader_body(command, files, options), weight)


class Client(Scope):
    """A daemon. Its own episodes are in the run ``default``, which is never fenced."""

    @property
    def worlds(self) -> Worlds:
        return Worlds(self)

    async def version(self) -> Version:
        """What answers."""
        return decode(Version, await self.json("GET", "/v1/version", accept=JSON))

    async def capacity(self) -> Capacity:
        return decode(Capacity, await self.json("GET", "/v1/capacity"))

    async def policies(self) -> tuple[Policy, ...]:
        return tuple(decode(Policy, p) for p in (await self.json("GET", "/v1/policies"))["policies"])

    async def policy(self, name: str) -> Policy:
        return decode(Policy, await self.json("GET", f"/v1/policies/{segment(name)}"))

    async def runs(self) -> tuple[RunInfo, ...]:
        return tuple(decode(RunInfo, r) for r in (await self.json("GET", "/v1/runs"))["runs"])

    async def run(
        self, name: str, *, seed: int = 0, resume: str = "new", **defaults: Unpack[RunDefaults]
    ) -> Run:
        """Open a run: ``new`` refuses a known name, ``resume`` an unknown one, ``auto`` neither.

        Resuming fences the earlier driver: its requests raise Fenced. The rest are defaults of
        the run's episodes.
        """
        check_defaults(defaults)
        body = {"name": name, "seed": seed, "resume": resume}
        info = decode(RunInfo, await self.json("POST", "/v1/runs", json_body=body))
        return Run(self.transport, info.name, info.generation, info.seed, defaults)

    def close(self) -> None:
        """Close idle connections. Episodes live on: their lease is the process's."""
        self.transport.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Run(Scope):
    """A name space of episode ids, driven by one driver: every request has its generation."""

    def __repr__(self) -> str:
        return f"<Run {self.name} generation {self.generation}>"

    @property
    def name(self) -> str:
        return self._run

    @property
    def worlds(self) -> Worlds:
        return Worlds(self)

    def queue(
        self,
        rollout: Rollout,
        *graders: AnyGrader,
        name: str = "queue",
        group_size: int = 8,
        surplus: int = 0,
        take: str = "",
        on_void: str = "",
        min_valid: int = 0,
        parallel: int = 0,
        most: int | None = None,
        progress: bool | None = None,
    ) -> Queue:
        """A queue of groups that ``rollout(ep, task)`` plays, one attempt a call.

        A rollout calls tools and ends with ``finish``. What it raises is the client's failure:
        no reward, and another attempt, from the top, while ``retries`` allow. ``group_size``
        valid members make a group; ``surplus`` more are started, and ``take`` says which count.
        ``on_void`` is ``drop``, ``refill:K`` or ``void_group``; below ``min_valid`` (2) a group
        is void. ``parallel`` bounds what is under way, ``most`` what this process plays at once;
        neither has a bound of its own. Asked for again by a later process, it is the same queue.
        """
        options = {
            "group_size": group_size if surplus else 0,  # else a group is all of its lines
            "take": take,
            "on_void": on_void,
            "min_valid": min_valid,
            "parallel": parallel,
        }
        set_ones = {k: v for k, v in options.items() if v}
        q = Queue(self, rollout, graders, name, set_ones, group_size + surplus, most, progress)
        self._queues.append(q)
        return q

    @functools.cached_property
    def _queues(self) -> list[Queue]:
        return []

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(self, *_: object) -> None:
        for q in self._queues:
            await q.close()
        self.transport.close()


async def check_version(client: Client) -> None:
    """Raise Unavailable where it is not this client's daemon that answers."""
    try:
        version = await client.version()
    except BadRequest as e:
        if e.kind != "permission_denied":
            raise
        raise Unavailable(e.kind, e.detail, hint=e.hint, status=e.status) from e
    except (ValueError, TypeError) as e:
        raise Unavailable("version", f"{client.socket}: the answer is not paddock's: {e}") from e
    if version.api != API:
        raise Unavailable(
            "version",
            f"the daemon at {client.socket} speaks {version.api or 'an unknown version'}, this client {API}",
            hint="Install the client that came with the daemon.",
        )
