"""Installed, visible, usable: three questions about a device, answered one by one, each with its reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.hardware.probes.grouping import TORCH, Group, backend_of, first_of
from stoker.hardware.probes.sighting import Statement
from stoker.model.devices import Answer, Backend, Verdict
from stoker.model.frozen import fresh, frozen

_DRIVERS = ("nvml", "nvidia-smi")
"""Witnesses that list everything the driver shows here."""
_STOPPING = ("driver_mismatch", "driver_unreachable", "device_lost", "nvml_unknown_error")
"""Findings that mean: no program gets through to the device."""


@frozen
class MachineFacts:
    """What else is known of the machine that the devices are in."""

    tag: str = ""
    """Tells this machine from every other one."""
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    device_files: Mapping[int, bool] = fresh(factory=dict)
    """NVIDIA's device files by number, each with whether we may use it."""
    has_device_files: bool = True
    """Whether this system makes device files for NVIDIA's devices at all; Windows' Linux does not."""
    may_use_kfd: bool | None = None
    """Whether we may use ROCm's one device file; `None`: there is none."""


def installed(of: Group) -> Answer:
    """Say who has seen the device."""
    return Answer(verdict=Verdict.YES, why=f"seen by {', '.join(of)}")


def visible(of: Group, by_variables: Answer, heard: Mapping[str, Statement], facts: MachineFacts) -> Answer:
    """Say whether programs started from here may see the device."""
    if TORCH in of:
        return Answer(verdict=Verdict.YES, why="torch sees it")
    if by_variables.is_no:
        return by_variables
    if hidden := _hidden(of, heard, facts):
        return _no(hidden)
    if by_variables.verdict is Verdict.UNKNOWN and _torch_saw_others(of, heard):
        return _no(f"torch does not see it; {by_variables.why}")
    if by_variables.is_yes:
        return Answer(verdict=Verdict.YES, why="no variable and no permission hides it")
    return by_variables


def usable(of: Group, seen: Answer, heard: Mapping[str, Statement]) -> Answer:
    """Say whether a program has worked on the device, or what would stop one."""
    if first_of(of, "is_split")[0] is True:
        return _no("it is divided into parts (MIG), and programs use those")
    tried = of[TORCH].works if TORCH in of else _stopped(of, heard)
    if tried is not None:
        return tried
    if seen.is_no:
        return Answer(verdict=Verdict.UNKNOWN, why="programs do not see it, so none has tried it")
    if seen.is_yes and _torch_saw_others(of, heard):
        return _no(next((one.message for one in heard[TORCH].findings), "torch does not see it"))
    return Answer(verdict=Verdict.UNKNOWN, why="no program has tried it")


def _stopped(of: Group, heard: Mapping[str, Statement]) -> Answer | None:
    """Give what is known to stop programs, unless a witness gets through to the device."""
    reached = [one for witness, one in of.items() if witness not in ("kernel", "pci")]
    if reached:
        # One of them may list a device that it no longer gets an answer from.
        return next((one.works for one in reached if one.works is not None and one.works.is_no), None)
    stopped = next((one.works for one in of.values() if one.works is not None and one.works.is_no), None)
    troubles = [one.message for said in heard.values() for one in said.findings if one.code in _STOPPING]
    if stopped is None and troubles and backend_of(of) is Backend.CUDA:
        return _no(troubles[0])
    return stopped


def _hidden(of: Group, heard: Mapping[str, Statement], facts: MachineFacts) -> str:
    backend = backend_of(of)
    if backend is Backend.CUDA:
        return _cuda_hidden(of, heard, facts)
    return _rocm_hidden(of, facts) if backend is Backend.ROCM else ""


def _cuda_hidden(of: Group, heard: Mapping[str, Statement], facts: MachineFacts) -> str:
    if any(witness in of and of[witness].free_bytes is not None for witness in _DRIVERS):
        # Its memory was read through its device file, whatever that is called here.
        return ""
    minor, _ = first_of(of, "minor")
    if isinstance(minor, int) and facts.has_device_files:
        if minor not in facts.device_files:
            return f"there is no /dev/nvidia{minor} here: a container was not given it"
        if not facts.device_files[minor]:
            return f"no permission to use /dev/nvidia{minor}"
    listing = [witness for witness in _DRIVERS if witness in heard and heard[witness].was_heard]
    is_shown = any(witness in of for witness in (*_DRIVERS, "jetson", TORCH))
    if listing and not is_shown:
        return f"the driver does not show it here ({', '.join(listing)})"
    return ""


def _rocm_hidden(of: Group, facts: MachineFacts) -> str:
    if facts.may_use_kfd is None:
        return "there is no /dev/kfd here: the driver is missing, or a container was not given it"
    if not facts.may_use_kfd:
        return "no permission to use /dev/kfd: see the groups render and video"
    if set(of) == {"pci"}:
        return "ROCm's driver does not list it"
    return ""


def _torch_saw_others(of: Group, heard: Mapping[str, Statement]) -> bool:
    """Whether torch was heard on this kind of device, and did not name this one."""
    said = heard.get(TORCH)
    is_whole = not first_of(of, "parent")[0]
    return said is not None and said.was_heard and backend_of(of) in said.looked_for and TORCH not in of and is_whole


def _no(why: str) -> Answer:
    return Answer(verdict=Verdict.NO, why=why)
