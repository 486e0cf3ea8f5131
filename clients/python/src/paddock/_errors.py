"""What the SDK raises. What an agent does wrong is in results and never raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._types import Difference, End, decode


class PaddockError(Exception):
    """The base of all errors of the SDK.

    ``kind`` is stable; the daemon's OpenAPI document lists the kinds of each route.
    """

    def __init__(
        self,
        kind: str,
        detail: str = "",
        *,
        hint: str = "",
        field: str = "",
        status: int = 0,
        pointers: tuple[Difference, ...] = (),
        outcome: End | None = None,
        outcomes: tuple[End, ...] = (),
        retry_after: float = 0.0,
        incident: str = "",
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.hint = hint
        self.field = field
        self.status = status
        self.pointers = pointers
        self.outcome = outcome
        self.outcomes = outcomes
        self.retry_after = retry_after
        self.incident = incident
        super().__init__(self._text())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))

    def copy(self) -> PaddockError:
        """The same once more, to be raised in another place."""
        return _rebuild(type(self), dict(self.__dict__))

    def _text(self) -> str:
        text = f"{self.kind}: {self.detail}" if self.detail else self.kind
        if self.field and self.field.rsplit("/", 1)[-1] not in self.detail:
            text += f" (at {self.field})"
        for d in self.pointers:
            text += f"; {d.pointer}: {d.old!r}, now {d.new!r}"
        if self.outcome is not None:
            text += f" ({self.outcome.status} by {self.outcome.cause})"
        if self.incident:
            text += f" (incident {self.incident})"
        return f"{text}. {self.hint}" if self.hint else text


def _rebuild(cls: type[PaddockError], state: dict[str, Any]) -> PaddockError:
    return cls(**state)


class BadRequest(PaddockError):
    """The request does not fit: change it before asking again. ``field`` says where."""


class NotFound(PaddockError):
    """There is no such episode, batch, world, policy or grader."""


class EpisodeEnded(PaddockError):
    """The attempt has ended; ``outcome`` says how. Leaving a rollout with it is a normal end."""


class Superseded(PaddockError):
    """A later attempt of the episode has taken over; this rollout is history."""


class Fenced(PaddockError):
    """Another driver has resumed the run: this one must stop."""


class SpecConflict(PaddockError):
    """The id is taken by another spec; ``pointers`` say what differs."""


class CallConflict(PaddockError):
    """The call's number is taken by another call."""


class SessionLost(PaddockError):
    """The replica of the app that had the session's state is gone: begin another session."""


class PlatformError(PaddockError):
    """paddock itself failed. Never a reward."""


class Unavailable(PaddockError):
    """No daemon answers, or it takes no work: the same request may do later."""


_CLASSES: dict[str, type[PaddockError]] = {
    "not_found": NotFound,
    "route_not_found": NotFound,
    "unknown_world": NotFound,
    "unknown_policy": NotFound,
    "unknown_grader": NotFound,
    "unknown_app": NotFound,
    "session_lost": SessionLost,
    "app_down": Unavailable,
    "app_broken": Unavailable,
    "episode_deleted": NotFound,
    "episode_ended": EpisodeEnded,
    "superseded": Superseded,
    "fenced": Fenced,
    "spec_conflict": SpecConflict,
    "call_conflict": CallConflict,
    "call_cancelled": CallConflict,
    "platform": PlatformError,
    "corrupt": PlatformError,
    "internal": PlatformError,
    "over_capacity": Unavailable,
    "draining": Unavailable,
    "too_many_connections": Unavailable,
    "unavailable": Unavailable,
    "connection_lost": Unavailable,
}


def from_problem(problem: Mapping[str, Any], status: int = 0) -> PaddockError:
    """Make the exception of a problem document."""
    kind = str(problem.get("kind", ""))
    cls = _CLASSES.get(kind)
    status = int(problem.get("status", status))
    if cls is None:
        cls = PlatformError if status >= 500 else BadRequest
    outcome = problem.get("outcome")
    return cls(
        kind or f"http_{status}",
        str(problem.get("detail", "")),
        hint=str(problem.get("hint", "")),
        field=str(problem.get("field", "")),
        status=status,
        pointers=tuple(decode(Difference, d) for d in problem.get("pointers") or ()),
        outcome=decode(End, outcome) if outcome else None,
        outcomes=tuple(decode(End, e) for e in problem.get("outcomes") or ()),
        retry_after=float(problem.get("retry_after", 0.0)),
        incident=str(problem.get("incident", "")),
    )
