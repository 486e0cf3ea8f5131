"""The synchronous face: each method is the coroutine of the same name, run to its end."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from . import _asyncio, _batch, _client, _episode, _queue, _worlds
from ._blocking import Transport, done, each
from ._client import RunDefaults, check_version
from ._graders import GraderFiles, PendingGrader
from ._http import socket_path
from ._types import (
    Attempt,
    BatchInfo,
    BatchResult,
    CallResult,
    Chunk,
    End,
    EpisodeInfo,
    Grader,
    GraderRef,
    World,
    WorldRef,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
R = TypeVar("R")
F = TypeVar("F")
P = ParamSpec("P")


class _Face(Generic[C_co]):
    """An object whose coroutines are run."""

    def __init__(self, core: C_co) -> None:
        self._core = core

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._core,)


def _run(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Face[C], P], R]:
    @functools.wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return done(method(self._core, *args, **kwargs))

    return call


def _run_as(
    face: Callable[[R], F], method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[_Face[C], P], F]:
    @functools.wraps(method)
    def call(self: _Face[C], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return face(done(method(self._core, *args, **kwargs)))

    return call


class CallStream(_Face[_episode.CallStream]):
    """A call whose output is iterated over as it comes; ``result`` is there at the end."""

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            return done(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def result(self) -> CallResult:
        """The call's result; reads what output is left."""
        return done(self._core.result())

    close = _run(_episode.CallStream.close)

    def __enter__(self) -> CallStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session(_Face[_episode.Session]):
    """A shell that keeps its directory and variables from one input to the next."""

    run = _run(_episode.Session.run)
    close = _run(_episode.Session.close)

    @property
    def name(self) -> str:
        return self._core.name

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> None:
        done(self._core.__aexit__(kind, e, trace))


class Episode(_Face[_episode.Episode]):
    __doc__ = _episode.Episode.__doc__

    exec = _run(_episode.Episode.exec)
    stream = _run_as(CallStream, _episode.Episode.stream)
    tool = _run(_episode.Episode.tool)
    session = _run_as(Session, _episode.Episode.session)
    read = _run(_episode.Episode.read)
    write = _run(_episode.Episode.write)
    list = _run(_episode.Episode.list)
    stat = _run(_episode.Episode.stat)
    remove = _run(_episode.Episode.remove)
    upload = _run(_episode.Episode.upload)
    download = _run(_episode.Episode.download)
    finish = _run(_episode.Episode.finish)
    abort = _run(_episode.Episode.abort)
    pause = _run(_episode.Episode.pause)
    resume = _run(_episode.Episode.resume)
    keepalive = _run(_episode.Episode.keepalive)
    refresh = _run(_episode.Episode.refresh)
    wait = _run(_episode.Episode.wait)
    delete = _run(_episode.Episode.delete)
    score = _run(_episode.Episode.score)
    write_reward = _run(_episode.Episode.write_reward)
    changes = _run(_episode.Episode.changes)
    trajectory = _run(_episode.Episode.trajectory)
    payload = _run(_episode.Episode.payload)

    def fork(self, n: int | Sequence[str]) -> tuple[Episode, ...]:
        """Episodes that go on from this live one's files, under ids of theirs or ``ID.f0`` on."""
        return tuple(Episode(e) for e in done(self._core.fork(n)))

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def info(self) -> EpisodeInfo:
        """The episode as this handle was last told."""
        return self._core.info

    @property
    def kept(self) -> bool:
        """Nothing was started by create: this is what is kept of the id, or was live already."""
        return self._core.kept

    @property
    def run(self) -> str:
        return self._core.run

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def attempt(self) -> int:
        return self._core.attempt

    @property
    def sample_seed(self) -> int:
        """The seed for sampling tokens."""
        return self._core.sample_seed

    @property
    def env_seed(self) -> int:
        return self._core.env_seed

    @property
    def end(self) -> End | None:
        """How the attempt ended, as far as this handle was told."""
        return self._core.end

    @property
    def last(self) -> Attempt | None:
        return self._core.last

    @property
    def reward(self) -> float | None:
        return self._core.reward

    @property
    def valid(self) -> bool:
        return self._core.valid

    def __enter__(self) -> Episode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return done(self._core.__aexit__(kind, e, trace))


