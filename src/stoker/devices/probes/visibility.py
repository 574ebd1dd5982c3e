"""Which devices the variables of CUDA and ROCm leave to a program, by those libraries' own rules. Pure.

CUDA_VISIBLE_DEVICES is a list of numbers or of UUIDs, which may be cut short. Set and empty means none. The first entry
that is none ends the list (`0,-1,2` is `0`); an entry that is there twice empties it. Numbers count in CUDA's order,
the fastest device first unless CUDA_DEVICE_ORDER=PCI_BUS_ID: among unequal devices only CUDA knows which one is meant.
ROCR_VISIBLE_DEVICES hides from all of ROCm; HIP_VISIBLE_DEVICES, or else CUDA_VISIBLE_DEVICES, counts in what that
leaves. NVIDIA_VISIBLE_DEVICES is a container's: its numbers are the host's and have no meaning inside, where hidden
devices simply have no device files; its UUIDs, `none` and `void` are honoured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stoker.core.device import (
    CUDA_ORDER_VARIABLE,
    CUDA_VARIABLE,
    HIP_VARIABLE,
    ROCR_VARIABLE,
    Backend,
    TriState,
    TriStateAnswer,
)
from stoker.core.frozen import fresh, frozen
from stoker.devices.probes.observations import NVIDIA_DRIVER, TORCH, DeviceGroup, ProbeResult, backend_of, first_of

CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"

_NUMBER = re.compile(r"\s*([+-]?\d+)")
_UUID_STARTS = ("GPU-", "MIG-", "FAKE-")
_YES = TriStateAnswer(verdict=TriState.YES)


@frozen
class VisibilityDevice:
    """The fields of a device that these rules use."""

    uuid: str
    backend: Backend
    name: str = ""
    parent: str = ""
    """The UUID of the device that contains this part."""


@frozen
class VisibilityList:
    """The devices of a list: indices in the order of the list, and why it ends early."""

    places: tuple[int, ...]
    why: str = ""


def visible_answers(
    candidates: Sequence[VisibilityDevice], environment: Mapping[str, str]
) -> tuple[TriStateAnswer, ...]:
    """Return for each device whether variables hide it. Candidates are in their drivers' order, parts after wholes."""
    answers = dict.fromkeys(range(len(candidates)), _YES)
    cuda = [at for at, one in enumerate(candidates) if one.backend is Backend.CUDA]
    rocm = [at for at, one in enumerate(candidates) if one.backend is Backend.ROCM]
    for places, judge in ((cuda, _cuda), (rocm, _rocm)):
        judged = judge([candidates[at] for at in places], environment)
        answers.update(zip(places, judged, strict=True))
    return tuple(answers[at] for at in range(len(candidates)))


def read_list(value: str, uuids: Sequence[str]) -> VisibilityList:
    """Read a list of numbers or UUIDs as CUDA does, over devices of these UUIDs."""
    entries = [entry.strip() for entry in value.split(",")]
    if entries == [""]:
        return VisibilityList(places=(), why="it is set and empty")
    read = _by_uuid if entries[0].upper().startswith(_UUID_STARTS) else _by_number
    places: list[int] = []
    for entry in entries:
        place = read(entry, uuids)
        if place is None:
            return VisibilityList(places=tuple(places), why=f"{entry!r} names no device and ends the list")
        if place in places:
            return VisibilityList(places=(), why=f"{entry!r} is there twice, which empties the list")
        places.append(place)
    return VisibilityList(places=tuple(places))


def _by_number(entry: str, uuids: Sequence[str]) -> int | None:
    found = _NUMBER.match(entry)
    # As strtol reads: `1gpu` is 1.
    place = int(found[1]) if found and len(found[1]) < 10 else -1
    return place if 0 <= place < len(uuids) else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    if not entry.upper().startswith(_UUID_STARTS):
        return None
    fitting = [place for place, uuid in enumerate(uuids) if uuid.lower().startswith(entry.lower())]
    exact = [place for place in fitting if uuids[place].lower() == entry.lower()]
    unique = exact or fitting
    return unique[0] if len(unique) == 1 else None


