"""The face for asyncio: the same methods, awaited.

Requests do not run in threads: each in flight has a connection of its own, and the event
loop is not held up. Cancelling a task breaks its request off, and the daemon ends the call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ._asyncio import Transport
from ._batch import Batch
from ._client import Client, Run, RunDefaults, check_version
from ._episode import CallStream, Episode, Session
from ._graders import PendingGrader
from ._http import socket_path
from ._queue import GroupResult, Member, Queue
from ._worlds import Worlds

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Batch",
    "CallStream",
    "Client",
    "Episode",
    "GroupResult",
    "Member",
    "PendingGrader",
    "Queue",
    "Run",
    "Session",
    "Worlds",
    "connect",
    "run",
]


async def connect(socket: str | os.PathLike[str] | None = None) -> Client:
    """The same as paddock.connect."""
    client = Client(Transport.at(socket_path(socket)))
    await check_version(client)
    return client


async def run(
    name: str,
    *,
    seed: int = 0,
    resume: str = "new",
    socket: str | os.PathLike[str] | None = None,
    **defaults: Unpack[RunDefaults],
) -> Run:
    """connect() and open a run."""
    return await (await connect(socket)).run(name, seed=seed, resume=resume, **defaults)
