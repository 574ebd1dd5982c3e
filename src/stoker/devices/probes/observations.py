"""Which sightings mean the same device. Pure.

Sightings are the same device by UUID, else by PCI address. Those that carry neither are matched by their place and name
to devices that are known, if that leaves no choice; else they are devices of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from stoker.core.capability import ProbeFinding
from stoker.core.device import MIB, Backend, Device, MemoryType, TriStateAnswer
from stoker.core.frozen import fresh, frozen

# What one witness says, before anybody has compared it with others. Only nouns, and the spelling of addresses.

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")


@frozen
class DeviceReport:
    """What one witness says of one device. `None` and empty texts mean: it did not say."""

    backend: Backend
    uuid: str = ""
    pci: str = ""
    """As `tidy_pci` spells it."""
    index: int | None = None
    """The device's place in the witness's own list."""
    minor: int | None = None
    """The number of its device file."""
    name: str = ""
    memory_type: MemoryType | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    """What the driver keeps of the total for itself; programs never see it."""
    free_bytes: int | None = None
    driver: str = ""
    capability: str = ""
    parent: str = ""
    """The UUID of the device that this one is a part of."""
    is_split: bool = False
    """It was divided into parts, and only those can be used."""
    lacks_driver: bool = False
    """No driver has it with which a program could compute there, and nobody keeps it for something else."""
    works: TriStateAnswer | None = None
    """Whether a program has computed on it, or what is known to stop one."""


@frozen
class ProbeResult:
    """All that one witness said."""

    witness: str
    sightings: tuple[DeviceReport, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """What programs can speak → its version."""
    findings: tuple[ProbeFinding, ...] = ()
    looked_for: frozenset[Backend] = frozenset()
    """Kinds of device that it would have named, had it seen one."""
    was_heard: bool = True
    """Whether it gave an answer that could be read; only then does the number of its sightings mean anything."""


def tidy_pci(text: str) -> str:
    """Spell a PCI address as the kernel does, `0000:01:00.0`, whatever the tool; empty if it is none."""
    found = _PCI.fullmatch(text.strip().lower())
    if found is None:
        return ""
    domain = (found[1] or "0").lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}:{found[3]}.{found[4] or '0'}"


# What probes found on one machine, as one answer. Only nouns and what they imply.


@frozen
class DetectedDevices:
    """Devices, what programs can speak here, and what was noticed on the way."""

    devices: tuple[Device, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """What programs can speak here → its version, if anybody says one."""
    findings: tuple[ProbeFinding, ...] = ()
    sources: Mapping[str, str] = fresh(factory=dict)
    """Which probe said what: `devices`, `cuda`, … → probe."""
    is_fake: bool = False


def with_implied(backends: Mapping[Backend, str]) -> dict[Backend, str]:
    """Return the backends with webgpu, which every other one implies, in declared order."""
    implied = {Backend.WEBGPU: "", **backends} if backends else {}
    return {backend: implied[backend] for backend in Backend if backend in implied}


def spoken(backends: Mapping[Backend, str], devices: Iterable[Device]) -> dict[Backend, str]:
    """Return the backends without those whose every device is hidden or can't be used, and with what the rest imply."""
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


# Who is believed, written down once: the order of witnesses, and the fields for which another order is right.
#
# Only data. `inventory` goes by it, and tests check that every witness has its place.

WITNESSES = (
    "nvml", "nvidia-smi", "amd-smi", "rocm-smi", "system_profiler", "jetson", "kfd", "torch", "kernel", "pci",
)  # fmt: skip
"""Whoever names devices, the most trusted first."""

BY_FIELD: Mapping[str, tuple[str, ...]] = {
    # A board's name says more than that of the GPU inside it; the compute driver and the bus know only numbers.
    "name": (
        "jetson", "nvml", "nvidia-smi", "amd-smi", "rocm-smi", "system_profiler", "torch", "kernel", "kfd", "pci",
    ),
    # ROCm counts as its driver does. What torch calls 0 depends on what is hidden from it.
    "index": ("nvml", "nvidia-smi", "kfd", "amd-smi", "rocm-smi", "system_profiler", "jetson", "kernel"),
    # torch sees less than the whole, and has taken some itself.
    "total_bytes": ("nvml", "nvidia-smi", "amd-smi", "rocm-smi", "system_profiler", "jetson", "kfd", "torch"),
    "free_bytes": ("nvml", "nvidia-smi", "rocm-smi", "kfd", "torch"),
}  # fmt: skip

COMPARED: Mapping[str, tuple[str, ...]] = {
    # Each of these takes the name from the same place in the driver.
    "name": ("nvml", "nvidia-smi", "kernel", "torch"),
    "total_bytes": ("nvml", "nvidia-smi", "amd-smi", "rocm-smi", "kfd", "torch"),
    "count": ("nvml", "nvidia-smi"),
}
"""Between whom a difference means that something is wrong."""

SAME_BYTES = 64 * MIB
"""Two totals that differ by no more are the same."""
UNTOLD_PERCENT = 3
"""How much of the total a driver may keep for itself where nobody says how much it is."""

UNIFIED_FRAGMENTS = ("jetson", "orin", "tegra", "gb10", "digits", "thor")
"""Parts of the names of devices that work in the machine's own memory."""


