"""Queues: groups of rollouts that this process plays and the daemon schedules, retries,
scores and remembers.

A queue is an open batch of the daemon whose lines say that a client plays them. One task
sends what is added, one reads the daemon's work and plays it, and ``groups`` reads whole
groups as they are complete. The daemon keeps all of it: a process that is started again
adds the same groups again, and gets what was kept of them.
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._batch import Batch
from ._episode import Episode
from ._errors import (
    BadRequest,
    EpisodeEnded,
    Fenced,
    NotFound,
    PaddockError,
    PlatformError,
    Superseded,
    Unavailable,
)
from ._graders import Found, Judge, PendingGrader, kept, play_judge
from ._http import STREAM, segment
from ._payload import decode_payload
from ._progress import Bar
from ._types import (
    BatchInfo,
    BatchResult,
    EpisodeInfo,
    EpisodeSpec,
    Grader,
    GraderRef,
    WorldRef,
    advantages,
    decode,
)

if TYPE_CHECKING:
    from ._client import Run

log = logging.getLogger("paddock")

# One attempt: a coroutine function of an aio episode and the task, or a plain function of a
# synchronous episode, which is run in a thread.
Rollout = Callable[[Any, Any], Any]
AnyGrader = GraderRef | PendingGrader | Judge

_LINES = 2000  # of one request


@dataclass(frozen=True, eq=False)
class Member:
    """One member of a complete group. Without a reward it is void, and no sample."""

    result: BatchResult
    #: What finish was given, of valid members.
    payload: Any = field(default=None, repr=False)

    @property
    def id(self) -> str:
        return self.result.id

    @property
    def reward(self) -> float | None:
        return self.result.reward

    @property
    def valid(self) -> bool:
        return self.result.valid

    @property
    def answer(self) -> Any:
        return self.result.answer

    @property
    def attempt(self) -> int:
        return self.result.attempt

    @property
    def weights(self) -> str:
        return self.result.weights

    @property
    def status(self) -> str:
        return self.result.status

    @property
    def cause(self) -> str:
        return self.result.cause


@dataclass(frozen=True, eq=False)
class GroupResult:
    """A complete group: ``wanted`` members, without surplus ones, in the order of their lines.

    ``mean`` and ``std`` are over the valid members alone. A void group has too few of them:
    none of its members are ``valid`` samples, and it has no ``spread``.
    """

    seq: int
    group: str
    task: Any
    wanted: int
    members: tuple[Member, ...]
    mean: float | None
    std: float | None
    is_void: bool
    #: Not all valid rewards are equal: there is something to learn.
    spread: bool
    causes: Mapping[str, int]
    refills: int = 0
    surplus: int = 0
    #: Members were left out because they ended later.
    biased: bool = False

    @property
    def valid(self) -> tuple[Member, ...]:
        return () if self.is_void else tuple(m for m in self.members if m.valid)

    @property
    def void(self) -> tuple[Member, ...]:
        return self.members if self.is_void else tuple(m for m in self.members if not m.valid)

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(m.reward for m in self.members)

    def advantage(self, member: Member, *, normalize: bool = True) -> float:
        """The member's advantage over the valid ones. A void member has none."""
        valid = self.valid
        index = next((i for i, m in enumerate(valid) if m is member), None)
        if index is None:
            detail = f"{member.id} is no valid member of {self.group}: it has no advantage"
            raise BadRequest("bad_request", detail)
        found = advantages([m.reward for m in valid], normalize=normalize, min_valid=1)
        return float(found[index] or 0.0)


