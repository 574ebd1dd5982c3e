"""What the state of a machine means: a verdict for each thing that matters, in plain words, with what to do.

Pure: a capability and a survey in, checks out. `doctor` shows them. The checks of devices and their libraries are in
`device_checkup`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from stoker.hardware.admission import floor_bytes
from stoker.hardware.survey import Containing, Disk, Survey
from stoker.host.disk import SPARE_BYTES
from stoker.host.file_systems import FileSystem
from stoker.model.capability import Capability
from stoker.model.devices import Answer
from stoker.model.frozen import frozen
from stoker.model.resources import GIB
from stoker.model.units import format_size

LITTLE_BYTES = 10 * GIB
"""Less free space than this is worth a warning: one model may take as much."""
_FLEETING = frozenset({"tmpfs", "ramfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "fuse.sshfs", "lustre", "beegfs", "ceph"})
_ELSEWHERE = "STOKER_HOME names another place"


class State(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    """It works, or may, but somebody should know."""
    BAD = "bad"
    """It stops work, or something that was required is missing."""


@frozen
class Check:
    """One thing that was looked at."""

    name: str
    verdict: State
    message: str
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "verdict": str(self.verdict), "message": self.message, "hint": self.hint}


def check_machine(capability: Capability) -> tuple[Check, ...]:
    """Judge processors and memory."""
    return (_cpu(capability), _memory(capability))


def check_surroundings(survey: Survey) -> tuple[Check, ...]:
    """Judge what Stoker needs beside hardware."""
    return (
        *(_disk(one) for one in survey.disks),
        _containment(survey.containing),
        _clock(survey.clock),
        *(_port(port, answer) for port, answer in survey.ports.items()),
    )


def check_recipes(count: int, troubles: Sequence[str]) -> Check:
    """Judge what can be run: how many recipes there are, and the cookbooks that can't be loaded."""
    told = "1 recipe" if count == 1 else f"{count} recipes" if count else "none: no cookbook is installed"
    if count and not troubles:
        return Check(name="recipes", verdict=State.OK, message=told)
    hint = "reinstall Stoker, or what can't be loaded"
    return Check(name="recipes", verdict=State.WARN, message="; ".join([told, *troubles]), hint=hint)


def _cpu(capability: Capability) -> Check:
    cores, threads = capability.cpu_cores, capability.cpu_threads
    count = "1 core" if cores == 1 else f"{cores} cores"
    more = f", {threads} threads" if threads > cores else ""
    bound = " may be used" if capability.sources.get("cpu_cores", "").startswith("limits") else ""
    return Check(
        name="cpu", verdict=State.OK, message=f"{capability.cpu_name or capability.arch}, {count}{more}{bound}"
    )


def _memory(capability: Capability) -> Check:
    total, available = capability.ram_total_bytes, capability.ram_available_bytes
    if total is None:
        return Check(
            name="memory",
            verdict=State.WARN,
            message="unknown: the system does not say",
            hint="jobs that declare a need are not refused, and none has a cap",
        )
    if available is None:
        return Check(
            name="memory",
            verdict=State.WARN,
            message=f"{format_size(total)} RAM; the system does not say how much is available",
            hint="jobs that declare a need are refused only if it is more than there is in all",
        )
    message = f"{format_size(total)} RAM, {format_size(available)} available"
    if available < floor_bytes(total):
        floor = format_size(floor_bytes(total))
        hint = f"jobs that declare memory wait or are refused: {floor} stay with the machine; close what you can"
        return Check(name="memory", verdict=State.WARN, message=message, hint=hint)
    return Check(name="memory", verdict=State.OK, message=message)


def _disk(disk: Disk) -> Check:
    names = ", ".join(disk.names)
    found = disk.file_system
    if found is None:
        return Check(name="disk", verdict=State.BAD, message=f"{names}: {disk.why}", hint=_ELSEWHERE)
    kind = f" ({found.type})" if found.type else ""
    copies = ", copies share blocks" if disk.shares_blocks.is_yes else ""
    where = f" on {found.mount_point}{kind}" if found.mount_point else kind
    room = f"{format_size(found.free_bytes)} of {format_size(found.total_bytes)} free{where}{copies}"
    fault, hint = _unwritable(found, disk.paths[0])
    if fault:
        return Check(name="disk", verdict=State.BAD, message=f"{names}: {fault}; {room}", hint=hint)
    hint = _worth_knowing(found)
    return Check(name="disk", verdict=State.WARN if hint else State.OK, message=f"{names}: {room}", hint=hint)


def _unwritable(found: FileSystem, path: str) -> tuple[str, str]:
    """Say what keeps everybody from writing there, and what to do."""
    if found.is_read_only:
        return "read-only", _ELSEWHERE
    if not found.is_writable:
        return f"no permission to write in {path}", _ELSEWHERE
    if found.free_bytes < SPARE_BYTES:
        return "full", f"`stoker store prune` may free some; {_ELSEWHERE}"
    return "", ""


def _worth_knowing(found: FileSystem) -> str:
    if found.free_bytes < LITTLE_BYTES:
        return "little space: `stoker store prune` frees some"
    if found.type in _FLEETING:
        return f"it is gone when the machine restarts; {_ELSEWHERE}"
    if found.type in _REMOTE:
        return f"locks and databases are not safe on every network disk; {_ELSEWHERE}"
    return ""


def _containment(containing: Containing) -> Check:
    if not containing.mechanism:
        return Check(
            name="containment",
            verdict=State.BAD,
            message=f"the one that STOKER_CONTAIN names does not work: {containing.warning}",
            hint=containing.hint or "unset STOKER_CONTAIN: the strongest that works is used",
        )
    message = f"{containing.mechanism}: a program that goes beyond its memory is ended alone"
    if not containing.warning:
        return Check(name="containment", verdict=State.OK, message=message)
    # The first that was tried is the one to mend.
    why = next((f"{name} is not to be had: {why}" for name, why in containing.stronger), "")
    return Check(
        name="containment", verdict=State.WARN, message=f"{containing.mechanism}: {containing.warning}", hint=why
    )


def _clock(clock: Answer) -> Check:
    if clock.is_yes:
        return Check(name="clock", verdict=State.OK, message="synchronised")
    if clock.is_no:
        return Check(
            name="clock",
            verdict=State.WARN,
            message=f"not known to be synchronised: {clock.why}",
            hint="harmless for one machine; in a fleet, run chrony or systemd-timesyncd (`timedatectl set-ntp true`)",
        )
    return Check(name="clock", verdict=State.WARN, message=f"unknown: {clock.why}", hint="compare it with another's")


def _port(port: int, is_free: Answer) -> Check:
    name = f"port {port}"
    if is_free.is_yes:
        return Check(name=name, verdict=State.OK, message="free for a coordinator")
    hint = f"only a coordinator on this machine needs it; `ss -ltnp 'sport = :{port}'` tells who has it"
    return Check(name=name, verdict=State.WARN, message=is_free.why, hint=hint)
