"""What is asked of the ledger: how much, on which devices, for whom."""

from __future__ import annotations

from stoker.hardware.device_fit import shares
from stoker.host.identity import ProcessIdentity
from stoker.model.devices import Device, MemoryType, usable_bytes
from stoker.model.frozen import frozen

LEASE_S = 90.0
"""How long a reservation counts that nobody renews and whose process can't be seen from here."""
LONGEST_LEASE_S = 3600.0
WAIT_S = 3600.0
"""How long room is waited for unless told."""


@frozen
class Candidate:
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
    def of(cls, device: Device, *, shares: bool = False, slots: int = 0) -> Candidate | None:
        """Give the candidate that a found device is; none if nobody knows its size."""
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
class Ask:
    """One wish for room: all of it at once, or nothing."""

    job: str
    """What it is for, in words that a person knows it by."""
    devices: tuple[Candidate, ...]
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

    def shares(self, device: Candidate) -> bool:
        """Whether it would have this device together with others.

        Who wants more of it than may be shared out still gets the device, alone.
        """
        return shares(self.vram_bytes, device.usable_bytes, is_allowed=self.may_share or device.shares)
