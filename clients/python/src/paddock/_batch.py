"""Batches: many episodes that the daemon itself drives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from ._graders import PendingGrader, kept
from ._http import STREAM, segment
from ._types import BatchInfo, BatchResult, GraderRef, Group, decode, graders_wire

if TYPE_CHECKING:
    from ._client import Scope


class Batch:
    """A handle on a batch. It can be pickled and used in another process."""

    def __init__(self, scope: Scope, info: BatchInfo) -> None:
        self._scope = scope
        self.info = info

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self._scope, self.info)

    def __repr__(self) -> str:
        return f"<Batch {self.id} {self.info.state} {self.info.done}/{self.info.total}>"

    @property
    def id(self) -> str:
        return self.info.id

    async def results(self, *, after: int = 0, follow: bool = True) -> AsyncGenerator[BatchResult, None]:
        """Results as they complete, after a seq; with follow until the batch is done.

        After Unavailable go on after the last seq: a result may come again, none is lost.
        """
        query: dict[str, Any] = {"after": after}
        if follow:
            query["follow"] = "true"
        response = await self._scope.request("GET", f"{self._path}/results", query=query, accept=STREAM)
        async for line in response.lines():
            yield decode(BatchResult, line)

    async def wait(self) -> BatchInfo:
        """Wait until the batch is done, and look at it."""
        async for _ in self.results(after=self.info.seq):
            pass
        return await self.refresh()

    async def groups(self) -> tuple[Group, ...]:
        """The groups as they are now; mean, deviation and advantages over valid members only."""
        return (await self.refresh()).groups

    async def refresh(self) -> BatchInfo:
        self.info = decode(BatchInfo, await self._scope.json("GET", self._path))
        return self.info

    async def resume(self) -> BatchInfo:
        """Go on with a batch that was interrupted or cancelled."""
        return await self._update("/resume")

    async def cancel(self, reason: str = "") -> BatchInfo:
        """Cancel what has not ended."""
        return await self._update("/cancel", {"reason": reason})

    async def rescore(self, *graders: GraderRef | PendingGrader) -> Batch:
        """Score every end state with other graders, as a new batch; no agent runs."""
        body = {"graders": graders_wire(await kept(graders))}
        answer = await self._scope.json("POST", f"{self._path}/scores", json_body=body)
        return Batch(self._scope, decode(BatchInfo, answer))

    @property
    def _path(self) -> str:
        return f"/v1/batches/{segment(self.id)}"

    async def _update(self, path: str, body: Any = None) -> BatchInfo:
        self.info = decode(BatchInfo, await self._scope.json("POST", self._path + path, json_body=body))
        return self.info
