"""The gate before devices, as the executor sees it: taken all together or not at all, and never waited for here.

All runs on a machine share its devices, so whoever keeps the gate asks beyond this process. A stage that must wait has
a place in line; the loop asks again when it is woken, and goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from stoker.host.identity import ProcessIdentity
from stoker.model.errors import Bug
from stoker.model.frozen import changeable, frozen
from stoker.model.resources import Needs


@changeable
class Taken:
    """Devices that one attempt holds."""

    devices: tuple[str, ...]
    """By UUID."""
    variables: Mapping[str, str]
    """By these its process sees them and no others."""
    started: Callable[[ProcessIdentity], None]
    """Say which process does the work: it holds them from then on, and as long as it lives. Never raises."""
    claim: Mapping[str, Any] | None = None
    """By this another process of the same user can give it back, should this one be gone."""
    peak_bytes: int | None = None
    """The most that was measured so far on any one of them; `None` while nothing was."""
    beside_base: tuple[int, int] = (0, 0)
    """In a company: what its members were promised beside their base when they were most, and what they took."""


NOTHING_TAKEN = Taken(devices=(), variables={}, started=lambda _identity: None)
"""What work holds that needs no device."""


@frozen
class Wait:
    """Not now."""

    waits_for: str
    """Which device, and who holds it: the same text as long as nothing has changed."""
    why: str
    """That, and for how long it has been held by now."""
    place: int = 1
    """In the line of all who wait for it."""
    is_ours: bool = False
    """Only stages of this run are in the way."""
    is_known: bool = True
    """Else nobody has looked yet, and will in a moment: it is not worth telling, and who is behind may wait for it."""


@frozen
class Noticed:
    """Something about devices that people should know; each comes once."""

    message: str
    taken: Taken | None = None
    """Whose work it is about."""
    is_over_limit: bool = False
    """That holds so much more than it was promised that it has to end."""


class DeviceGate(Protocol):
    """Who may use which device. The executor's loop uses it and is never held up; `Taken.started` is for any thread."""

    def never(self, needs: Needs) -> str:
        """Say why a request can never be met here, with numbers; an empty text if it can."""

    def take(self, needs: Needs, *, job: str) -> Taken | Wait:
        """Take what a stage needs, or get a place in line for those who need the same. Raises `StokerError`."""

    def wait_only_for(self, needs: AbstractSet[Needs]) -> None:
        """Leave every other line: a place is only for who would start at once."""

    def noticed(self) -> list[Noticed]:
        """Give what was noticed since the last time, such as work that holds more than it was promised."""

    def give_back(self, taken: Taken) -> None:
        """Return what an attempt held that is over. Never raises."""

    def close(self) -> None:
        """Leave every line. What is still held stays with the processes that hold it, and goes with them."""


class NoDevices:
    """The gate of a run in which nothing needs a device: nobody is asked, and nothing is opened."""

    def never(self, needs: Needs) -> str:
        return few(needs.gpu, 0)

    def take(self, needs: Needs, *, job: str) -> Taken | Wait:
        raise Bug(f"{job} {few(needs.gpu, 0)}, and was not refused")

    def wait_only_for(self, needs: AbstractSet[Needs]) -> None:
        return

    def noticed(self) -> list[Noticed]:
        return []

    def give_back(self, taken: Taken) -> None:
        return

    def close(self) -> None:
        return


def few(wanted: int, offered: int) -> str:
    """Say that there are fewer devices than are wanted; an empty text if there are enough."""
    return f"needs {wanted} GPU{'s' if wanted > 1 else ''}, this machine offers {offered}" if wanted > offered else ""