class Queue:
    """Groups of rollouts of one run. Made by ``run.queue``; it belongs to one event loop."""

    def __init__(
        self,
        run: Run,
        rollout: Rollout,
        graders: Sequence[AnyGrader],
        name: str,
        options: Mapping[str, Any],
        members: int,
        most: int | None,
        progress: bool | None,
    ) -> None:
        self._run, self._rollout = run, rollout
        self._graders = graders
        self._judges = {g.name: g for g in graders if isinstance(g, Judge)}
        self._members, self._most = members, most
        self.id = re.sub(r"[^A-Za-z0-9._:@=+~-]", "-", f"{run.name}.{name}")[:128]
        self._body = {"id": self.id, "run": run.name, "open": True, **options}
        self._path = f"/v1/batches/{segment(self.id)}"
        self._progress = progress
        self._tasks: dict[str, Any] = {}  # by group
        self._wanted: dict[str, None] = {}  # groups that were added and not yet given
        self._held: dict[str, list[dict[str, Any]]] = {}  # work whose group is not added yet
        self._playing: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._asked_again: dict[tuple[str, str, int], dict[str, Any]] = {}
        self._closed = False
        self._cursor = 0
        self._again = True  # some group may be complete already, before the cursor
        self._orders: collections.deque[_Order] = collections.deque()
        self._ordered = asyncio.Event()
        self._background: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Queue {self.id} {len(self._wanted)} groups wanted>"

    # What is added.

    def add(
        self,
        id: str,
        *,
        task: Any = None,
        world: WorldRef,
        weights: str | int = "",
        members: int | None = None,
        **spec: Any,
    ) -> None:
        """Add a group: members ``id/s0``, ``id/s1``, ..., each a rollout of the task.

        Returns at once; what is wrong with it is raised by ``groups``. ``task`` is handed to the
        rollout as it is; its ``id``, or itself where it is a str, is the episodes' task. The
        rest are fields of ``EpisodeSpec``.
        """
        if not isinstance(id, str) or not id:
            raise BadRequest("bad_request", f"id: want a str, got {id!r:.100}", field="/id")
        name = task if isinstance(task, str) else getattr(task, "id", "")
        filled = self._run.filled(
            EpisodeSpec(
                **{
                    "world": world,
                    "group": id,
                    "task": str(name),
                    "weights": str(weights),
                    **spec,
                }
            )
        )
        line = filled.wire()
        line["agent"] = {"client": True}
        lines = [{**line, "id": f"{id}/s{i}"} for i in range(self._members if members is None else members)]
        self._tasks[id], self._wanted[id] = task, None
        self._order(_Order("lines", lines))
        for work in self._held.pop(id, []):
            self._dispatch(work)

    def seal(self) -> None:
        """Nothing more will be added."""
        self._order(_Order("/seal", None))

    def cancel(
        self,
        prefix: str = "",
        *,
        group: str = "",
        weights: str | int = "",
        weights_before: str | int = "",
        reason: str = "",
    ) -> None:
        """Cancel what has not ended, by one of these; without any, the whole queue.

        Returns at once. Weights are ordered by their first use in the run; those it has not
        used yet come last.
        """
        body = {
            "prefix": prefix,
            "group": group,
            "weights": str(weights),
            "weights_before": str(weights_before),
            "reason": reason,
        }
        self._order(_Order("/cancel", {k: v for k, v in body.items() if v}))

    async def batch(self) -> Batch:
        """The daemon's batch behind it."""
        await self.flush()
        return Batch(self._run, decode(BatchInfo, await self._run.json("GET", self._path)))

    async def rescore(self, *graders: GraderRef | PendingGrader) -> Batch:
        """Seal the queue, wait for its end, and score every end state again; no agent runs.

        The episodes stay as they are; the scores are the new batch's.
        """
        self.seal()
        batch = await self.batch()
        await self._or_failed(batch.wait())
        return await batch.rescore(*graders)

    async def flush(self) -> None:
        """Wait until what was ordered so far is with the daemon."""
        done = asyncio.get_running_loop().create_future()
        self._order(_Order("told", done))
        await self._or_failed(done)

    # What comes of it.

    async def groups(
        self, n: int | None = None, *, deadline: float | None = None
    ) -> AsyncGenerator[GroupResult, None]:
        """Complete groups of those that were added, in the order in which they complete.

        ``n`` of them, or all. After ``deadline`` seconds what has not ended of them is
        cancelled (client, no reward) and they come as they are. Raises what went wrong: a
        conflict of an added line, Fenced, Unavailable within moments of the daemon's death.
        """
        left = len(self._wanted) if n is None else min(n, len(self._wanted))
        if not left:
            return
        await self.flush()
        timer = self._deadline(deadline, left)
        try:
            with Bar("groups", left, self._progress) as bar:
                async for found in self._complete():
                    group = await self._result(found)
                    bar.advance(mean=group.mean)
                    yield group
                    left -= 1
                    if not left:
                        return
        finally:
            if timer is not None:
                timer.cancel()

    def _deadline(self, seconds: float | None, n: int) -> asyncio.TimerHandle | None:
        if seconds is None:
            return None
        first = list(self._wanted)[:n]

        def passed() -> None:
            for group in first:
                if group in self._wanted:
                    self.cancel(group=group, reason="the deadline passed")

        return asyncio.get_running_loop().call_later(seconds, passed)

    async def _complete(self) -> AsyncGenerator[dict[str, Any], None]:
        """Wanted groups that are complete."""
        if self._again:
            self._cursor, self._again = 0, False
        query = {"after": self._cursor, "follow": "true"}
        response = await self._run.request("GET", f"{self._path}/groups", query=query, accept=STREAM)
        lines = response.lines()
        try:
            while True:
                try:
                    found = await self._or_failed(_next(lines))
                except StopAsyncIteration:
                    break
                self._cursor = max(self._cursor, found["seq"])
                if found["group"] in self._wanted:
                    yield found
        finally:
            await lines.aclose()
        info = decode(BatchInfo, await self._run.json("GET", self._path))
        raise _stopped(info)

    async def _result(self, found: Mapping[str, Any]) -> GroupResult:
        name = found["group"]
        results = [decode(BatchResult, r) for r in found["results"]]
        payloads = await asyncio.gather(*(self._payload(r) for r in results))
        self._wanted.pop(name, None)
        void = bool(found.get("is_void"))
        return GroupResult(
            seq=found["seq"],
            group=name,
            task=self._tasks.pop(name, None),
            wanted=found["wanted"],
            members=tuple(Member(r, p) for r, p in zip(results, payloads, strict=True)),
            mean=found.get("mean"),
            std=found.get("std"),
            is_void=void,
            spread=bool(found.get("spread")) and not void,
            causes=found.get("causes") or {},
            refills=found.get("refills", 0),
            surplus=found.get("surplus", 0),
            biased=bool(found.get("biased")),
        )

    async def _payload(self, r: BatchResult) -> Any:
        if r.payload is None or not r.valid:
            return None
        path = f"/v1/runs/{segment(self._run.name)}/episodes/{segment(r.id)}/payload"
        return decode_payload(await self._run.read("GET", path, query={"attempt": r.attempt}))

    # In the background.

    def _order(self, order: _Order) -> None:
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
            self._background.append(asyncio.create_task(self._guarded(self._send())))
        self._orders.append(order)
        self._ordered.set()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run background work; what goes wrong there is raised by whoever waits."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as e:
            assert self._failed is not None
            if not self._failed.done():
                self._failed.set_exception(e)
                self._failed.exception()  # it may be that nobody waits

    async def _or_failed(self, work: Awaitable[Any]) -> Any:
        """Wait for work, unless the background fails."""
        assert self._failed is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, self._failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if task.done() and not task.cancelled():
            return task.result()
        await asyncio.gather(task, return_exceptions=True)
        raise _again(self._failed.exception())

    async def _send(self) -> None:
        """Open the batch, then do what is ordered, one after another."""
        keep = await kept([g for g in self._graders if not isinstance(g, Judge)])
        graders = iter(keep)
        wire = [g.wire() if isinstance(g, Judge) else _wire(next(graders)) for g in self._graders]
        info = decode(BatchInfo, await self._run.json("POST", "/v1/batches", json_body=self._body))
        if info.state not in ("running", "done"):
            await self._run.json("POST", f"{self._path}/resume")
        if info.state != "done":
            self._background.append(asyncio.create_task(self._guarded(self._work())))
        while True:
            await self._ordered.wait()
            if not self._orders:
                self._ordered.clear()
                continue
            order = self._orders.popleft()
            if isinstance(order.body, asyncio.Future):
                order.body.set_result(None)
            elif order.path == "lines":
                await self._add(order.body, wire)
            else:
                try:
                    await self._run.json("POST", self._path + order.path, json_body=order.body)
                except NotFound:
                    if order.path != "/cancel":
                        raise
                    # There was nothing to cancel.

    async def _add(self, lines: list[dict[str, Any]], graders: list[dict[str, Any]]) -> None:
        # What was ordered meanwhile goes along: a thousand groups are no thousand requests.
        while len(lines) < _LINES and self._orders and self._orders[0].path == "lines":
            lines = [*lines, *self._orders.popleft().body]
        lines = [line if "graders" in line else {**line, "graders": graders} for line in lines]
        added = await self._run.json("POST", f"{self._path}/episodes", json_body={"episodes": lines})
        self._again = self._again or added["known"] > 0

    async def _work(self) -> None:
        """Play what the daemon asks for, until the batch no longer runs."""
        query: dict[str, Any] = {"lease": await self._run.transport.lease()}
        if self._most is not None:
            query["most"] = self._most
        response = await self._run.request("GET", f"{self._path}/work", query=query, accept=STREAM)
        async for work in response.lines():
            self._dispatch(work)

    def _dispatch(self, work: dict[str, Any]) -> None:
        key = (work["kind"], work["id"], work["attempt"])
        group = work["episode"].get("group") or work["id"]
        if group not in self._tasks:
            self._held.setdefault(group, []).append(work)
        elif key not in self._playing:
            task = asyncio.create_task(self._guarded(self._do(work, self._tasks[group])))
            self._playing[key] = task
            task.add_done_callback(lambda _: self._over(key))
        elif work["kind"] == "score":  # a judge that found no reward is asked again
            self._asked_again[key] = work

    def _over(self, key: tuple[str, str, int]) -> None:
        self._playing.pop(key, None)
        work = self._asked_again.pop(key, None)
        if work is not None and not self._closed:
            self._dispatch(work)

    async def _do(self, work: Mapping[str, Any], task: Any) -> None:
        info = decode(EpisodeInfo, work["episode"])
        ep = Episode(self._run, info, info.last is not None and info.last.calls > 0)
        try:
            if work["kind"] == "score":
                for name in work.get("graders") or ():
                    await self._judge(ep, name)
            else:
                await self._play(ep, task)
        except (EpisodeEnded, Superseded, NotFound):
            pass  # it ended by itself, or was cancelled: the result says how
        except (Fenced, Unavailable):
            raise
        except PaddockError as e:
            log.warning("%s attempt %d: %s", ep.id, ep.attempt, e)

    async def _play(self, ep: Episode, task: Any) -> None:
        try:
            async with ep:
                if inspect.iscoroutinefunction(self._rollout):
                    await self._rollout(ep, task)
                else:
                    await self._run.transport.apart(lambda: self._rollout(_synchronous(ep), task))
                    await ep.refresh()
        except PaddockError:
            raise
        except Exception:
            # The attempt was aborted by the block: null, by the client, and retried where it may be.
            log.warning("%s attempt %d: the rollout raised", ep.id, ep.attempt, exc_info=True)

    async def _judge(self, ep: Episode, name: str) -> None:
        judge = self._judges.get(name)
        if judge is None:
            found = Found(None, {}, f"this driver has no judge {name}")
        else:
            found = await play_judge(judge, ep, _synchronous)
        body = {"id": ep.id, "attempt": ep.attempt, "name": name, **vars(found)}
        await self._run.read("POST", f"{self._path}/rewards", json_body=body)

    async def close(self) -> None:
        """Stop playing. What is not done is kept for whoever opens the queue again."""
        self._closed = True
        tasks = [*self._background, *self._playing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._background.clear()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@dataclass
class _Order:
    """Something to tell the daemon: lines to add, or a request to the batch."""

    path: str
    body: Any


async def _next(lines: AsyncGenerator[Any, None]) -> Any:
    return await lines.__anext__()


def _again(e: BaseException | None) -> BaseException:
    """The background's error for one more who waits."""
    if isinstance(e, PaddockError):
        return e.copy()
    return e or RuntimeError("the queue is closed")


def _stopped(info: BatchInfo) -> PaddockError:
    """Why a batch gives no more groups."""
    if info.state == "done":
        return BadRequest("wrong_state", f"queue {info.id} is sealed and done")
    if info.state in ("interrupted", "running"):
        return Unavailable(
            "connection_lost",
            f"queue {info.id} was interrupted: {info.error or 'the daemon is ending'}",
            hint="Open the run again: what was done is kept.",
        )
    if info.state == "cancelled":
        return BadRequest("wrong_state", f"queue {info.id} was cancelled")
    return PlatformError(info.state, f"queue {info.id} stopped: {info.error}")


def _wire(g: GraderRef) -> dict[str, Any]:
    if isinstance(g, str):
        g = Grader(g)
    return {"grader": g.digest} if g.weight is None else {"grader": g.digest, "weight": g.weight}


def _synchronous(ep: Episode) -> Any:
    """The same episode for code that runs in a thread."""
    from . import _blocking, _client, _sync

    scope = ep._scope
    transport, generation = _blocking.Transport.at(scope.socket), scope.generation
    blocking = _client.Run(transport, ep.run, generation, scope.seed, scope.defaults)
    return _sync.Episode(Episode(blocking, ep.info, ep.kept))
