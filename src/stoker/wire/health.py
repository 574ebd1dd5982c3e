"""How machines are, and who is told of what happens: reports of workers, symptoms, hooks, and the checker's verdict."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from stoker.wire.asking import By
from stoker.wire.leasing import Fact, Name
from stoker.wire.orders import JobId
from stoker.wire.protocol import Asked, Message
from stoker.wire.views import Count, Line, Seconds

ALL_WORDS = ("submitted", "started", "completed", "failed", "cancelled", "retrying", "symptom", "machine", "trust")
"""What a hook can be told of."""
USUAL_WORDS = ("completed", "failed", "cancelled", "symptom")
MOST_HOOKED_JOBS = 10_000


class Found(Message):
    """One line of what a machine's `stoker doctor` says."""

    name: Fact
    verdict: Fact
    """ok, warn or bad."""
    message: Annotated[str, Field(max_length=1000)] = ""
    hint: Annotated[str, Field(max_length=1000)] = ""


class MachineReport(Message):
    """What a worker found out about its machine: at its start, and once a day."""

    worker: Name
    version: Fact = ""
    protocol: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    wall_s: float
    """Its clock when it sent this, to show how far it is off; nothing is decided by it."""
    findings: Annotated[tuple[Found, ...], Field(max_length=200)] = ()


class HookAsk(Asked):
    """Tell somebody elsewhere of events, by POST requests with a signature."""

    url: Annotated[str, Field(min_length=8, max_length=2000)]
    on: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Words of `ALL_WORDS`; none: the usual ones."""
    jobs: Annotated[tuple[JobId, ...], Field(max_length=MOST_HOOKED_JOBS)] = ()
    """Of these alone, and until all of them have ended."""
    by: By = ""


class HookView(Message):
    """A hook, without its secret."""

    id: Count
    url: Line
    on: tuple[Line, ...] = ()
    jobs: Count = 0
    """How many it is for; 0: for all."""
    cursor: Count
    failures: Count = 0
    last_error: Line = ""
    made_s: Seconds
    closed_s: Seconds | None = None
    by: Line = ""


class HookMade(Message):
    """A new hook; what signs its messages is told this once."""

    hook: HookView
    secret: str


class HookList(Message):
    """All hooks."""

    hooks: tuple[HookView, ...] = ()


class HookTried(Message):
    """What became of a message that was sent to try a hook."""

    is_delivered: bool
    status: Count = 0
    message: Line = ""


class Verdict(Message):
    """What the history checker found."""

    jobs: Count
    """How many it looked at: the newest."""
    is_whole: bool
    """Those were all."""
    seconds: Seconds
    rules: dict[Line, Count]
    """Every promise, with how often it was broken."""
    violations: tuple[dict[str, Any], ...] = ()
    """The first of them, with the rows that show them."""

    @property
    def is_clean(self) -> bool:
        return not any(self.rules.values())
