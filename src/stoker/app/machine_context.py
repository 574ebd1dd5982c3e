"""What plans that are made on this machine may know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stoker.devices.admission import memory_here
from stoker.engine.recipe import MachineContext, MeasuredPeakCorrection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.app.settings import AppSettings
    from stoker.core.device import Device
    from stoker.devices.estimate.terms import EstimatedWork
    from stoker.transfer.hub.listing import HubSettings


class _House(Protocol):
    settings: AppSettings

    @property
    def devices(self) -> Sequence[Device]: ...

    def hub_settings(self, endpoint: str) -> HubSettings: ...


def surroundings_of(house: _House) -> MachineContext:
    """Return it; whatever costs time is asked only by plans that want it."""

    def remember(work: EstimatedWork) -> MeasuredPeakCorrection:
        from stoker.app.run_context import remembered

        return remembered(house.settings.peaks, work)

    return MachineContext(
        hub_cache=lambda: house.hub_settings("").cache,
        rooms=lambda: {one.name: one.total_bytes for one in house.devices if one.total_bytes is not None},
        memory=memory_here,
        remembered=remember,
        fetches=lambda: not house.hub_settings("").offline,
    )
