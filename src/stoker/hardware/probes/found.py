"""What probes found on one machine, as one answer. Only nouns and what they imply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.model.capability import ProbeFinding
from stoker.model.devices import Backend, Device
from stoker.model.frozen import fresh, frozen


@frozen
class Found:
    """Devices, what programs can speak here, and what was noticed on the way."""

    devices: tuple[Device, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """What programs can speak here → its version, if anybody says one."""
    findings: tuple[ProbeFinding, ...] = ()
    sources: Mapping[str, str] = fresh(factory=dict)
    """Which probe said what: `devices`, `cuda`, … → probe."""
    is_fake: bool = False


def with_implied(backends: Mapping[Backend, str]) -> dict[Backend, str]:
    """Give the backends with webgpu, which every other one implies, in declared order."""
    implied = {Backend.WEBGPU: "", **backends} if backends else {}
    return {backend: implied[backend] for backend in Backend if backend in implied}


def spoken(backends: Mapping[Backend, str], devices: Iterable[Device]) -> dict[Backend, str]:
    """Give the backends without those whose every device is hidden or can't be used, and with what the rest imply."""
    by_backend: dict[Backend, list[Device]] = {}
    for device in devices:
        by_backend.setdefault(device.backend, []).append(device)
    return with_implied(
        {
            backend: version
            for backend, version in backends.items()
            if not (of := by_backend.get(backend)) or any(one.may_be_used for one in of)
        }
    )
