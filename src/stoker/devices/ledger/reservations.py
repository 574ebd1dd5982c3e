"""Types of the ledger: reservations, queued requests, requests, answers with reasons, meters.

A record that is read was written by another process of this machine, so reading is strict: every field has its type and
its bounds, nothing is missing and nothing is left over. Anything else raises `ValueError`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from stoker.core.device import Device, MemoryType, usable_bytes
from stoker.core.frozen import fields_of, frozen
from stoker.core.text import outside
from stoker.devices.admission import shares
from stoker.host.identity import ProcessIdentity

LONGEST_BYTES = 64 * 1024
"""Maximum length of a record."""
_MOST_DEVICES = 256
LONGEST_TEXT = 1024
_MOST_BYTES = 2**60
_ID = re.compile(r"[0-9a-f]{16}")


@frozen
class ReservationShare:
    """What one reservation holds of one device."""

    uuid: str
    promised_bytes: int
    """Zero for a device that is held whole without a size."""
    total_bytes: int
    memory_type: MemoryType = MemoryType.DISCRETE
    name: str = ""
    is_exclusive: bool = False
    """No other reservation may be on it."""
    measured_bytes: int | None = None
    """The measured peak; `None` until it was measured."""
    is_fake: bool = False

    @property
    def device(self) -> CandidateDevice:
        return CandidateDevice(
            uuid=self.uuid,
            total_bytes=self.total_bytes,
            memory_type=self.memory_type,
            name=self.name,
            is_fake=self.is_fake,
        )

    @property
    def charged_bytes(self) -> int:
        """What counts against the device: all of it if held alone, otherwise the promise, or the peak if more."""
        return self.total_bytes if self.is_exclusive else max(self.promised_bytes, self.measured_bytes or 0)


@frozen
class Reservation:
    """One reservation."""

    id: str
    job: str
    owner: ProcessIdentity
    """Its end releases everything."""
    shares: tuple[ReservationShare, ...]
    base: str = ""
    base_bytes: int = 0
    since_s: float
    """Seconds since boot."""
    since_wall_s: float
    """For people."""
    lease_s: float
    lease_until_s: float
    """Seconds since boot; counts only if the owner is not visible."""
    user: int = 0
    """The user of the file; never read from the record itself."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """Its devices."""
        return tuple(share.uuid for share in self.shares)

    def share_of(self, uuid: str) -> ReservationShare | None:
        """Return what it holds of one device."""
        return next((share for share in self.shares if share.uuid == uuid), None)

    def to_dict(self) -> dict[str, object]:
        """Return the record as it is written."""
        body = fields_of(self)
        del body["user"]
        body["owner"] = self.owner.to_dict()
        body["shares"] = [{**fields_of(share), "memory_type": str(share.memory_type)} for share in self.shares]
        return body

    @classmethod
    def from_dict(cls, data: object, *, user: int = 0) -> Reservation:
        """Read the result of `to_dict`."""
        fields = _Fields(data, "an entry")
        shares = tuple(_share(one) for one in fields.many("shares"))
        entry = cls(
            id=fields.id(),
            job=outside(fields.text("job")),
            owner=fields.identity(),
            shares=shares,
            base=fields.text("base"),
            base_bytes=fields.size("base_bytes"),
            since_s=fields.seconds("since_s"),
            since_wall_s=fields.seconds("since_wall_s"),
            lease_s=fields.seconds("lease_s"),
            lease_until_s=fields.seconds("lease_until_s"),
            user=user,
        )
        fields.end()
        if not shares or len({share.uuid for share in shares}) < len(shares):
            message = "an entry holds each of its devices once, and at least one"
            raise ValueError(message)
        return entry


@frozen
class QueueTicket:
    """A queued request."""

    id: str
    number: int
    job: str
    owner: ProcessIdentity
    """The waiting process."""
    uuids: tuple[str, ...]
    """The devices that could ever hold the request."""
    count: int
    vram_bytes: int
    may_share: bool
    since_s: float
    seen_until_s: float
    """Seconds since boot. A request that was not polled since then blocks no other."""
    user: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the record as it is written."""
        body = fields_of(self)
        del body["user"]
        return {**body, "owner": self.owner.to_dict(), "uuids": list(self.uuids)}

    @classmethod
    def from_dict(cls, data: object, *, user: int = 0) -> QueueTicket:
        """Read the result of `to_dict`."""
        fields = _Fields(data, "a ticket")
        ticket = cls(
            id=fields.id(),
            number=fields.size("number"),
            job=outside(fields.text("job")),
            owner=fields.identity(),
            uuids=tuple(_uuid(one) for one in fields.many("uuids")),
            count=fields.size("count"),
            vram_bytes=fields.size("vram_bytes"),
            may_share=fields.flag("may_share"),
            since_s=fields.seconds("since_s"),
            seen_until_s=fields.seconds("seen_until_s"),
            user=user,
        )
        fields.end()
        return ticket


