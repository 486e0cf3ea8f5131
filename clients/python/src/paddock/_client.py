"""The client, its runs and its worlds."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import _lease
from ._batch import Batch
from ._episode import Episode
from ._errors import BadRequest, Unavailable, from_problem
from ._http import JSON, STREAM, TAR, Response, Transport, dumps, segment, socket_path
from ._types import (
    BatchInfo,
    Built,
    Capacity,
    EpisodeInfo,
    EpisodeSpec,
    Grader,
    GraderRef,
    Policy,
    Progress,
    RunInfo,
    Tool,
    Version,
    World,
    WorldConfig,
    WorldRef,
    config_wire,
    decode,
    world_ref,
)

API = "v1"
DEFAULT_RUN = "default"


class Scope:
    """What a client and a run have in common: a name space of episode ids."""

    def __init__(self, path: str, run: str = DEFAULT_RUN, generation: int = 0) -> None:
        self._transport = Transport.at(path)
        self._run = run
        self._generation = generation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._transport.path, self._run, self._generation)

    @property
    def socket(self) -> str:
        return self._transport.path

    def request(self, method: str, path: str, **options: Any) -> Response:
        """One request, with the run's generation."""
        headers = dict(options.pop("headers", None) or {})
        if self._generation:
            headers["Paddock-Generation"] = str(self._generation)
        return self._transport.request(method, path, headers=headers, **options)

    @property
    def _base(self) -> str:
        return f"/v1/runs/{segment(self._run)}"

    def create(
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
        leftovers: str = "",
        tools: Sequence[Tool] = (),
        graders: Sequence[GraderRef] = (),
        env_seed: int | None = None,
        sample_seed: int | None = None,
        retry_seed: str = "",
        labels: Mapping[str, str] | None = None,
        retries: int = 0,
        priority: int = 0,
        on_conflict: str = "",
        attempt: str = "",
        lease: str = "connection",
        ttl: float | None = None,
    ) -> Episode:
        """Make an episode, or get what is kept of its id. Returns when it is live or has ended.

        It lives as long as this process (lease ``connection``), or by a time to live (``ttl``).
        """
        return self.create_from(
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
                leftovers=leftovers,
                tools=tools,
                graders=graders,
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

    def create_from(
        self, spec: EpisodeSpec, *, lease: str = "connection", ttl: float | None = None
    ) -> Episode:
        """The same from a spec."""
        body = spec.wire()
        if "agent" in body:
            raise from_problem(
                {"kind": "bad_request", "field": "agent", "detail": "agents act in batches only"}
            )
        body["lease"] = {"kind": lease}
        if ttl is not None:
            body["lease"]["ttl_s"] = ttl
        if lease == "connection":
            body["lease"]["conn"] = _lease.lease_id(self._transport)
        answer = self.request("POST", f"{self._base}/episodes", json_body=body).json()
        return Episode(self, decode(EpisodeInfo, answer["episode"]), bool(answer["kept"]))

    def episode(self, id: str) -> Episode:
        """A handle on an episode that is there."""
        answer = self.request("GET", f"{self._base}/episodes/{segment(id)}").json()
        return Episode(self, decode(EpisodeInfo, answer), True)

    def episodes(self, prefix: str = "") -> Iterator[EpisodeInfo]:
        """Episodes in order of their ids."""
        after = ""
        while True:
            query = {k: v for k, v in (("prefix", prefix), ("after", after)) if v}
            page = self.request("GET", f"{self._base}/episodes", query=query).json()
            for e in page["episodes"]:
                info = decode(EpisodeInfo, e)
                after = info.id
                yield info
            if not page["more"]:
                return

    def cancel(self, prefix: str = "", reason: str = "") -> int:
        """Cancel live episodes whose ids have the prefix; how many is returned."""
        body = {"prefix": prefix, "reason": reason}
        return int(self.request("POST", f"{self._base}/cancel", json_body=body).json()["cancelled"])

    def batch(
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
        body["episodes"] = [e.wire() for e in episodes]
        return Batch(self, decode(BatchInfo, self.request("POST", "/v1/batches", json_body=body).json()))

    def get_batch(self, id: str) -> Batch:
        return Batch(self, decode(BatchInfo, self.request("GET", f"/v1/batches/{segment(id)}").json()))

    def batches(self) -> tuple[BatchInfo, ...]:
        found = self.request("GET", "/v1/batches").json()["batches"] or ()
        return tuple(decode(BatchInfo, b) for b in found)

    def grader(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes | str | os.PathLike[str]] | str | os.PathLike[str],
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
    ) -> Grader:
        """Keep a grader: a command and files (name to content or path, or a directory).

        The same content is the same grader. The files are in /grader unless ``dir`` is given.
        """
        body: dict[str, Any] = {
            "dir": dir,
            "env": dict(env or {}),
            "user": user,
            "policy": policy,
            "limits": dict(limits or {}),
            "verdict": verdict,
            "mode": mode,
            "boot": [list(b) for b in boot],
            "protected": list(protected),
            "on_tamper": on_tamper,
        }
        body = {k: v for k, v in body.items() if v}
        if reward_range is not None:
            body["reward_range"] = list(reward_range)
        if on_no_verdict is not None:
            body["on_no_verdict"] = on_no_verdict
        body["command"] = list(command)
        body["files"] = _grader_files(files)
        answer = self.request("POST", "/v1/graders", json_body=body).json()
        return Grader(str(answer["grader"]), weight)


class Worlds:
    """The daemon's worlds."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def build(
        self,
        *,
        busybox: bool = False,
        debian: str | None = None,
        packages: Sequence[str] = (),
        dir: str | os.PathLike[str] | None = None,
        tar: str | os.PathLike[str] | None = None,
        base: WorldRef | None = None,
        into: str = "",
        ignore: Sequence[str] = (),
        config: WorldConfig | None = None,
        version: str = "",
        name: str = "",
        cache: str = "",
        send: bool | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Built:
        """Build a world from busybox, a Debian suite, a directory or a tar; kept ones are found.

        Root's directories and tars are read by the daemon; for others, or with ``send``, they
        are sent, and then a directory cannot have ``ignore``.
        """
        recipe: dict[str, Any] = {
            "busybox": busybox,
            "base": world_ref(base) if base is not None else "",
            "into": into,
            "ignore": list(ignore),
            "config": config_wire(config) if config else {},
            "version": version,
            "name": name,
            "cache": cache,
        }
        recipe = {k: v for k, v in recipe.items() if v}
        if debian is not None:
            recipe["debian"] = {"suite": debian, "packages": list(packages)}
        send = os.geteuid() != 0 if send is None else send
        if send and (dir is not None) != (tar is not None):
            if ignore:
                raise BadRequest("bad_request", "a directory that is sent cannot have ignore", field="ignore")
            return self._send(recipe, dir, tar, progress)
        for field, path in (("dir", dir), ("tar", tar)):
            if path is not None:
                recipe[field] = os.path.abspath(path)
        response = self._scope.request("POST", "/v1/worlds", json_body=recipe, accept=STREAM)
        return _built(response, progress)

    def _send(
        self,
        recipe: Mapping[str, Any],
        dir: str | os.PathLike[str] | None,
        tar: str | os.PathLike[str] | None,
        progress: Callable[[Progress], None] | None,
    ) -> Built:
        with tempfile.TemporaryFile() if tar is None else open(tar, "rb") as body:
            if dir is not None:
                with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as out:
                    for entry in sorted(os.listdir(dir)):
                        out.add(os.path.join(dir, entry), arcname=entry, filter=_owned_by_root)
                body.seek(0)
            response = self._scope.request(
                "POST",
                "/v1/worlds",
                body=body,
                media=TAR,
                headers={"Paddock-Recipe": dumps(recipe)},
                accept=STREAM,
            )
            return _built(response, progress)

    def get(self, ref: str) -> World:
        """A world by id, unique prefix of one, or name."""
        return decode(World, self._scope.request("GET", f"/v1/worlds/{segment(ref)}").json())

    def list(self) -> tuple[World, ...]:
        found = self._scope.request("GET", "/v1/worlds").json()["worlds"] or ()
        return tuple(decode(World, w) for w in found)

    def remove(self, ref: WorldRef) -> None:
        """Remove a world that nothing uses."""
        self._scope.request("DELETE", f"/v1/worlds/{segment(world_ref(ref))}").read()


class Client(Scope):
    """A daemon. Its own episodes are in the run ``default``, which is never fenced."""

    @property
    def worlds(self) -> Worlds:
        return Worlds(self)

    def version(self) -> Version:
        """What answers."""
        return decode(Version, self.request("GET", "/v1/version", accept=JSON).json())

    def capacity(self) -> Capacity:
        return decode(Capacity, self.request("GET", "/v1/capacity").json())

    def policies(self) -> tuple[Policy, ...]:
        return tuple(decode(Policy, p) for p in self.request("GET", "/v1/policies").json()["policies"])

    def policy(self, name: str) -> Policy:
        return decode(Policy, self.request("GET", f"/v1/policies/{segment(name)}").json())

    def runs(self) -> tuple[RunInfo, ...]:
        return tuple(decode(RunInfo, r) for r in self.request("GET", "/v1/runs").json()["runs"])

    def run(self, name: str, *, seed: int = 0, resume: str = "new") -> Run:
        """Open a run: ``new`` refuses a known name, ``resume`` an unknown one, ``auto`` neither.

        Resuming fences the earlier driver: its requests raise Fenced.
        """
        body = {"name": name, "seed": seed, "resume": resume}
        info = decode(RunInfo, self.request("POST", "/v1/runs", json_body=body).json())
        return Run(self.socket, info.name, info.generation, info.seed)

    def close(self) -> None:
        """Close idle connections. Episodes live on: their lease is the process's."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Run(Scope):
    """A name space of episode ids, driven by one driver: every request has its generation."""

    def __init__(self, path: str, name: str, generation: int, seed: int = 0) -> None:
        super().__init__(path, name, generation)
        self.seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self.socket, self._run, self._generation, self.seed)

    def __repr__(self) -> str:
        return f"<Run {self.name} generation {self.generation}>"

    @property
    def name(self) -> str:
        return self._run

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def worlds(self) -> Worlds:
        return Worlds(self)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def connect(socket: str | os.PathLike[str] | None = None) -> Client:
    """Connect to the daemon at ``socket``, else PADDOCK_SOCKET, else /run/paddock/paddock.sock.

    Raises Unavailable, whose kind and text say what is wrong: ``unavailable`` (no daemon),
    ``permission_denied`` (and which group may), ``version`` (another one answers).
    """
    client = Client(socket_path(socket))
    try:
        version = client.version()
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
    return client


