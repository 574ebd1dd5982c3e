"""What the ledger answers, with its reasons."""

from __future__ import annotations

from enum import StrEnum

from stoker.hardware.ledger.entries import Entry
from stoker.host.identity import ProcessIdentity
from stoker.model.frozen import frozen


class Bound(StrEnum):
    """Which limit was in the way."""

    LINE = "line"
    """Others were here before, and wait for the same devices."""
    TAKEN = "taken"
    """Somebody has the device to himself."""
    OCCUPIED = "occupied"
    """It is wanted whole, and others hold some of it."""
    SLOTS = "slots"
    """As many as may hold some of it at once do."""
    LEDGER = "ledger"
    """What is promised to others leaves too little."""
    MEASURED = "measured"
    """The driver has less than that free."""
    SIZE = "size"
    """The device is too small, or there are too few."""


@frozen
class Held:
    """Room that is promised, until it is released or its owner ends."""

    entry: Entry

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def uuids(self) -> tuple[str, ...]:
        """The devices, in the order of the wish."""
        return self.entry.uuids

    @property
    def owner(self) -> ProcessIdentity:
        return self.entry.owner


@frozen
class Shortfall:
    """Why one device does not do."""

    uuid: str
    bound: Bound
    why: str
    needed_bytes: int = 0
    room_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        return max(0, self.needed_bytes - self.room_bytes)


@frozen
class NoRoomNow:
    """It would fit, but not now."""

    why: str
    bound: Bound
    nearest: Shortfall
    """Of the devices that lack something, the one that lacks least."""
    shortfalls: tuple[Shortfall, ...]
    """Every device that does not do now."""
    ahead: int = 0
    """How many who want the same devices wait before this one."""
    number: int | None = None
    """The number that was drawn, if it waits in line."""


@frozen
class NeverFits:
    """No device that was named can ever hold it."""

    why: str
    shortfalls: tuple[Shortfall, ...]
    hint: str = ""


@frozen
class Progress:
    """How a wait goes on."""

    attempt: int
    elapsed_s: float
    remaining_s: float
    answer: NoRoomNow

    @property
    def place(self) -> int:
        """Which in line it is: 1 is next."""
        return self.answer.ahead + 1


@frozen
class Measured:
    """What an owner really takes, beside what it was promised, on the device where it is furthest beyond."""

    uuid: str
    promised_bytes: int
    """The whole device, if it never said how much."""
    measured_bytes: int
    """The most that was seen."""
    percent: int
    """Of the promise."""
    is_over: bool
    """More than a fifth above the promise: worth a warning."""
    is_past_limit: bool
    """Above the limit that whoever asked has set: time to end it."""
    beside_bytes: int = 0
    """Of a base that it has in common with others in its process: what that one takes beside it now, for all."""
    beside_promised_bytes: int = 0
    """What they were promised beside it, together."""
