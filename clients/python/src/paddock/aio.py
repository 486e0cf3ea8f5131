"""The same for asyncio: each method is the one of the same name, awaited.

Requests run in threads, one for each that is in flight, so that a slow one holds up no
other. Cancelling a task breaks its request off, and the daemon ends the call.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from . import _batch, _client, _episode
from ._http import Abort, current_abort
from ._types import Attempt, BatchInfo, BatchResult, CallResult, Chunk, End, EpisodeInfo, GraderRef

__all__ = ["Batch", "CallStream", "Client", "Episode", "Run", "Session", "Worlds", "connect", "run"]

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
R = TypeVar("R")
F = TypeVar("F")
P = ParamSpec("P")

_threads: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    global _threads
    if _threads is None:
        # No bound of its own: a thread is made only when all are busy.
        _threads = ThreadPoolExecutor(max_workers=1 << 20, thread_name_prefix="paddock")
    return _threads


def _after_fork_in_child() -> None:
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_after_fork_in_child)


async def _do(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    abort = Abort()
    context = contextvars.copy_context()
    context.run(current_abort.set, abort)
    work = functools.partial(context.run, functools.partial(function, *args, **kwargs))
    try:
        return await asyncio.get_running_loop().run_in_executor(_executor(), work)
    except asyncio.CancelledError:
        abort.abort()
        raise


class _Face(Generic[S_co]):
    """An object of the sync face behind an async one."""

    def __init__(self, sync: S_co) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"<aio {self.sync!r}>"


def _awaited(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[_Face[S], P], Coroutine[Any, Any, R]]:
    @functools.wraps(method)
    async def call(self: _Face[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await _do(method, self.sync, *args, **kwargs)

    return call


def _awaited_as(
    face: Callable[[R], F], method: Callable[Concatenate[S, P], R]
) -> Callable[Concatenate[_Face[S], P], Coroutine[Any, Any, F]]:
    @functools.wraps(method)
    async def call(self: _Face[S], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return face(await _do(method, self.sync, *args, **kwargs))

    return call


_END: Any = object()


async def _each(items: Iterator[R]) -> AsyncIterator[R]:
    while (item := await _do(next, items, _END)) is not _END:
        yield item


class CallStream(_Face[_episode.CallStream]):
    def __aiter__(self) -> AsyncIterator[Chunk]:
        return _each(iter(self.sync))

    async def result(self) -> CallResult:
        """The call's result; reads what output is left."""
        return await _do(lambda: self.sync.result)

    close = _awaited(_episode.CallStream.close)

    async def __aenter__(self) -> CallStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Session(_Face[_episode.Session]):
    run = _awaited(_episode.Session.run)
    close = _awaited(_episode.Session.close)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _do(self.sync.__exit__, kind, e, trace)


class Episode(_Face[_episode.Episode]):
    exec = _awaited(_episode.Episode.exec)
    stream = _awaited_as(CallStream, _episode.Episode.stream)
    tool = _awaited(_episode.Episode.tool)
    session = _awaited_as(Session, _episode.Episode.session)
    read = _awaited(_episode.Episode.read)
    write = _awaited(_episode.Episode.write)
    list = _awaited(_episode.Episode.list)
    stat = _awaited(_episode.Episode.stat)
    remove = _awaited(_episode.Episode.remove)
    upload = _awaited(_episode.Episode.upload)
    download = _awaited(_episode.Episode.download)
    finish = _awaited(_episode.Episode.finish)
    abort = _awaited(_episode.Episode.abort)
    pause = _awaited(_episode.Episode.pause)
    resume = _awaited(_episode.Episode.resume)
    keepalive = _awaited(_episode.Episode.keepalive)
    refresh = _awaited(_episode.Episode.refresh)
    wait = _awaited(_episode.Episode.wait)
    delete = _awaited(_episode.Episode.delete)
    score = _awaited(_episode.Episode.score)
    write_reward = _awaited(_episode.Episode.write_reward)
    changes = _awaited(_episode.Episode.changes)
    trajectory = _awaited(_episode.Episode.trajectory)
    payload = _awaited(_episode.Episode.payload)

    @property
    def info(self) -> EpisodeInfo:
        return self.sync.info

    @property
    def kept(self) -> bool:
        return self.sync.kept

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def attempt(self) -> int:
        return self.sync.attempt

    @property
    def sample_seed(self) -> int:
        return self.sync.sample_seed

    @property
    def env_seed(self) -> int:
        return self.sync.env_seed

    @property
    def end(self) -> End | None:
        return self.sync.end

    @property
    def last(self) -> Attempt | None:
        return self.sync.last

    @property
    def reward(self) -> float | None:
        return self.sync.reward

    @property
    def valid(self) -> bool:
        return self.sync.valid

    async def __aenter__(self) -> Episode:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await _do(self.sync.__exit__, kind, e, trace)


