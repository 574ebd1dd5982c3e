"""What may be asked of the queue about machines' health and about who is told of events. Answered by `Done`."""

from __future__ import annotations

from typing import TypeAlias

from stoker.model.frozen import frozen
from stoker.model.symptoms import Symptom


@frozen
class NoteSymptoms:
    """All that is wrong now: what is new is told, what is gone is over."""

    symptoms: tuple[Symptom, ...]


@frozen
class NoteReport:
    """What a machine's worker found out about it. Also from a worker of another version, and from an old start."""

    machine: str
    report: str
    """JSON, bounded by whoever read it."""


@frozen
class AddHook:
    """Tell somebody elsewhere of events from now on. `data` has its number."""

    url: str
    secret: str
    kinds: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Ids: a hook of one submission, which ends with it. Of those that have ended already the end is told."""
    is_inner: bool = False
    """It may be a private address: an admin made it."""
    by: str = ""

    def __repr__(self) -> str:
        # A secret must not come into a message by way of an error.
        return f"AddHook(for {len(self.jobs)} jobs, by {self.by})"


@frozen
class MoveHook:
    """How far a hook has come."""

    id: int
    cursor: int
    """The last event that was delivered, or that is not for it."""
    failures: int = 0
    """In a row."""
    failing_since_s: float | None = None
    not_before_s: float = 0.0
    last_error: str = ""


@frozen
class CloseHook:
    """Tell it nothing more."""

    id: int
    why: str = ""
    by: str = ""


HealthCommand: TypeAlias = NoteSymptoms | NoteReport | AddHook | MoveHook | CloseHook