def run(
    name: str, *, seed: int = 0, resume: str = "new", socket: str | os.PathLike[str] | None = None
) -> Run:
    """connect() and open a run."""
    return connect(socket).run(name, seed=seed, resume=resume)


def _built(response: Response, progress: Callable[[Progress], None] | None) -> Built:
    built: Built | None = None
    for event in response.lines():
        if event.get("error"):
            raise from_problem(event["error"])
        if event.get("built"):
            built = decode(Built, event["built"])
        elif event.get("progress") and progress is not None:
            progress(decode(Progress, event["progress"]))
    if built is None:
        raise Unavailable("connection_lost", "the stream ended without a world")
    return built


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _grader_files(
    files: Mapping[str, bytes | str | os.PathLike[str]] | str | os.PathLike[str],
) -> dict[str, Any]:
    import base64

    if not isinstance(files, Mapping):
        root = Path(files)
        files = {str(p.relative_to(root)): p for p in sorted(root.rglob("*")) if p.is_file()}
    out: dict[str, Any] = {}
    for name, content in files.items():
        mode = 0o644
        if isinstance(content, os.PathLike):
            mode = os.stat(content).st_mode & 0o777
            content = Path(content).read_bytes()
        raw = content.encode() if isinstance(content, str) else content
        out[name] = {"bytes": base64.b64encode(raw).decode(), "mode": mode}
    return out
