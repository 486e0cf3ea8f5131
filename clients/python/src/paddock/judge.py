"""Judge code by test cases, each in a clean fork of one compilation.

from paddock.judge import judge

result = judge(client, "python", "print(int(input()) * 2)", [{"stdin": "21", "stdout": "42"}])
result.score  # 1.0; None where the platform or a checker failed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._blocking import done, each
from ._errors import Unavailable, from_problem
from ._http import STREAM
from ._sync import Client
from ._types import decode


@dataclass(frozen=True)
class Stage:
    """How one program ran: a compilation, a case or a checker."""

    verdict: str = ""
    detail: str = ""
    exit_code: int | None = None
    signal: int = 0
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_peak: int = 0


@dataclass(frozen=True)
class CaseResult:
    """One case. ``passed`` is None where the verdict does not judge the code."""

    index: int = 0
    name: str = ""
    verdict: str = ""
    passed: bool | None = None
    detail: str = ""
    run: Stage | None = None
    checker: Stage | None = None
    value: Any = field(default=None)


@dataclass(frozen=True)
class Result:
    """A judgement. ``score`` is the share of cases that passed, None where the platform failed."""

    world: str = ""
    language: str = ""
    verdict: str = ""
    compile: Stage | None = None
    kept: bool = False
    cases: tuple[CaseResult, ...] = ()
    passed: int = 0
    score: float | None = None
    wall_s: float = 0.0


def judge(
    client: Client,
    language: str,
    code: str,
    cases: Sequence[Mapping[str, Any]],
    *,
    done_case: Callable[[CaseResult], None] | None = None,
    **spec: Any,
) -> Result:
    """Judge code. ``cases`` and ``spec`` have the fields of POST /v1/judge.

    ``done_case`` is told of each case as it ends. What the request got wrong raises
    BadRequest, which names the field.
    """
    body = {"language": language, "code": code, "cases": [dict(c) for c in cases], **spec}
    transport = client._core.transport
    if done_case is None:
        return decode(Result, done(done(transport.request("POST", "/v1/judge", json_body=body)).json()))
    found: dict[int, CaseResult] = {}
    result: dict[str, Any] | None = None
    answer = done(transport.request("POST", "/v1/judge", json_body=body, accept=STREAM))
    for event in each(answer.lines()):
        if "error" in event:
            raise from_problem(event["error"])
        if "case" in event:
            case = decode(CaseResult, event["case"])
            found[case.index] = case
            done_case(case)
        else:
            result = event["result"]
    if result is None:
        raise Unavailable("connection_lost", "the stream ended without a result")
    whole = decode(Result, {**result, "cases": []})
    return Result(**{**vars(whole), "cases": tuple(found[i] for i in sorted(found))})


def languages(client: Client) -> list[dict[str, Any]]:
    """What the judge knows: name, aliases, and the Debian packages that bring the tools."""
    answer = done(done(client._core.transport.request("GET", "/v1/languages")).json())
    found: list[dict[str, Any]] = answer["languages"]
    return found
