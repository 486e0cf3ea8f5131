"""Sets of verifiable problems: keep, sample by iteration, score completions.

    from paddock.dataset import Dataset, score

    sums = Dataset.put(client, "sums.jsonl", name="sums")
    for iteration in range(start, 100):
        problems = sums.sample(iteration, 64)
        scores = sums.score([(p.id, model(p.prompt)) for p in problems], rule="number")

A sample is a function of the set, the seed and the iteration: a trainer that goes on after a
stop asks for its next iteration and has to remember nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._blocking import done, each
from ._errors import Unavailable, from_problem
from ._http import BYTES, STREAM, segment
from ._sync import Client
from ._types import decode


@dataclass(frozen=True)
class Problem:
    """One problem; prompt, answer, tests and metadata are any JSON."""

    id: str = ""
    prompt: Any = field(default=None)
    answer: Any = field(default=None)
    tests: Any = field(default=None)
    metadata: Any = field(default=None)


@dataclass(frozen=True)
class Score:
    """One completion's score, None where something failed that is not the completion's."""

    index: int = 0
    id: str = ""
    score: float | None = None
    extracted: str = ""
    found: bool = False
    detail: str = ""
    cached: bool = False


def score(
    client: Client,
    items: Iterable[Mapping[str, Any]],
    *,
    rule: str,
    dataset: str = "",
    extract: Sequence[Mapping[str, Any]] = (),
    abs: float = 0.0,
    rel: float = 0.0,
    done_item: Callable[[Score], None] | None = None,
) -> list[Score]:
    """Score completions in one call, in the items' order; ``done_item`` is told of each as it is found.

    An item has ``completion`` and the ``id`` of its problem, or its own ``answer`` or ``tests``.
    """
    body: dict[str, Any] = {"items": [dict(i) for i in items], "rule": rule}
    for name, value in (
        ("dataset", dataset),
        ("extract", [dict(e) for e in extract]),
        ("abs", abs),
        ("rel", rel),
    ):
        if value:
            body[name] = value
    answer = done(client._core.transport.request("POST", "/v1/scores", json_body=body, accept=STREAM))
    found: dict[int, Score] = {}
    count = 0
    for event in each(answer.lines()):
        if "error" in event:
            raise from_problem(event["error"])
        if "score" in event:
            one = decode(Score, event["score"])
            found[one.index] = one
            if done_item is not None:
                done_item(one)
        else:
            count = event["count"]
    if count != len(body["items"]):
        raise Unavailable("connection_lost", "the stream ended without its last line")
    return [found[i] for i in range(count)]


class Dataset:
    """A set that the daemon keeps, by its digest or a name."""

    def __init__(self, client: Client, ref: str) -> None:
        self._client = client
        info = done(done(client._core.transport.request("GET", f"/v1/datasets/{segment(ref)}")).json())
        self.digest: str = info["digest"]
        self.names: tuple[str, ...] = tuple(info.get("names") or ())
        self._size: int = info["problems"]

    @classmethod
    def put(cls, client: Client, file: str | os.PathLike[str], **query: str) -> Dataset:
        """Keep a file's problems: JSONL, JSON, CSV or Parquet, by the ending of its name.

        ``query`` has name, format, and the columns id, prompt, answer, tests.
        """
        path = Path(file)
        query.setdefault("format", path.suffix.lstrip(".") or "jsonl")
        answer = client._core.transport.request(
            "POST", "/v1/datasets", query=query, body=path.read_bytes(), media=BYTES
        )
        return cls(client, done(done(answer).json())["digest"])

    def __len__(self) -> int:
        return self._size

    def sample(self, iteration: int, n: int, *, seed: int = 0, order: str = "shuffle") -> list[Problem]:
        """The problems of an iteration, from 0."""
        query = {"iteration": iteration, "n": n, "seed": seed, "order": order}
        url = f"/v1/datasets/{segment(self.digest)}/sample"
        answer = done(done(self._client._core.transport.request("GET", url, query=query)).json())
        return [Problem(**p) for p in answer["problems"]]

    def score(self, completions: Iterable[tuple[str, str]], *, rule: str, **spec: Any) -> list[Score]:
        """Score (problem id, completion) pairs; the rest is as of ``score``."""
        items = [{"id": problem, "completion": text} for problem, text in completions]
        return score(self._client, items, rule=rule, dataset=self.digest, **spec)

    def remove(self) -> None:
        """Remove the set and its names from the daemon."""
        done(self._client._core.transport.request("DELETE", f"/v1/datasets/{segment(self.digest)}"))