def order_of(field: str) -> tuple[str, ...]:
    """Return who is believed about a field, the most trusted first."""
    return BY_FIELD.get(field, WITNESSES)


TORCH = "torch"
_UNKNOWN_PLACE = 1 << 30

Group = dict[str, DeviceReport]
"""One device: what each witness says of it."""


def group(statements: Iterable[ProbeResult]) -> list[Group]:
    """Return the devices, in their drivers' order, parts right after their wholes.

    Sightings of torch that carry no address are left out: see `pair`.
    """
    groups: list[Group] = []
    loose: list[tuple[str, list[DeviceReport]]] = []
    for statement in sorted(statements, key=lambda one: _rank(one.witness)):
        without = [one for one in statement.sightings if not _join(groups, statement.witness, one)]
        if without and statement.witness != TORCH:
            loose.append((statement.witness, without))
    for witness, sightings in loose:
        for backend in dict.fromkeys(one.backend for one in sightings):
            _match_loose(groups, witness, [one for one in sightings if one.backend is backend])
    return _in_order(groups)


def pair(groups: Sequence[Group], statement: ProbeResult) -> int:
    """Return sightings of torch that carry no address to the devices that it can see; say how many found none.

    `groups` are the visible devices in their order. Without addresses, the names must agree one by one.
    """
    loose = [one for one in statement.sightings if not (one.uuid or one.pci)]
    for backend in dict.fromkeys(one.backend for one in loose):
        rows = [one for one in loose if one.backend is backend]
        open_groups = [one for one in groups if backend_of(one) is backend and TORCH not in one]
        names = [[name.lower() for name in _names(one)] for one in open_groups]
        if len(rows) == len(open_groups) and all(
            row.name.lower() in said or len(rows) == 1 for row, said in zip(rows, names, strict=True)
        ):
            for row, place in zip(rows, open_groups, strict=True):
                place[TORCH] = row
            loose = [one for one in loose if one.backend is not backend]
    return len(loose)


def backend_of(of: Group) -> Backend:
    """Return the backend that a device is spoken to through."""
    return next(iter(of.values())).backend


def first_of(of: Group, field: str) -> tuple[object, str]:
    """Return what the most trusted witness says about a field, and who that is; nothing and nobody if none does."""
    for witness in order_of(field):
        sighting = of.get(witness)
        value = getattr(sighting, field) if sighting is not None else None
        if value is not None and value != "":
            return value, witness
    return None, ""


def is_unified(of: Group) -> bool:
    """Return whether a device's names say that it works in the machine's memory."""
    return any(fragment in name.lower() for name in _names(of) for fragment in UNIFIED_FRAGMENTS)


def _rank(witness: str) -> int:
    return WITNESSES.index(witness) if witness in WITNESSES else len(WITNESSES)


def _join(groups: list[Group], witness: str, sighting: DeviceReport) -> bool:
    """Put a sighting with its device; not if it carries no address."""
    if not (sighting.uuid or sighting.pci):
        return False
    for one in groups:
        if witness not in one and any(_is_same(sighting, other) for other in one.values()):
            one[witness] = sighting
            return True
    groups.append({witness: sighting})
    return True


def _is_same(one: DeviceReport, other: DeviceReport) -> bool:
    if one.backend is not other.backend:
        return False
    if one.uuid and other.uuid:
        return _bare(one.uuid) == _bare(other.uuid)
    return bool(one.pci) and one.pci == other.pci


def _bare(uuid: str) -> str:
    # torch knows the digits but not the vendor's prefix.
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _match_loose(groups: list[Group], witness: str, rows: list[DeviceReport]) -> None:
    wholes = [
        one
        for one in groups
        if backend_of(one) is rows[0].backend and witness not in one and not first_of(one, "parent")[0]
    ]
    for row in rows:
        fitting = [
            one for one in wholes if witness not in one and _may_be(row, one, is_only=len(wholes) == len(rows) == 1)
        ]
        if len(fitting) == 1:
            fitting[0][witness] = row
        else:
            groups.append({witness: row})


def _may_be(row: DeviceReport, of: Group, *, is_only: bool) -> bool:
    if is_only:
        # A board may carry a card as well, which is not the GPU in its chip.
        return is_unified(of) or not first_of(of, "pci")[0]
    has_place = row.index is not None and any(one.index == row.index for one in of.values())
    return has_place and row.name.lower() in [name.lower() for name in _names(of)]


def _names(of: Group) -> list[str]:
    return [one.name for one in of.values() if one.name]


def _in_order(groups: list[Group]) -> list[Group]:
    backends = list(Backend)

    def place(of: Group) -> tuple[int, int, str]:
        index, _ = first_of(of, "index")
        return backends.index(backend_of(of)), _number(index), str(first_of(of, "pci")[0] or "")

    wholes = sorted((one for one in groups if not first_of(one, "parent")[0]), key=place)
    parts = sorted((one for one in groups if first_of(one, "parent")[0]), key=place)
    ordered: list[Group] = []
    for whole in wholes:
        uuid = first_of(whole, "uuid")[0]
        own = [part for part in parts if uuid and first_of(part, "parent")[0] == uuid]
        parts = [part for part in parts if not any(part is one for one in own)]
        ordered += [whole, *own]
    return [*ordered, *parts]


def _number(value: object) -> int:
    return value if isinstance(value, int) else _UNKNOWN_PLACE
