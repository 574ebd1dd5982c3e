"""What probes report: which reports are of the same device, and which differ. Pure.

Reports are of the same device by UUID, else by PCI address. Reports without either are matched by index and name to
known devices, if that is unambiguous; otherwise they are devices of their own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from stoker.core.capability import ProbeFinding
from stoker.core.device import MIB, Backend, Device, MemoryType, TriStateAnswer
from stoker.core.frozen import fresh, frozen
from stoker.core.text import format_size, one_line
from stoker.host.command_runner import ProbeFailure

# The result of one probe, before it is compared with others. Only types, and the format of addresses.

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")


@frozen
class DeviceReport:
    """One probe's report of one device. `None` and empty texts mean unknown."""

    backend: Backend
    uuid: str = ""
    pci: str = ""
    """In the format of `tidy_pci`."""
    index: int | None = None
    """The index in the probe's own list."""
    minor: int | None = None
    """The number of its device file."""
    name: str = ""
    memory_type: MemoryType | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    """The driver's own part of the total; programs never see it."""
    free_bytes: int | None = None
    driver: str = ""
    capability: str = ""
    parent: str = ""
    """The UUID of the device that contains this part."""
    is_split: bool = False
    """It was divided into parts, and only those can be used."""
    driver_hint: str = ""
    """How to get a driver for computing, if it has none and is not reserved for something else."""
    works: TriStateAnswer | None = None
    """Whether a program has computed on it, or what is known to prevent that."""