def _share(data: object) -> ReservationShare:
    fields = _Fields(data, "a share")
    share = ReservationShare(
        uuid=_uuid(fields.text("uuid")),
        promised_bytes=fields.size("promised_bytes"),
        total_bytes=fields.size("total_bytes"),
        memory_type=MemoryType(fields.text("memory_type")),
        name=outside(fields.text("name")),
        is_exclusive=fields.flag("is_exclusive"),
        measured_bytes=fields.size_or_none("measured_bytes"),
        is_fake=fields.flag("is_fake"),
    )
    fields.end()
    return share


def _uuid(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 256 or not value.isprintable():
        message = "a device has a name of at most 256 plain characters"
        raise ValueError(message)
    return value


class _Fields:
    """The fields of one object, each taken out once."""

    def __init__(self, data: object, what: str) -> None:
        self._what = what
        if not isinstance(data, dict):
            raise self._wrong("object")
        self._left: dict[str, Any] = dict(data)

    def id(self) -> str:
        value = self.text("id")
        if not _ID.fullmatch(value):
            raise self._wrong("id")
        return value

    def text(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            raise self._wrong(name)
        return value

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise self._wrong(name)
        return value

    def size(self, name: str) -> int:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_BYTES:
            raise self._wrong(name)
        return value

    def size_or_none(self, name: str) -> int | None:
        if self._left.get(name, 0) is None:
            del self._left[name]
            return None
        return self.size(name)

    def seconds(self, name: str) -> float:
        value = self._take(name)
        # Not a number compares false with everything.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise self._wrong(name)
        return float(value)

    def many(self, name: str) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > _MOST_DEVICES:
            raise self._wrong(name)
        return value

    def identity(self) -> ProcessIdentity:
        value = self._take("owner")
        if not isinstance(value, Mapping) or any(isinstance(one, bool) for one in value.values()):
            raise self._wrong("owner")
        return ProcessIdentity.from_dict(value)

    def end(self) -> None:
        if self._left:
            raise self._wrong(", ".join(sorted(self._left)[:3]))

    def _take(self, name: str) -> Any:
        if name not in self._left:
            raise self._wrong(name)
        return self._left.pop(name)

    def _wrong(self, name: str) -> ValueError:
        return ValueError(f"not {self._what} of the ledger: {name}")


# Requests to the ledger: how much, on which devices, for which job.

LEASE_S = 90.0
"""How long a reservation counts that is not renewed and whose process is not visible from here."""
LONGEST_LEASE_S = 3600.0
WAIT_S = 3600.0
"""Default timeout of a wait."""


@frozen
class CandidateDevice:
    """One possible device."""

    uuid: str
    total_bytes: int
    memory_type: MemoryType = MemoryType.DISCRETE
    name: str = ""
    shares: bool = False
    """The machine's owner lets all jobs share it, also those that did not request it."""
    slots: int = 0
    """Maximum number of reservations on it at once; zero: as many as fit."""
    is_fake: bool = False

    @property
    def usable_bytes(self) -> int:
        """What jobs that share it may be promised together."""
        return usable_bytes(self.total_bytes, self.memory_type)

    @classmethod
    def of(cls, device: Device, *, shares: bool = False, slots: int = 0) -> CandidateDevice | None:
        """Return the candidate for a detected device; none if its size is unknown."""
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
    """One request: all of it at once, or nothing."""

    job: str
    """Its job, by the name that people know."""
    devices: tuple[CandidateDevice, ...]
    """Any of these; the first that fit are taken, after those where the base is loaded already."""
    count: int = 1
    """How many of them, together."""
    vram_bytes: int = 0
    """On each; zero: nothing declared, which takes the device whole."""
    may_share: bool = False
    """Others may hold the rest of it. Without `vram_bytes`, or for more than the usable part, it does not share."""
    base: str = ""
    """What it has in common with others on a device, which is charged there once: the digest of a base model."""
    base_bytes: int = 0
    """How much of `vram_bytes` that is."""
    owner: ProcessIdentity | None = None
    """The process whose end releases it; `None`: this process. `Ledger.hand_over` changes it."""
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
            message = f"invalid request for device memory: {'; '.join(faults)}"
            raise ValueError(message)

    def shares(self, device: CandidateDevice) -> bool:
        """Return True if it would share this device with others.

        A request for more than the usable part still gets the device, alone.
        """
        return shares(self.vram_bytes, device.usable_bytes, is_allowed=self.may_share or device.shares)


class DeviceLimit(StrEnum):
    """The limit that was in the way."""

    LINE = "line"
    """Earlier requests wait for the same devices."""
    TAKEN = "taken"
    """Another reservation is exclusive."""
    OCCUPIED = "occupied"
    """The request is exclusive, and others hold some of it."""
    SLOTS = "slots"
    """The maximum number of reservations is on it."""
    LEDGER = "ledger"
    """What is promised to others leaves too little."""
    MEASURED = "measured"
    """The driver has less than that free."""
    SIZE = "size"
    """The device is too small, or there are too few."""


@frozen
class Shortfall:
    """Why one device does not fit."""

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
    """Of the devices with a shortfall, the one with the smallest."""
    shortfalls: tuple[Shortfall, ...]
    """Every device that does not fit now."""
    ahead: int = 0
    """How many earlier requests wait for the same devices."""
    number: int | None = None
    """Its number in the queue, if it waits."""


@frozen
class NeverFits:
    """No named device can ever hold it."""

    why: str
    shortfalls: tuple[Shortfall, ...]
    hint: str = ""


@frozen
class DeviceWaitProgress:
    """Progress of a wait."""

    attempt: int
    elapsed_s: float
    remaining_s: float
    answer: DevicesBusy

    @property
    def place(self) -> int:
        """Queue position: 1 is next."""
        return self.answer.ahead + 1


@frozen
class MeasuredDeviceUse:
    """What an owner uses, beside what it was promised, on the device where it exceeds that most."""

    uuid: str
    promised_bytes: int
    """The whole device, if no size was declared."""
    measured_bytes: int
    """The measured peak."""
    percent: int
    """Percent of the promise."""
    is_over: bool
    """More than 120 % of the promise: worth a warning."""
    is_past_limit: bool
    """Above the limit of the request: time to end it."""
    beside_bytes: int = 0
    """If it shares a base within its process: what that process uses beside the base now, for all."""
    beside_promised_bytes: int = 0
    """What they were promised beside it, together."""


class Meter(Protocol):
    """Measures devices' memory."""

    def free_bytes(self, uuid: str) -> int | None:
        """Return the free memory of a device now."""

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        """Return what each process holds on a device now: bytes by process number.

        A process whose share the driver does not report is left out.
        """

    def close(self) -> None:
        """Release what the meter keeps running; a later call starts it again."""


class NoMeter:
    """Measures nothing."""

    def free_bytes(self, uuid: str) -> int | None:
        return None

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        return None

    def close(self) -> None:
        pass


class FakeMeter:
    """Measures fake devices: what was set as used is in use, the rest is free."""

    def __init__(self, total_bytes: Mapping[str, int]) -> None:
        self._totals = dict(total_bytes)
        self._used: dict[str, dict[int, int]] = {uuid: {} for uuid in total_bytes}
        self._lock = threading.Lock()

    def use(self, uuid: str, pid: int, size_bytes: int) -> None:
        """Set how much a process holds of a device from now on; zero ends it."""
        with self._lock:
            holders = self._used[uuid]
            holders.pop(pid, None)
            if size_bytes:
                holders[pid] = size_bytes

    def free_bytes(self, uuid: str) -> int | None:
        with self._lock:
            if uuid not in self._totals:
                return None
            return max(0, self._totals[uuid] - sum(self._used[uuid].values()))

    def used_by(self, uuid: str) -> Mapping[int, int] | None:
        with self._lock:
            return dict(self._used[uuid]) if uuid in self._used else None

    def close(self) -> None:
        pass
