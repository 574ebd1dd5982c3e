"""The gate before devices, as the executor sees it: taken all together or not at all, and never waited for here.

All runs on a machine share its devices, so the gate asks beyond this process. A stage that must wait has
a place in line; the loop asks again when it is woken, and works meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from stoker.core.device import CUDA_VARIABLE, HIP_VARIABLE, ROCR_VARIABLE, Backend, Device, Needs
from stoker.core.digests import digest_value
from stoker.core.errors import InternalError
from stoker.core.frozen import changeable, frozen
from stoker.core.text import counted
from stoker.host.identity import ProcessIdentity


@changeable
class AttemptDevices:
    """Devices that one attempt holds."""

    devices: tuple[str, ...]
    """By UUID."""
    variables: Mapping[str, str]
    """By these its process sees them and no others."""
    started: Callable[[ProcessIdentity], None]
    """Hand the devices over to the process that does the work, for as long as it lives. Never raises."""
    claim: Mapping[str, Any] | None = None
    """By this another process of the same user can give it back, should this one be gone."""
    peak_bytes: int | None = None
    """The most that was measured so far on any one of them; `None` while nothing was."""
    beside_base: tuple[int, int] = (0, 0)
    """In a shared process: what its members were promised beside their base when they were most, and what they took."""


NOTHING_TAKEN = AttemptDevices(devices=(), variables={}, started=lambda _identity: None)
"""What work holds that needs no device."""


@frozen
class DeviceWait:
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
    """False: not decided yet, and will be in a moment. Not worth an event; nodes behind it wait."""


@frozen
class DeviceNotice:
    """Something about devices that people should know; each comes once."""

    message: str
    taken: AttemptDevices | None = None
    """Whose work it is about."""
    is_over_limit: bool = False
    """That holds so much more than it was promised that it has to end."""


class DeviceGate(Protocol):
    """Who may use which device. Never blocks the executor's loop; `AttemptDevices.started` is thread-safe."""

    def never(self, needs: Needs) -> str:
        """Return why a request can never be met here, with numbers; an empty text if it can."""

    def take(self, needs: Needs, *, job: str) -> AttemptDevices | DeviceWait:
        """Take what a stage needs, or get a place in line for those who need the same. Raises `StokerError`."""

    def wait_only_for(self, needs: AbstractSet[Needs]) -> None:
        """Leave every other line: a place is only for who would start at once."""

    def noticed(self) -> list[DeviceNotice]:
        """Return what was noticed since the last time, such as work that holds more than it was promised."""

    def give_back(self, taken: AttemptDevices) -> None:
        """Return what an attempt held that is over. Never raises."""

    def close(self) -> None:
        """Leave every line. What is still held stays with the processes that hold it, and goes with them."""


class NoDevices:
    """The gate of a run in which nothing needs a device: nothing is asked or opened."""

    def never(self, needs: Needs) -> str:
        return few(needs, 0)

    def take(self, needs: Needs, *, job: str) -> AttemptDevices | DeviceWait:
        raise InternalError(f"{job} {few(needs, 0)}, and was not refused")

    def wait_only_for(self, needs: AbstractSet[Needs]) -> None:
        return

    def noticed(self) -> list[DeviceNotice]:
        return []

    def give_back(self, taken: AttemptDevices) -> None:
        return

    def close(self) -> None:
        return


def few(needs: Needs, offered: int) -> str:
    """Return the message that there are fewer devices than needed; an empty text if there are enough."""
    if needs.gpu <= offered:
        return ""
    backend = f"{needs.gpu_backend} " if needs.gpu_backend else ""
    return f"needs {counted(needs.gpu, f'{backend}GPU')}, this machine offers {offered}"


def held_base(word: str, user: int | None = None) -> str:
    """Return the name under which the ledger of devices charges what a shared process of a user's holds once."""
    return digest_value("company base", [word, os.geteuid() if user is None else user])[:32]


VRAM_BYTES = "STOKER_VRAM_BYTES"
"""How much of each of its devices a process that shares them may take."""
HIDDEN: Mapping[str, str] = {CUDA_VARIABLE: ""}
"""What a process gets that was given no device: HIP reads the same variable."""


def device_variables(
    devices: Sequence[Device], environment: Mapping[str, str], *, vram_bytes: int | None = None
) -> dict[str, str]:
    """Name devices for a process that is about to start; `vram_bytes` is its share of each, if it has no more.

    CUDA's go by UUID, which no other card ever has. HIP takes numbers only, and counts what ROCR_VISIBLE_DEVICES left
    over; where that is set it is set again, so that the numbers mean the same cards.
    """
    variables = {VRAM_BYTES: str(vram_bytes)} if vram_bytes else {}
    cuda = [device.uuid for device in devices if device.backend is Backend.CUDA]
    rocm = [device for device in devices if device.backend is Backend.ROCM]
    hip = [device.uuid if device.index is None else str(device.index) for device in rocm]
    if not hip:
        return {**variables, CUDA_VARIABLE: ",".join(cuda)}
    if ROCR_VARIABLE in environment:
        variables[ROCR_VARIABLE] = ",".join(hip)
        hip = [str(place) for place in range(len(hip))]
    variables[HIP_VARIABLE] = ",".join(hip)
    if cuda or CUDA_VARIABLE in environment:
        # HIP reads it as well: the two must not contradict each other.
        variables[CUDA_VARIABLE] = ",".join(cuda or hip)
    return variables