class Batch(_Face[_batch.Batch]):
    """A handle on a batch. It can be pickled and used in another process."""

    wait = _run(_batch.Batch.wait)
    groups = _run(_batch.Batch.groups)
    refresh = _run(_batch.Batch.refresh)
    resume = _run(_batch.Batch.resume)
    cancel = _run(_batch.Batch.cancel)

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def info(self) -> BatchInfo:
        return self._core.info

    def results(self, *, after: int = 0, follow: bool = True) -> Iterator[BatchResult]:
        """Results as they complete, after a seq; with follow until the batch is done.

        After Unavailable go on after the last seq: a result may come again, none is lost.
        """
        return each(self._core.results(after=after, follow=follow))

    def rescore(self, *graders: GraderRef) -> Batch:
        """Score every end state with other graders, as a new batch; no agent runs."""
        return Batch(done(self._core.rescore(*graders)))


class Worlds(_Face[_worlds.Worlds]):
    """The daemon's worlds. Called with a mapping, it builds or finds a world for each entry."""

    __call__ = _run(_worlds.Worlds.__call__)
    build = _run(_worlds.Worlds.build)
    dockerfile = _run(_worlds.Worlds.dockerfile)
    get = _run(_worlds.Worlds.get)
    remove = _run(_worlds.Worlds.remove)

    def list(self) -> tuple[World, ...]:
        return done(self._core.list())


S_co = TypeVar("S_co", bound=_client.Scope, covariant=True)


class _Scope(_Face[S_co]):
    create = _run_as(Episode, _client.Scope.create)
    create_from = _run_as(Episode, _client.Scope.create_from)
    episode = _run_as(Episode, _client.Scope.episode)
    cancel = _run(_client.Scope.cancel)
    batch = _run_as(Batch, _client.Scope.batch)
    get_batch = _run_as(Batch, _client.Scope.get_batch)
    batches = _run(_client.Scope.batches)

    @property
    def socket(self) -> str:
        return self._core.socket

    @property
    def worlds(self) -> Worlds:
        return Worlds(_worlds.Worlds(self._core))

    def episodes(self, prefix: str = "") -> Iterator[EpisodeInfo]:
        """Episodes in order of their ids."""
        return each(self._core.episodes(prefix))

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
    ) -> Grader:
        """Keep a grader: a command and files (name to content or path, or a directory).

        A directory alone is run by its entry: ``grade`` (an executable), ``grade.sh`` or
        ``grade.py``. The files are in /grader unless ``dir`` is given. The same content is the
        same grader.
        """
        pending = self._core.grader(
            command,
            files,
            dir=dir,
            env=env,
            user=user,
            policy=policy,
            limits=limits,
            verdict=verdict,
            mode=mode,
            boot=boot,
            reward_range=reward_range,
            on_no_verdict=on_no_verdict,
            protected=protected,
            on_tamper=on_tamper,
            weight=weight,
        )
        return done(pending.keep())


