"""What the ledger answers, with its reasons."""

from __future__ import annotations

from enum import StrEnum

from stoker.core.device import Device, MemoryType, usable_bytes
from stoker.core.frozen import frozen
from stoker.devices.device_fit import shares
from stoker.devices.ledger.entries import Reservation
from stoker.host.identity import ProcessIdentity

# What is asked of the ledger: how much, on which devices, for whom.

LEASE_S = 90.0
"""How long a reservation counts that nobody renews and whose process can't be seen from here."""
LONGEST_LEASE_S = 3600.0
WAIT_S = 3600.0
"""How long room is waited for unless told."""


@frozen
class CandidateDevice:
    """One device that would do."""

    uuid: str
    total_bytes: int
    memory_type: MemoryType = MemoryType.DISCRETE
    name: str = ""
    shares: bool = False
    """Whoever owns the machine lets jobs share it, also those that did not ask to."""
    slots: int = 0
    """How many may hold some of it at once; zero: as many as fit."""
    is_fake: bool = False

    @property
    def usable_bytes(self) -> int:
        """What those who share it may be promised together."""
        return usable_bytes(self.total_bytes, self.memory_type)

    @classmethod
    def of(cls, device: Device, *, shares: bool = False, slots: int = 0) -> CandidateDevice | None:
        """Return the candidate that a found device is; none if nobody knows its size."""
        if device.total_bytes is None:
            return None
        return cls(
            uuid=device.uuid,
            total_bytes=device.total_bytes,
            memory_type=device.memory_type,
            name=device.name,
            shares=shares,
            slots=slots,
            is_fake=device.is_fake,
        )


@frozen
class DeviceRequest:
    """One wish for room: all of it at once, or nothing."""

    job: str
    """What it is for, in words that a person knows it by."""
    devices: tuple[CandidateDevice, ...]
    """Any of these; the first that fit are taken, after those where the base is loaded already."""
    count: int = 1
    """How many of them, together."""
    vram_bytes: int = 0
    """On each; zero: nothing declared, which takes the device whole."""
    may_share: bool = False
    """Others may hold the rest of it. A wish without `vram_bytes`, or for more than is shared out, shares nothing."""
    base: str = ""
    """What it has in common with others on a device, which is charged there once: the digest of a base model."""
    base_bytes: int = 0
    """How much of `vram_bytes` that is."""
    owner: ProcessIdentity | None = None
    """Whose end gives it back; `None`: this process. `Ledger.hand_over` changes it."""
    lease_s: float = LEASE_S

    def __post_init__(self) -> None:
        faults = [
            *(["count is at least 1"] if self.count < 1 else []),
            *(["sizes are not negative"] if min(self.vram_bytes, self.base_bytes) < 0 else []),
            *(["the base is a part of vram_bytes"] if self.base_bytes > self.vram_bytes else []),
            *(["base_bytes need a base"] if self.base_bytes and not self.base else []),
            *(["a device is listed twice"] if len({one.uuid for one in self.devices}) < len(self.devices) else []),
            *(["a lease has a length, of an hour at most"] if not 0 < self.lease_s <= LONGEST_LEASE_S else []),
        ]
        if faults:
            message = f"not a wish for room: {'; '.join(faults)}"
            raise ValueError(message)

    def shares(self, device: CandidateDevice) -> bool:
        """Return whether it would have this device together with others.

        Who wants more of it than may be shared out still gets the device, alone.
        """
        return shares(self.vram_bytes, device.usable_bytes, is_allowed=self.may_share or device.shares)


class DeviceLimit(StrEnum):
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
class HeldReservation:
    """Room that is promised, until it is released or its owner ends."""

    entry: Reservation

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
    bound: DeviceLimit
    why: str
    needed_bytes: int = 0
    room_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        return max(0, self.needed_bytes - self.room_bytes)


@frozen
class DevicesBusy:
    """It would fit, but not now."""

    why: str
    bound: DeviceLimit
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
class DeviceWaitProgress:
    """How a wait goes on."""

    attempt: int
    elapsed_s: float
    remaining_s: float
    answer: DevicesBusy

    @property
    def place(self) -> int:
        """Which in line it is: 1 is next."""
        return self.answer.ahead + 1


@frozen
class MeasuredDeviceUse:
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
