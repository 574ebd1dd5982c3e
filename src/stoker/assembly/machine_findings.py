"""What `stoker doctor` would say of this machine, as a worker reports it: cheap looks alone, made anew each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stoker.hardware.checkup import Check, State, check_machine, check_recipes, check_surroundings
from stoker.hardware.device_checkup import check_devices
from stoker.hardware.survey import survey
from stoker.store.materialise import reflink
from stoker.wire.health import Found

if TYPE_CHECKING:
    from stoker.assembly.settings import Settings
    from stoker.host.containment.choice import Chosen
    from stoker.model.capability import Capability

_LONGEST_FACT = 200
_LONGEST = 1000


class Looked(Protocol):
    """What has to be known of a house."""

    settings: Settings

    @property
    def containment(self) -> Chosen: ...


def find_out(house: Looked, capability: Capability, *, closed_python: str = "") -> tuple[Found, ...]:
    """Look at what may have changed, and judge it together with what was detected.

    `closed_python` is why programs can't be started with `python` by the users that they run as.
    """
    settings = house.settings
    places = {"store": settings.store, "runs": settings.runs, "scratch": settings.scratch}
    around = survey(places, contain=lambda: house.containment, reflink=reflink, ports=())
    checks = (
        *check_machine(capability),
        *check_surroundings(around),
        *check_devices(capability),
        check_recipes(len(capability.recipes), ()),
        *([Check(name="run-as", verdict=State.WARN, message=closed_python)] if closed_python else ()),
    )
    return tuple(
        Found(
            name=one.name[:_LONGEST_FACT],
            verdict=str(one.verdict),
            message=one.message[:_LONGEST],
            hint=one.hint[:_LONGEST],
        )
        for one in checks
    )
