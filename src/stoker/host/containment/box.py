"""A box: what one attempt runs in, so that its memory has an end and nobody gets away.

    box = containment.open("job-stage", Limits(memory_bytes=cap), mark)
    child = start(argv, entry=box.entry, …)    # inside before its first instruction
    box.took_in(child.identity)
    …
    box.kill_all(); box.read(); box.close()    # nobody left, and how much it needed

Nouns and seams; the mechanisms are beside this file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from stoker.host.entry import Entry
from stoker.host.identity import ProcessIdentity
from stoker.model.frozen import frozen

__all__ = ["MARK", "Box", "BoxReading", "Containment", "Entry", "Limits", "Mechanism"]

MARK = "STOKER_MARK"
"""The variable by which strays are found where the kernel does not keep them together."""


class Mechanism(StrEnum):
    """Ways to contain, strongest first: the order in which they are tried."""

    SYSTEMD = "systemd"
    CGROUP2 = "cgroup2"
    CGROUP1 = "cgroup1"
    ADDRESS_SPACE = "address_space"
    WATCHDOG = "watchdog"
    BARE = "bare"


@frozen
class Limits:
    """How much memory everybody in a box may hold together."""

    memory_bytes: int | None
    """Beyond it they are killed. `None`: no limit."""
    soft_memory_bytes: int | None = None
    """Beyond it they are slowed down and give back what they can."""
    swap_bytes: int = 0
    """Better killed than thrashing."""
    uses_gpu: bool = False
    """Drivers reserve far more address space than they use."""


@frozen
class BoxReading:
    """What a box says about those who were in it."""

    peak_bytes: int | None
    """The most memory they needed together: without what the kernel kept for them of files that were read or written,
    as far as that can be told. `None` where nobody counts."""
    was_out_of_memory: bool
    """Whether somebody in it was killed for memory. That need not be the program itself: a shell around it, or the
    parent of a killed reader of data, may end as if all were well."""
    how: str
    """Where these come from, for people."""
    charged_bytes: int | None = None
    """The most that was counted against the limit, cached files included."""


class Box(Protocol):
    """What one attempt runs in."""

    mechanism: Mechanism
    entry: Entry

    def took_in(self, identity: ProcessIdentity) -> None:
        """Learn who was started in it; call it right after the start. Raises `ContainmentUnavailable`."""

    def read(self) -> BoxReading:
        """Give peak and verdict so far; worth asking now and then, and once more before it is closed."""

    def members(self) -> tuple[int, ...]:
        """Give everybody inside who still runs, however often they forked or left their session."""

    def kill_all(self) -> None:
        """Kill everybody inside and see them gone. Raises `ProcessLost` if somebody stays."""

    def close(self) -> None:
        """Leave nothing behind: no process, folder or unit. Twice is fine. Raises `ProcessLost`."""


class Containment(Protocol):
    """A mechanism that works here."""

    mechanism: Mechanism
    warning: str
    """A line that a person has to see; empty where the kernel itself keeps the limit."""

    def open(self, name: str, limits: Limits, mark: str) -> Box:
        """Make a box. `name` says whose (`JOB-STAGE`), `mark` is unique per attempt and in its environment."""