def _cuda(candidates: Sequence[VisibilityDevice], environment: Mapping[str, str]) -> list[TriStateAnswer]:
    outside = _container(candidates, environment.get(CONTAINER_VARIABLE))
    value = environment.get(CUDA_VARIABLE)
    if value is None:
        return outside
    wholes = [one for one in candidates if not one.parent]
    # Numbers count wholes; UUIDs may name parts as well.
    by_uuid = value.strip().upper().startswith(_UUID_STARTS)
    countable = list(candidates) if by_uuid else wholes
    listed = read_list(value, [one.uuid for one in countable])
    named = {countable[place].uuid for place in listed.places}
    if not by_uuid and 0 < len(named) < len(wholes) and not _is_order_known(wholes, environment):
        return [_unknown(value) if answer.is_yes else answer for answer in outside]
    hidden = _hidden(CUDA_VARIABLE, value, listed.why)
    return [
        answer if not answer.is_yes or one.uuid in named or one.parent in named else hidden
        for one, answer in zip(candidates, outside, strict=True)
    ]


def _container(candidates: Sequence[VisibilityDevice], value: str | None) -> list[TriStateAnswer]:
    if value is None or value.strip().lower() == "all":
        return [_YES] * len(candidates)
    if value.strip().lower() in ("", "none", "void"):
        return [_hidden(CONTAINER_VARIABLE, value, "it gives the container no device")] * len(candidates)
    entries = [entry.strip().lower() for entry in value.split(",")]
    if not all(entry.upper().startswith(_UUID_STARTS) for entry in entries):
        return [_YES] * len(candidates)
    hidden = _hidden(CONTAINER_VARIABLE, value, "")
    return [
        _YES if any(one.uuid.lower().startswith(entry) or one.parent.lower() == entry for entry in entries) else hidden
        for one in candidates
    ]


def _is_order_known(wholes: Sequence[VisibilityDevice], environment: Mapping[str, str]) -> bool:
    # Equal devices are equally fast, and CUDA keeps those in the order of the bus.
    return environment.get(CUDA_ORDER_VARIABLE, "") == "PCI_BUS_ID" or len({one.name for one in wholes}) == 1


def _rocm(candidates: Sequence[VisibilityDevice], environment: Mapping[str, str]) -> list[TriStateAnswer]:
    answers = [_YES] * len(candidates)
    left = list(range(len(candidates)))
    for names in ((ROCR_VARIABLE,), (HIP_VARIABLE, CUDA_VARIABLE)):
        name = next((one for one in names if one in environment), None)
        if name is None:
            continue
        listed = read_list(environment[name], [candidates[at].uuid for at in left])
        kept = [left[place] for place in listed.places]
        for at in left:
            if at not in kept:
                answers[at] = _hidden(name, environment[name], listed.why)
        left = kept
    return answers


def _hidden(variable: str, value: str, why: str) -> TriStateAnswer:
    return TriStateAnswer(verdict=TriState.NO, why=f"hidden by {variable}={value!r}" + (f": {why}" if why else ""))


def _unknown(value: str) -> TriStateAnswer:
    return TriStateAnswer(
        verdict=TriState.UNKNOWN,
        why=f"{CUDA_VARIABLE}={value!r} counts from the fastest device, which only CUDA knows;"
        f" set {CUDA_ORDER_VARIABLE}=PCI_BUS_ID or write UUIDs",
    )


# Installed, visible, usable: three answers about a device, each with its reason. Pure.

_STOPPING = ("driver_mismatch", "driver_unreachable", "device_lost", "nvml_unknown_error")
"""Findings that mean: no program can use the device."""


@frozen
class DetectedMachineFacts:
    """Other facts about the machine of the devices."""

    tag: str = ""
    """Distinguishes this machine from every other one."""
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    device_files: Mapping[int, bool] = fresh(factory=dict)
    """NVIDIA's device files by number, each with whether we may use it."""
    has_device_files: bool = True
    """True if this system makes device files for NVIDIA's devices at all; Windows' Linux does not."""
    may_use_kfd: bool | None = None
    """Whether we may use ROCm's one device file; `None`: there is none."""


def installed(of: DeviceGroup) -> TriStateAnswer:
    """Return which probes have seen the device."""
    return TriStateAnswer(verdict=TriState.YES, why=f"seen by {', '.join(of)}")


