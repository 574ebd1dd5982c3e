"""What plans that are made on this machine may know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stoker.hardware.admission import memory_here
from stoker.plan.surroundings import Remembered, Surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.assembly.settings import Settings
    from stoker.hardware.estimate.calibration import Foretold
    from stoker.model.devices import Device
    from stoker.store.hub.settings import HubSettings


class _House(Protocol):
    settings: Settings

    @property
    def devices(self) -> Sequence[Device]: ...

    def hub_settings(self, endpoint: str) -> HubSettings: ...


def surroundings_of(house: _House) -> Surroundings:
    """Give it; whatever costs time is asked only by plans that want it."""

    def remember(work: Foretold) -> Remembered:
        from stoker.assembly.remembering import remembered

        return remembered(house.settings.peaks, work)

    return Surroundings(
        hub_cache=lambda: house.hub_settings("").cache,
        rooms=lambda: {one.name: one.total_bytes for one in house.devices if one.total_bytes is not None},
        memory=memory_here,
        remembered=remember,
        fetches=lambda: not house.hub_settings("").offline,
    )
