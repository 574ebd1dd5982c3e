"""Devices detected again while a worker lives: one that vanishes is no longer offered, one that comes back is.

In a thread of its own, every minute and soon after an attempt on a device failed; the probes run in children of their
own, as at the start. A device is withdrawn only when two looks in a row do not find it: one look may have asked a
driver that was busy.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.model.capability import Capability
from stoker.model.frozen import changed, frozen
from stoker.worker.recurring import Recurring

EVERY_S = 60.0
CONFIRM_S = 2.0
"""Between two looks, where the first one misses a device."""


class Offer:
    """What this machine offers now. Replaced as a whole, so any thread may read it."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability


@frozen
class DeviceChange:
    """What a look at the devices means for the offer."""

    gone: tuple[str, ...] = ()
    """UUIDs of devices that are not offered any more."""
    back: tuple[str, ...] = ()
    """UUIDs of devices that are offered again, or for the first time."""
    missed: frozenset[str] = frozenset()
    """Offered, and not found by this look: the next one decides."""

    @property
    def is_any(self) -> bool:
        return bool(self.gone or self.back)


def compare_devices(offered: Capability, found: Capability, missed: frozenset[str]) -> DeviceChange:
    """Decide what changes; `missed` are the devices that the look before this one did not find."""
    had = {device.uuid for device in offered.usable_devices}
    has = {device.uuid for device in found.usable_devices}
    if not (had - has) <= missed:
        return DeviceChange(missed=frozenset(had - has))
    return DeviceChange(gone=tuple(sorted(had - has)), back=tuple(sorted(has - had)))


class Redetecting(Recurring):
    """Looks at the devices until it is closed, and changes the offer."""

    def __init__(self, offer: Offer, detect: Callable[[], Capability], report: Callable[[DeviceChange], None]) -> None:
        """`report` is called with every change, after the offer was replaced."""
        super().__init__("devices", first_s=EVERY_S)
        self._offer = offer
        self._detect = detect
        self._report = report
        self._missed: frozenset[str] = frozenset()

    def act(self) -> float:
        """Look once; return after how many seconds to look again."""
        offered = self._offer.capability
        found = self._detect()
        change = compare_devices(offered, found, self._missed)
        self._missed = change.missed
        if change.missed:
            return CONFIRM_S
        if change.is_any:
            self._offer.capability = changed(found, hostname=offered.hostname)
            self._report(change)
        return EVERY_S

    def _after(self, problem: Exception) -> float:
        # A look that failed says nothing about the devices.
        return EVERY_S