def visible(
    of: DeviceGroup, by_variables: TriStateAnswer, by_probe: Mapping[str, ProbeResult], facts: DetectedMachineFacts
) -> TriStateAnswer:
    """Return whether programs started from here may see the device."""
    if TORCH in of:
        return TriStateAnswer(verdict=TriState.YES, why="torch sees it")
    if by_variables.is_no:
        return by_variables
    if hidden := _hidden_by_system(of, by_probe, facts):
        return _no(hidden)
    if by_variables.verdict is TriState.UNKNOWN and _torch_saw_others(of, by_probe):
        return _no(f"torch does not see it; {by_variables.why}")
    if by_variables.is_yes:
        return TriStateAnswer(verdict=TriState.YES, why="no variable and no permission hides it")
    return by_variables


def usable(of: DeviceGroup, seen: TriStateAnswer, by_probe: Mapping[str, ProbeResult]) -> TriStateAnswer:
    """Return whether a program has computed on the device, or what would prevent that."""
    if first_of(of, "is_split")[0] is True:
        return _no("it is divided into parts (MIG), and programs use those")
    tried = of[TORCH].works if TORCH in of else _stopped(of, by_probe)
    if tried is not None:
        return tried
    if seen.is_no:
        return TriStateAnswer(verdict=TriState.UNKNOWN, why="programs do not see it, so none has tried it")
    if seen.is_yes and _torch_saw_others(of, by_probe):
        return _no(next((one.message for one in by_probe[TORCH].findings), "torch does not see it"))
    return TriStateAnswer(verdict=TriState.UNKNOWN, why="no program has tried it")


def _stopped(of: DeviceGroup, by_probe: Mapping[str, ProbeResult]) -> TriStateAnswer | None:
    """Return what is known to prevent programs, unless a probe can use the device."""
    reached = [one for probe, one in of.items() if probe not in ("kernel", "pci")]
    if reached:
        # One of them may list a device that no longer responds to it.
        return next((one.works for one in reached if one.works is not None and one.works.is_no), None)
    stopped = next((one.works for one in of.values() if one.works is not None and one.works.is_no), None)
    troubles = [one.message for result in by_probe.values() for one in result.findings if one.code in _STOPPING]
    if stopped is None and troubles and backend_of(of) is Backend.CUDA:
        return _no(troubles[0])
    return stopped


def _hidden_by_system(of: DeviceGroup, by_probe: Mapping[str, ProbeResult], facts: DetectedMachineFacts) -> str:
    backend = backend_of(of)
    if backend is Backend.CUDA:
        return _cuda_hidden(of, by_probe, facts)
    return _rocm_hidden(of, facts) if backend is Backend.ROCM else ""


def _cuda_hidden(of: DeviceGroup, by_probe: Mapping[str, ProbeResult], facts: DetectedMachineFacts) -> str:
    if any(probe in of and of[probe].free_bytes is not None for probe in NVIDIA_DRIVER):
        # Its memory was read through its device file, whatever that is called here.
        return ""
    minor, _ = first_of(of, "minor")
    if isinstance(minor, int) and facts.has_device_files:
        if minor not in facts.device_files:
            return f"there is no /dev/nvidia{minor} here: a container was not given it"
        if not facts.device_files[minor]:
            return f"no permission to use /dev/nvidia{minor}"
    listing = [probe for probe in NVIDIA_DRIVER if probe in by_probe and by_probe[probe].is_readable]
    is_shown = any(probe in of for probe in (*NVIDIA_DRIVER, "jetson", TORCH))
    if listing and not is_shown:
        return f"the driver does not show it here ({', '.join(listing)})"
    return ""


def _rocm_hidden(of: DeviceGroup, facts: DetectedMachineFacts) -> str:
    if facts.may_use_kfd is None:
        return "there is no /dev/kfd here: the driver is missing, or a container was not given it"
    if not facts.may_use_kfd:
        return "no permission to use /dev/kfd: see the groups render and video"
    if set(of) == {"pci"}:
        return "ROCm's driver does not list it"
    return ""


def _torch_saw_others(of: DeviceGroup, by_probe: Mapping[str, ProbeResult]) -> bool:
    """Return True if torch reported this kind of device, and did not name this one."""
    by_torch = by_probe.get(TORCH)
    is_whole = not first_of(of, "parent")[0]
    return (
        by_torch is not None
        and by_torch.is_readable
        and backend_of(of) in by_torch.looked_for
        and TORCH not in of
        and is_whole
    )


def _no(why: str) -> TriStateAnswer:
    return TriStateAnswer(verdict=TriState.NO, why=why)
