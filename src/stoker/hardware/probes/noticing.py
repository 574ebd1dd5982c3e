"""Findings of which several probes speak: silence, garbage, and what NVIDIA's library says when it does not work."""

from __future__ import annotations

from stoker.hardware.probes.asking import Silent
from stoker.model.capability import ProbeFinding
from stoker.model.frozen import frozen
from stoker.model.printable import one_line

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


def silence(reply: Silent, probe: str) -> ProbeFinding:
    """Say that a program gave no answer."""
    return ProbeFinding(
        code=reply.code, message=one_line(reply.why, 2 * _SHOWN), probe=probe, hint=_HINTS.get(reply.code, "")
    )


def garbage(probe: str, what: str, text: str = "") -> ProbeFinding:
    """Say that something a program printed can't be read."""
    shown = one_line(text, _SHOWN)
    return ProbeFinding(
        code="probe_garbage",
        message=f"{probe}: {what}" + (f": {shown}" if shown else ""),
        probe=probe,
        hint="the tool is broken, or of a version that is not known yet",
    )


def trouble(text: str, probe: str) -> ProbeFinding | None:
    """Give the trouble that a text of NVIDIA's speaks of, if it is a known one."""
    plain = text.lower()
    for one in _TROUBLES:
        if any(fragment in plain for fragment in one.fragments):
            return ProbeFinding(
                code=one.code, message=f"{one.message} ({probe}: {one_line(text, _SHOWN)})", probe=probe, hint=one.hint
            )
    return None
