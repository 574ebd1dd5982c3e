"""What does not fit together in what witnesses say of one machine, as findings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from stoker.core.capability import ProbeFinding
from stoker.core.device import Backend, Device
from stoker.core.frozen import frozen
from stoker.core.text import format_size, one_line
from stoker.devices.probes.observations import (
    COMPARED,
    SAME_BYTES,
    TORCH,
    UNTOLD_PERCENT,
    DeviceReport,
    Group,
    ProbeResult,
    first_of,
)
from stoker.host.command_runner import ProbeFailure

_DRIVER_HINTS = {Backend.CUDA: "install the vendor's driver", Backend.ROCM: "load amdgpu, with ROCm's support"}
_HINT = "a driver that was updated and not restarted, a card that is failing, or a tool of another installation"


def compare(
    groups: Sequence[Group],
    devices: Sequence[Device],
    heard: Mapping[str, ProbeResult],
    device_files: Collection[int],
) -> list[ProbeFinding]:
    """Return every difference that should not be. `devices` are what came of `groups`, one for one."""
    found: list[ProbeFinding] = []
    for one in groups:
        label = str(first_of(one, "uuid")[0] or first_of(one, "pci")[0] or first_of(one, "name")[0] or "a device")
        found += _names(one, label)
        found += _totals(one, label)
    return [
        *found,
        *_counts(heard),
        *_seen_by_nobody(groups, heard, device_files),
        *_without_driver(groups, devices),
        *_fewer_than_visible(groups, devices, heard),
        *_order_unknown(devices),
    ]


def unmatched(count: int) -> list[ProbeFinding]:
    """Return the message that so many devices of torch's could not be told from each other."""
    if not count:
        return []
    return [
        ProbeFinding(
            code="torch_unmatched",
            message=f"torch sees {count} device{'s' * (count > 1)} of which it is not clear which they are",
            probe=TORCH,
            hint="a newer torch says its devices' UUIDs",
        )
    ]


def _names(of: Group, label: str) -> list[ProbeFinding]:
    said = [(witness, of[witness].name) for witness in COMPARED["name"] if witness in of and of[witness].name]
    if len({_plain(name) for _, name in said}) < 2:
        return []
    listed = ", ".join(f"{witness} says {name!r}" for witness, name in said)
    return [_difference("disagree_name", f"{label} has two names: {listed}")]


def _plain(name: str) -> str:
    # Older drivers leave the vendor out, in some places and not in others.
    return " ".join(name.lower().removeprefix("nvidia ").split())


def _totals(of: Group, label: str) -> list[ProbeFinding]:
    rows = [(witness, of[witness]) for witness in COMPARED["total_bytes"] if witness in of and of[witness].total_bytes]
    if len(rows) < 2:
        return []
    trusted, best = rows[0]
    return [
        _difference(
            "disagree_total_bytes",
            f"{label} has two sizes: {trusted} says {format_size(best.total_bytes or 0)},"
            f" {witness} says {format_size(other.total_bytes or 0)}",
        )
        for witness, other in rows[1:]
        if not _is_same_size(best, other, is_torch=witness == TORCH)
    ]


def _is_same_size(best: DeviceReport, other: DeviceReport, *, is_torch: bool) -> bool:
    total, said = best.total_bytes or 0, other.total_bytes or 0
    if not is_torch:
        return abs(total - said) <= SAME_BYTES
    # A program is shown what the driver leaves.
    if best.reserved_bytes:
        return abs(total - best.reserved_bytes - said) <= SAME_BYTES
    return -SAME_BYTES <= total - said <= SAME_BYTES + total * UNTOLD_PERCENT // 100


def _counts(heard: Mapping[str, ProbeResult]) -> list[ProbeFinding]:
    said = [
        (witness, sum(1 for one in heard[witness].sightings if not one.parent))
        for witness in COMPARED["count"]
        if witness in heard and heard[witness].was_heard
    ]
    return [
        _difference("disagree_count", f"{one} lists {count} devices, {other} lists {others}")
        for (one, count), (other, others) in pairwise(said)
        if count != others
    ]


