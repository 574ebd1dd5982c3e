"""What is known of machines when their health is judged. Nouns alone; `gathering` makes them, `symptoms` reads them."""

from __future__ import annotations

from stoker.model.frozen import fresh, frozen


@frozen
class MachineFacts:
    """One machine, as it stands."""

    name: str
    version: str = ""
    last_seen_s: float
    has_left: bool = False
    """Its worker said goodbye."""
    disk_free_bytes: int | None = None
    closed_devices: frozenset[str] = frozenset()


@frozen
class Coming:
    """A machine's worker was started, or it fell silent."""

    machine: str
    at_s: float
    is_new_start: bool


@frozen
class Ending:
    """One attempt that has ended."""

    seq: int
    """The job's number."""
    machine: str
    devices: tuple[str, ...] = ()
    recipe: str
    name: str
    """The job's, without its number in a sweep."""
    ending: str
    """completed, failed, declined, expired …"""
    cause: str = ""
    message: str = ""
    seconds: float | None = None
    """From its start to its end; nothing: it never started."""

    @property
    def work(self) -> str:
        """What jobs that can be compared have in common; programs only within one job's name."""
        return f"{self.recipe} {self.name}" if self.recipe == "command" else self.recipe


@frozen
class Facts:
    """All of it, at one moment."""

    now_s: float
    version: str
    """The coordinator's."""
    machines: tuple[MachineFacts, ...] = ()
    comings: tuple[Coming, ...] = ()
    """Of the last hour."""
    endings: tuple[Ending, ...] = fresh(factory=tuple)
    """The newest, oldest first."""