class Queue:
    """Groups of rollouts that this process plays, for code without an event loop of its own.

    One runs in a thread behind it, and each rollout, a plain function of a synchronous episode
    and its task, in a thread too. See ``run.queue``.
    """

    def __init__(
        self, run: _client.Run, rollout: _queue.Rollout, graders: Sequence[Any], options: Any
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="paddock-queue", daemon=True)
        self._thread.start()
        self._core: _queue.Queue = self._await(self._make(run, rollout, graders, options))

    @staticmethod
    async def _make(run: _client.Run, rollout: _queue.Rollout, graders: Any, options: Any) -> _queue.Queue:
        return run.queue(rollout, *graders, **options)

    def _await(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _do(self, work: Callable[[], None]) -> None:
        async def there() -> None:
            work()

        self._await(there())

    def add(self, id: str, *, task: Any = None, world: WorldRef, **spec: Any) -> None:
        """Add a group: members ``id/s0``, ``id/s1``, ..., each a rollout of the task."""
        self._do(lambda: self._core.add(id, task=task, world=world, **spec))

    def seal(self) -> None:
        """Nothing more will be added."""
        self._do(self._core.seal)

    def cancel(self, prefix: str = "", **which: Any) -> None:
        """Cancel what has not ended, by prefix, ``group``, ``weights`` or ``weights_before``."""
        self._do(lambda: self._core.cancel(prefix, **which))

    def groups(self, n: int | None = None, *, deadline: float | None = None) -> Iterator[_queue.GroupResult]:
        """Complete groups of those that were added, in the order in which they complete."""
        found = self._core.groups(n, deadline=deadline)

        async def one() -> _queue.GroupResult | None:
            try:
                return await found.__anext__()
            except StopAsyncIteration:
                return None

        async def end() -> None:
            await found.aclose()

        try:
            while (group := self._await(one())) is not None:
                yield group
        finally:
            self._await(end())

    def close(self) -> None:
        """Stop playing. What is not done is kept for whoever opens the queue again."""
        if self._thread.is_alive():
            self._await(self._core.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(_Scope[_client.Client]):
    """A daemon. Its own episodes are in the run ``default``, which is never fenced."""

    version = _run(_client.Client.version)
    capacity = _run(_client.Client.capacity)
    policies = _run(_client.Client.policies)
    policy = _run(_client.Client.policy)
    runs = _run(_client.Client.runs)

    def run(self, name: str, *, seed: int = 0, resume: str = "new", **defaults: Unpack[RunDefaults]) -> Run:
        """Open a run: ``new`` refuses a known name, ``resume`` an unknown one, ``auto`` neither.

        Resuming fences the earlier driver: its requests raise Fenced. The rest are defaults of
        the run's episodes.
        """
        return Run(done(self._core.run(name, seed=seed, resume=resume, **defaults)))

    def close(self) -> None:
        """Close idle connections. Episodes live on: their lease is the process's."""
        self._core.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Run(_Scope[_client.Run]):
    """A name space of episode ids, driven by one driver: every request has its generation.

    ``with`` gives the run itself, ``async with`` its face for asyncio.
    """

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def generation(self) -> int:
        return self._core.generation

    @property
    def seed(self) -> int:
        return self._core.seed

    def queue(self, rollout: _queue.Rollout, *graders: _queue.AnyGrader, **options: Any) -> Queue:
        """A queue of groups that ``rollout(ep, task)`` plays; the options are those of ``aio.Run.queue``.

        Close it, or use it as a context manager.
        """
        return Queue(self.aio(), rollout, graders, options)

    def aio(self) -> _client.Run:
        """The same run's face for asyncio."""
        c = self._core
        return _client.Run(_asyncio.Transport.at(c.socket), c.name, c.generation, c.seed, c.defaults)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    async def __aenter__(self) -> _client.Run:
        self._entered = self.aio()
        return self._entered

    async def __aexit__(self, *_: object) -> None:
        await self._entered.__aexit__()


@overload
def rescore(batch: Batch, *graders: GraderRef) -> Batch: ...


@overload
def rescore(
    batch: _batch.Batch | _queue.Queue, *graders: GraderRef | PendingGrader
) -> Coroutine[Any, Any, _batch.Batch]: ...


def rescore(
    batch: Batch | _batch.Batch | _queue.Queue, *graders: Any
) -> Batch | Coroutine[Any, Any, _batch.Batch]:
    """Score every end state of a batch or queue with other graders, as a new batch.

    No agent runs, and the episodes stay as they are. A queue is sealed for it. What belongs to
    asyncio is awaited.
    """
    return batch.rescore(*graders)


def connect(socket: str | os.PathLike[str] | None = None) -> Client:
    """Connect to the daemon at ``socket``, else PADDOCK_SOCKET, else /run/paddock/paddock.sock.

    Raises Unavailable, whose kind and text say what is wrong: ``unavailable`` (no daemon),
    ``permission_denied`` (and which group may), ``version`` (another one answers).
    """
    core = _client.Client(Transport.at(socket_path(socket)))
    done(check_version(core))
    return Client(core)


def run(
    name: str,
    *,
    seed: int = 0,
    resume: str = "new",
    socket: str | os.PathLike[str] | None = None,
    **defaults: Unpack[RunDefaults],
) -> Run:
    """connect() and open a run: ``with`` for the synchronous face, ``async with`` for asyncio."""
    return connect(socket).run(name, seed=seed, resume=resume, **defaults)