def _seen_by_nobody(
    groups: Sequence[Group], heard: Mapping[str, ProbeResult], device_files: Collection[int]
) -> list[ProbeFinding]:
    listed = sum(1 for one in groups if "kernel" in one) or len(device_files)
    blind = [name for name in ("nvml", "nvidia-smi") if name in heard and heard[name].was_heard]
    if not listed or not blind or any(heard[name].sightings for name in blind):
        return []
    return [
        ProbeFinding(
            code="nvml_sees_nothing",
            message=f"{listed} NVIDIA device{'s' * (listed > 1)} should be here, and {' and '.join(blind)} see none",
            probe=blind[0],
            hint="the driver refuses them: see the kernel's log (dmesg); in a container, check what it was given",
        )
    ]


def _without_driver(groups: Sequence[Group], devices: Sequence[Device]) -> list[ProbeFinding]:
    return [
        ProbeFinding(
            code="driver_missing",
            message=f"{device.name} at {device.pci} can't be used: {device.usable.why}",
            probe="pci",
            hint=_DRIVER_HINTS.get(device.backend, ""),
        )
        for one, device in zip(groups, devices, strict=True)
        if set(one) == {"pci"} and one["pci"].lacks_driver
    ]


def _fewer_than_visible(
    groups: Sequence[Group], devices: Sequence[Device], heard: Mapping[str, ProbeResult]
) -> list[ProbeFinding]:
    said = heard.get(TORCH)
    if said is None or not said.was_heard or any(first_of(one, "parent")[0] for one in groups):
        return []
    missed = [
        device.uuid
        for one, device in zip(groups, devices, strict=True)
        if device.backend in said.looked_for and device.visible.is_yes and TORCH not in one
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


# Findings of which several probes speak: silence, garbage, and what NVIDIA's library says when it does not work.

_SHOWN = 160
_HINTS = {
    "probe_timeout": "a driver or a device may hang; see the kernel's log (dmesg)",
    "probe_stuck": "the driver hangs; see the kernel's log (dmesg). Only a restart of the machine ends such a program",
    "probe_flood": "this is not the vendor's tool, or it is broken",
    "probe_not_started": "check the program's permissions",
}


DEVICE_LOST = "device_lost"
"""The code of a finding: the driver lists a device that does not answer."""


@frozen
class _Trouble:
    fragments: tuple[str, ...]
    code: str
    message: str
    hint: str


# The first that fits counts. The library's words are English whatever the language of the machine is.
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
        message="the devices may not be asked by this user",
        hint="add the user to the group that owns the device files (often video or render)",
    ),
    _Trouble(
        fragments=("gpu is lost", "fallen off the bus", "requires reset", "unable to determine the device handle"),
        code=DEVICE_LOST,
        message="a device does not answer any more",
        hint="it fell off its bus, overheated or lacks power; see the kernel's log (dmesg), restart the machine",
    ),
    _Trouble(
        fragments=("failed to initialize nvml: unknown error",),
        code="nvml_unknown_error",
        message="NVIDIA's library fails without a reason",
        hint="in a container this often means that its devices were taken away while it ran: restart the container",
    ),
)


def silence(reply: ProbeFailure, probe: str) -> ProbeFinding:
    """Return the message that a program gave no answer."""
    return ProbeFinding(
        code=reply.code, message=one_line(reply.why, 2 * _SHOWN), probe=probe, hint=_HINTS.get(reply.code, "")
    )


def garbage(probe: str, what: str, text: str = "") -> ProbeFinding:
    """Return the message that something a program printed can't be read."""
    shown = one_line(text, _SHOWN)
    return ProbeFinding(
        code="probe_garbage",
        message=f"{probe}: {what}" + (f": {shown}" if shown else ""),
        probe=probe,
        hint="the tool is broken, or of a version that is not known yet",
    )


def trouble(text: str, probe: str) -> ProbeFinding | None:
    """Return the trouble that a text of NVIDIA's speaks of, if it is a known one."""
    plain = text.lower()
    for one in _TROUBLES:
        if any(fragment in plain for fragment in one.fragments):
            return ProbeFinding(
                code=one.code, message=f"{one.message} ({probe}: {one_line(text, _SHOWN)})", probe=probe, hint=one.hint
            )
    return None
