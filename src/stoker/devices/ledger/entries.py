"""What stands in the ledger: reservations and tickets, and how each is written down and read back.

Whatever is read was written by somebody else on this machine, so reading is strict: every field has its type and its
bounds, nothing is missing and nothing is left over. Anything else raises `ValueError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.core.device import MemoryType
from stoker.core.frozen import fields_of, frozen
from stoker.core.text import outside
from stoker.host.identity import ProcessIdentity

LONGEST_BYTES = 64 * 1024
"""No record is longer."""
_MOST_DEVICES = 256
LONGEST_TEXT = 1024
_MOST_BYTES = 2**60
_ID = re.compile(r"[0-9a-f]{16}")


@frozen
class ReservationShare:
    """What one reservation holds of one device."""

    uuid: str
    promised_bytes: int
    """Zero for a device that is held whole without saying how much."""
    total_bytes: int
    memory_type: MemoryType = MemoryType.DISCRETE
    name: str = ""
    is_exclusive: bool = False
    """Nobody else may hold anything of it."""
    measured_bytes: int | None = None
    """The most that was seen; `None` until it was measured."""
    is_fake: bool = False

    @property
    def charged_bytes(self) -> int:
        """What counts against the device: all of it if held alone, else the promise, or what was measured if more."""
        return self.total_bytes if self.is_exclusive else max(self.promised_bytes, self.measured_bytes or 0)


@frozen
class Reservation:
    """One reservation."""

    id: str
    job: str
    owner: ProcessIdentity
    """Its end gives everything back."""
    shares: tuple[ReservationShare, ...]
    base: str = ""
    base_bytes: int = 0
    since_s: float
    """Seconds since boot."""
    since_wall_s: float
    """For people."""
    lease_s: float
    lease_until_s: float
    """Seconds since boot; counts only where the owner can't be seen."""
    user: int = 0
    """Whose it is, as the file system says; never read from the record itself."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """Its devices."""
        return tuple(share.uuid for share in self.shares)

    def share_of(self, uuid: str) -> ReservationShare | None:
        """Return what it holds of one device."""
        return next((share for share in self.shares if share.uuid == uuid), None)

    def to_dict(self) -> dict[str, object]:
        """Return the record as it is written down."""
        body = fields_of(self)
        del body["user"]
        body["owner"] = self.owner.to_dict()
        body["shares"] = [{**fields_of(share), "memory_type": str(share.memory_type)} for share in self.shares]
        return body

    @classmethod
    def from_dict(cls, data: object, *, user: int = 0) -> Reservation:
        """Read what `to_dict` gave."""
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
class Ticket:
    """A place in line."""

    id: str
    number: int
    job: str
    owner: ProcessIdentity
    """Who waits."""
    uuids: tuple[str, ...]
    """The devices that could ever hold what it waits for."""
    count: int
    vram_bytes: int
    may_share: bool
    since_s: float
    seen_until_s: float
    """Seconds since boot. A place that nobody has looked from since then holds nobody up."""
    user: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the record as it is written down."""
        body = fields_of(self)
        del body["user"]
        return {**body, "owner": self.owner.to_dict(), "uuids": list(self.uuids)}

    @classmethod
    def from_dict(cls, data: object, *, user: int = 0) -> Ticket:
        """Read what `to_dict` gave."""
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