class Batch(_Face[_batch.Batch]):
    wait = _awaited(_batch.Batch.wait)
    groups = _awaited(_batch.Batch.groups)
    refresh = _awaited(_batch.Batch.refresh)
    resume = _awaited(_batch.Batch.resume)
    cancel = _awaited(_batch.Batch.cancel)

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def info(self) -> BatchInfo:
        return self.sync.info

    def results(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[BatchResult]:
        return _each(self.sync.results(after=after, follow=follow))

    async def rescore(self, *graders: GraderRef) -> Batch:
        return Batch(await _do(self.sync.rescore, *graders))


class Worlds(_Face[_client.Worlds]):
    build = _awaited(_client.Worlds.build)
    get = _awaited(_client.Worlds.get)
    list = _awaited(_client.Worlds.list)
    remove = _awaited(_client.Worlds.remove)


class Run(_Face[_client.Run]):
    create = _awaited_as(Episode, _client.Run.create)
    create_from = _awaited_as(Episode, _client.Run.create_from)
    episode = _awaited_as(Episode, _client.Run.episode)
    cancel = _awaited(_client.Run.cancel)
    batch = _awaited_as(Batch, _client.Run.batch)
    get_batch = _awaited_as(Batch, _client.Run.get_batch)
    batches = _awaited(_client.Run.batches)
    grader = _awaited(_client.Run.grader)

    @property
    def name(self) -> str:
        return self.sync.name

    @property
    def generation(self) -> int:
        return self.sync.generation

    @property
    def worlds(self) -> Worlds:
        return Worlds(self.sync.worlds)

    def episodes(self, prefix: str = "") -> AsyncIterator[EpisodeInfo]:
        return _each(self.sync.episodes(prefix))

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class Client(_Face[_client.Client]):
    create = _awaited_as(Episode, _client.Client.create)
    create_from = _awaited_as(Episode, _client.Client.create_from)
    episode = _awaited_as(Episode, _client.Client.episode)
    cancel = _awaited(_client.Client.cancel)
    batch = _awaited_as(Batch, _client.Client.batch)
    get_batch = _awaited_as(Batch, _client.Client.get_batch)
    batches = _awaited(_client.Client.batches)
    grader = _awaited(_client.Client.grader)
    version = _awaited(_client.Client.version)
    capacity = _awaited(_client.Client.capacity)
    policies = _awaited(_client.Client.policies)
    policy = _awaited(_client.Client.policy)
    runs = _awaited(_client.Client.runs)
    run = _awaited_as(Run, _client.Client.run)

    @property
    def worlds(self) -> Worlds:
        return Worlds(self.sync.worlds)

    def episodes(self, prefix: str = "") -> AsyncIterator[EpisodeInfo]:
        return _each(self.sync.episodes(prefix))

    async def close(self) -> None:
        self.sync.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sync.close()


async def connect(socket: str | os.PathLike[str] | None = None) -> Client:
    """The same as paddock.connect."""
    return Client(await _do(_client.connect, socket))


async def run(
    name: str, *, seed: int = 0, resume: str = "new", socket: str | os.PathLike[str] | None = None
) -> Run:
    """connect() and open a run."""
    return await (await connect(socket)).run(name, seed=seed, resume=resume)