@frozen
class ProbeResult:
    """The result of one probe."""

    probe: str
    reports: tuple[DeviceReport, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """Backend → its version."""
    findings: tuple[ProbeFinding, ...] = ()
    looked_for: frozenset[Backend] = frozenset()
    """Kinds of device that it would have reported."""
    is_readable: bool = True
    """True if its output could be read; only then the number of its reports means anything."""


def failed_probe(probe: str, finding: ProbeFinding) -> ProbeResult:
    """Return the result of a probe without readable output."""
    return ProbeResult(probe=probe, findings=(finding,), is_readable=False)


def tidy_pci(text: str) -> str:
    """Format a PCI address as the kernel does, `0000:01:00.0`, whatever the tool; empty if it is none."""
    found = _PCI.fullmatch(text.strip().lower())
    if found is None:
        return ""
    domain = (found[1] or "0").lstrip("0").rjust(4, "0")
    return f"{domain}:{found[2]}:{found[3]}.{found[4] or '0'}"


# The combined result of all probes of one machine.


@frozen
class DetectedDevices:
    """Devices, usable backends, and findings."""

    devices: tuple[Device, ...] = ()
    backends: Mapping[Backend, str] = fresh(factory=dict)
    """Backend → its version, if known."""
    findings: tuple[ProbeFinding, ...] = ()
    sources: Mapping[str, str] = fresh(factory=dict)
    """Source of each value: `devices`, `cuda`, … → probe."""
    is_fake: bool = False


def usable_backends(backends: Mapping[Backend, str], devices: Iterable[Device]) -> dict[Backend, str]:
    """Return the backends without those whose every device is hidden or can't be used, in declared order.

    Any of them implies webgpu: its implementations use Vulkan, Metal or Direct3D, which every vendor's driver has. Its
    version is unknown then.
    """
    by_backend: dict[Backend, list[Device]] = {}
    for device in devices:
        by_backend.setdefault(device.backend, []).append(device)
    usable = {
        backend: version
        for backend, version in backends.items()
        if not (of := by_backend.get(backend)) or any(one.may_be_used for one in of)
    }
    if usable:
        usable.setdefault(Backend.WEBGPU, "")
    return {backend: usable[backend] for backend in Backend if backend in usable}


# Which probe is believed. Only data: a probe that names devices has its place in `PROBES`, and nowhere else unless
# it is an exception for one field.

PROBES = (
    "nvml", "nvidia-smi", "amd-smi", "rocm-smi", "system_profiler", "jetson", "kfd", "torch", "kernel", "pci",
)  # fmt: skip
"""Probes that name devices, the most trusted first."""

# A board's name is more specific than that of the GPU inside it. ROCm numbers devices as its driver does.
_FIRST = {"name": ("jetson",), "index": ("kfd",)}
# The compute driver and the bus know only numbers.
_LAST = {"name": ("kfd", "pci")}
# What torch calls 0 depends on what is hidden from it.
_IGNORED = {"index": ("torch",)}

NVIDIA_DRIVER = ("nvml", "nvidia-smi")
"""Probes that list all devices which NVIDIA's driver shows here: a different count means an error."""
_SAME_NAMES = (*NVIDIA_DRIVER, "kernel", "torch")
"""Probes that read the name from the same place in the driver: a different name means an error."""

SAME_BYTES = 64 * MIB
"""Two totals that differ by no more are the same."""
RESERVED_PERCENT = 3
"""How much of the total a driver may reserve where no probe reports it."""

UNIFIED_FRAGMENTS = ("jetson", "orin", "tegra", "gb10", "digits", "thor")
"""Parts of the names of devices that use the machine's own memory."""


def order_of(field: str) -> tuple[str, ...]:
    """Return the probes for a field, the most trusted first."""
    first, last = _FIRST.get(field, ()), _LAST.get(field, ())
    placed = {*first, *last, *_IGNORED.get(field, ())}
    return (*first, *(probe for probe in PROBES if probe not in placed), *last)


TORCH = "torch"
_UNKNOWN_PLACE = 1 << 30

DeviceGroup = dict[str, DeviceReport]
"""One device with its reports."""


def group(results: Iterable[ProbeResult]) -> list[DeviceGroup]:
    """Return the devices, in their drivers' order, parts right after their wholes.

    Reports of torch that carry no address are left out: see `pair`.
    """
    groups: list[DeviceGroup] = []
    loose: list[tuple[str, list[DeviceReport]]] = []
    for result in sorted(results, key=lambda one: _rank(one.probe)):
        without = [one for one in result.reports if not _join(groups, result.probe, one)]
        if without and result.probe != TORCH:
            loose.append((result.probe, without))
    for probe, reports in loose:
        for backend in dict.fromkeys(one.backend for one in reports):
            _match_loose(groups, probe, [one for one in reports if one.backend is backend])
    return _in_order(groups)


def pair(groups: Sequence[DeviceGroup], result: ProbeResult) -> int:
    """Match reports of torch without an address to the devices that it can see; return how many found none.

    `groups` are the visible devices in their order. Without addresses, the names must agree one by one.
    """
    loose = [one for one in result.reports if not (one.uuid or one.pci)]
    for backend in dict.fromkeys(one.backend for one in loose):
        rows = [one for one in loose if one.backend is backend]
        open_groups = [one for one in groups if backend_of(one) is backend and TORCH not in one]
        names = [[name.lower() for name in _names(one)] for one in open_groups]
        if len(rows) == len(open_groups) and all(
            row.name.lower() in name or len(rows) == 1 for row, name in zip(rows, names, strict=True)
        ):
            for row, place in zip(rows, open_groups, strict=True):
                place[TORCH] = row
            loose = [one for one in loose if one.backend is not backend]
    return len(loose)


def backend_of(of: DeviceGroup) -> Backend:
    """Return the backend of a device."""
    return next(iter(of.values())).backend


def first_of(of: DeviceGroup, field: str) -> tuple[object, str]:
    """Return the value of the most trusted probe for a field, and that probe; nothing if none has one."""
    for probe in order_of(field):
        report = of.get(probe)
        value = getattr(report, field) if report is not None else None
        if value is not None and value != "":
            return value, probe
    return None, ""


def is_unified(of: DeviceGroup) -> bool:
    """Return True if a device's names show that it uses the machine's memory."""
    return any(fragment in name.lower() for name in _names(of) for fragment in UNIFIED_FRAGMENTS)


def _rank(probe: str) -> int:
    return PROBES.index(probe) if probe in PROBES else len(PROBES)


def _join(groups: list[DeviceGroup], probe: str, report: DeviceReport) -> bool:
    """Add a report to its device, unless it has no address."""
    if not (report.uuid or report.pci):
        return False
    for one in groups:
        if probe not in one and any(_is_same(report, other) for other in one.values()):
            one[probe] = report
            return True
    groups.append({probe: report})
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


def _match_loose(groups: list[DeviceGroup], probe: str, rows: list[DeviceReport]) -> None:
    wholes = [
        one
        for one in groups
        if backend_of(one) is rows[0].backend and probe not in one and not first_of(one, "parent")[0]
    ]
    for row in rows:
        fitting = [
            one for one in wholes if probe not in one and _may_be(row, one, is_only=len(wholes) == len(rows) == 1)
        ]
        if len(fitting) == 1:
            fitting[0][probe] = row
        else:
            groups.append({probe: row})


def _may_be(row: DeviceReport, of: DeviceGroup, *, is_only: bool) -> bool:
    if is_only:
        # A board may have a card as well, which is not the GPU in its chip.
        return is_unified(of) or not first_of(of, "pci")[0]
    has_place = row.index is not None and any(one.index == row.index for one in of.values())
    return has_place and row.name.lower() in [name.lower() for name in _names(of)]


def _names(of: DeviceGroup) -> list[str]:
    return [one.name for one in of.values() if one.name]


def _in_order(groups: list[DeviceGroup]) -> list[DeviceGroup]:
    backends = list(Backend)

    def place(of: DeviceGroup) -> tuple[int, int, str]:
        index, _ = first_of(of, "index")
        return backends.index(backend_of(of)), _number(index), str(first_of(of, "pci")[0] or "")

    wholes = sorted((one for one in groups if not first_of(one, "parent")[0]), key=place)
    parts = sorted((one for one in groups if first_of(one, "parent")[0]), key=place)
    ordered: list[DeviceGroup] = []
    for whole in wholes:
        uuid = first_of(whole, "uuid")[0]
        own = [part for part in parts if uuid and first_of(part, "parent")[0] == uuid]
        parts = [part for part in parts if not any(part is one for one in own)]
        ordered += [whole, *own]
    return [*ordered, *parts]


def _number(value: object) -> int:
    return value if isinstance(value, int) else _UNKNOWN_PLACE


_HINT = "the driver was updated without a restart, a card is failing, or a tool is from another installation"


def compare(
    groups: Sequence[DeviceGroup],
    devices: Sequence[Device],
    by_probe: Mapping[str, ProbeResult],
    device_files: Collection[int],
) -> list[ProbeFinding]:
    """Return every difference that means an error. `devices` are the results of `groups`, one for one."""
    found: list[ProbeFinding] = []
    for one in groups:
        label = str(first_of(one, "uuid")[0] or first_of(one, "pci")[0] or first_of(one, "name")[0] or "a device")
        found += _name_differences(one, label)
        found += _size_differences(one, label)
    return [
        *found,
        *_counts(by_probe),
        *_missing_in_driver(groups, by_probe, device_files),
        *_without_driver(groups, devices),
        *_fewer_than_visible(groups, devices, by_probe),
        *_order_unknown(devices),
    ]


def unmatched(count: int) -> list[ProbeFinding]:
    """Return the finding that so many devices of torch could not be identified."""
    if not count:
        return []
    return [
        ProbeFinding(
            code="torch_unmatched",
            message=f"{count} device{'s' * (count > 1)} of torch could not be identified",
            probe=TORCH,
            hint="a newer torch reports its devices' UUIDs",
        )
    ]


def _name_differences(of: DeviceGroup, label: str) -> list[ProbeFinding]:
    named = [(probe, of[probe].name) for probe in _SAME_NAMES if probe in of and of[probe].name]
    if len({_plain(name) for _, name in named}) < 2:
        return []
    listed = ", ".join(f"{probe} says {name!r}" for probe, name in named)
    return [_difference("disagree_name", f"{label} has two names: {listed}")]


def _plain(name: str) -> str:
    # Older drivers leave the vendor out, in some places and not in others.
    return " ".join(name.lower().removeprefix("nvidia ").split())


def _size_differences(of: DeviceGroup, label: str) -> list[ProbeFinding]:
    rows = [(probe, of[probe]) for probe in PROBES if probe in of and of[probe].total_bytes]
    if len(rows) < 2:
        return []
    trusted, best = rows[0]
    return [
        _difference(
            "disagree_total_bytes",
            f"{label} has two sizes: {trusted} says {format_size(best.total_bytes or 0)},"
            f" {probe} says {format_size(other.total_bytes or 0)}",
        )
        for probe, other in rows[1:]
        if not _is_same_size(best, other, is_torch=probe == TORCH)
    ]


def _is_same_size(best: DeviceReport, other: DeviceReport, *, is_torch: bool) -> bool:
    total, reported = best.total_bytes or 0, other.total_bytes or 0
    if not is_torch:
        return abs(total - reported) <= SAME_BYTES
    # Programs see what the driver leaves.
    if best.reserved_bytes:
        return abs(total - best.reserved_bytes - reported) <= SAME_BYTES
    return -SAME_BYTES <= total - reported <= SAME_BYTES + total * RESERVED_PERCENT // 100


def _counts(by_probe: Mapping[str, ProbeResult]) -> list[ProbeFinding]:
    counts = [
        (probe, sum(1 for one in by_probe[probe].reports if not one.parent))
        for probe in NVIDIA_DRIVER
        if probe in by_probe and by_probe[probe].is_readable
    ]
    return [
        _difference("disagree_count", f"{one} lists {count} devices, {other} lists {others}")
        for (one, count), (other, others) in pairwise(counts)
        if count != others
    ]


def _missing_in_driver(
    groups: Sequence[DeviceGroup], by_probe: Mapping[str, ProbeResult], device_files: Collection[int]
) -> list[ProbeFinding]:
    listed = sum(1 for one in groups if "kernel" in one) or len(device_files)
    blind = [name for name in NVIDIA_DRIVER if name in by_probe and by_probe[name].is_readable]
    if not listed or not blind or any(by_probe[name].reports for name in blind):
        return []
    return [
        ProbeFinding(
            code="nvml_sees_nothing",
            message=f"{listed} NVIDIA device{'s' * (listed > 1)} should be here, and {' and '.join(blind)} see none",
            probe=blind[0],
            hint="the driver refuses them: see the kernel's log (dmesg); in a container, check what it was given",
        )
    ]


def _without_driver(groups: Sequence[DeviceGroup], devices: Sequence[Device]) -> list[ProbeFinding]:
    return [
        ProbeFinding(
            code="driver_missing",
            message=f"{device.name} at {device.pci} can't be used: {device.usable.why}",
            probe="pci",
            hint=one["pci"].driver_hint,
        )
        for one, device in zip(groups, devices, strict=True)
        if set(one) == {"pci"} and one["pci"].driver_hint
    ]


def _fewer_than_visible(
    groups: Sequence[DeviceGroup], devices: Sequence[Device], by_probe: Mapping[str, ProbeResult]
) -> list[ProbeFinding]:
    by_torch = by_probe.get(TORCH)
    if by_torch is None or not by_torch.is_readable or any(first_of(one, "parent")[0] for one in groups):
        return []
    missed = [
        device.uuid
        for one, device in zip(groups, devices, strict=True)
        if device.backend in by_torch.looked_for and device.visible.is_yes and TORCH not in one
    ]
    if not missed:
        return []
    return [
        ProbeFinding(
            code="torch_sees_fewer",
            message=f"torch does not see {len(missed)} of the visible devices: {', '.join(missed)}",
            probe=TORCH,
            hint="its build may be too old for the device, or the device is broken",
        )
    ]


def _order_unknown(devices: Sequence[Device]) -> list[ProbeFinding]:
    return [
        ProbeFinding(code="device_order_unknown", message=f"{one.uuid}: {one.visible.why}")
        for one in devices
        if not one.visible.is_yes and not one.visible.is_no
    ]


def _difference(code: str, message: str) -> ProbeFinding:
    return ProbeFinding(code=code, message=message, hint=_HINT)


# Findings common to several probes: no output, unreadable output, and errors of NVIDIA's library.

_SHOWN = 160
_HINTS = {
    "probe_timeout": "a driver or a device may hang; see the kernel's log (dmesg)",
    "probe_stuck": "the driver hangs; see the kernel's log (dmesg). Only a restart of the machine ends such a program",
    "probe_flood": "this is not the vendor's tool, or it is broken",
    "probe_not_started": "check the program's permissions",
}


DEVICE_LOST = "device_lost"
"""The code of a finding: the driver lists a device that does not respond."""


@frozen
class _Trouble:
    fragments: tuple[str, ...]
    code: str
    message: str
    hint: str


# The first match counts. The library's messages are English whatever the language of the machine is.
_TROUBLES = (
    _Trouble(
        fragments=("version mismatch",),
        code="driver_mismatch",
        message="the NVIDIA library and the loaded driver are of different versions",
        hint="the driver was updated while it was running: restart the machine, or reload its kernel modules",
    ),
    _Trouble(
        fragments=("couldn't communicate with the nvidia driver", "driver not loaded", "driver is not loaded"),
        code="driver_unreachable",
        message="the NVIDIA driver can't be reached",
        hint="the kernel module is not loaded: install the driver for this kernel, or see why it fails (dmesg)",
    ),
    _Trouble(
        fragments=("shared library not found", "libnvidia-ml"),
        code="nvml_library_missing",
        message="NVIDIA's management library is not installed",
        hint="install the driver's user part; in a container, start it with the GPUs (--gpus all)",
    ),
    _Trouble(
        fragments=("insufficient permission", "no permission", "permission denied", "operation not permitted"),
        code="probe_permission",
        message="no permission to query the devices as this user",
        hint="add the user to the group that owns the device files (often video or render)",
    ),
    _Trouble(
        fragments=("gpu is lost", "fallen off the bus", "requires reset", "unable to determine the device handle"),
        code=DEVICE_LOST,
        message="a device does not respond any more",
        hint="it fell off its bus, overheated or lacks power; see the kernel's log (dmesg), restart the machine",
    ),
    _Trouble(
        fragments=("failed to initialize nvml: unknown error",),
        code="nvml_unknown_error",
        message="NVIDIA's library fails without a reason",
        hint="in a container this often means that its devices were taken away while it ran: restart the container",
    ),
)


def no_output(reply: ProbeFailure, probe: str) -> ProbeFinding:
    """Return the finding that a program gave no output."""
    return ProbeFinding(
        code=reply.code, message=one_line(reply.why, 2 * _SHOWN), probe=probe, hint=_HINTS.get(reply.code, "")
    )


def unreadable(probe: str, what: str, text: str = "") -> ProbeFinding:
    """Return the finding that a program's output can't be read."""
    shown = one_line(text, _SHOWN)
    return ProbeFinding(
        code="probe_garbage",
        message=f"{probe}: {what}" + (f": {shown}" if shown else ""),
        probe=probe,
        hint="the tool is broken, or of an unsupported version",
    )


def known_problem(text: str, probe: str) -> ProbeFinding | None:
    """Return the known problem that a message of NVIDIA's software describes, if any."""
    plain = text.lower()
    for one in _TROUBLES:
        if any(fragment in plain for fragment in one.fragments):
            return ProbeFinding(
                code=one.code, message=f"{one.message} ({probe}: {one_line(text, _SHOWN)})", probe=probe, hint=one.hint
            )
    return None
