"""What the state of a machine means: a verdict for each check, with what to do.

Pure: a capability and a survey in, checks out. `doctor` shows them.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, BinaryIO

from stoker.core.capability import Capability, MachineInterpreter
from stoker.core.device import COMPUTE_BACKENDS, GIB, VENDORS, Backend, Device, TriState, TriStateAnswer
from stoker.core.errors import StokerError
from stoker.core.frozen import frozen, frozen_by_position
from stoker.core.text import counted, did_you_mean, format_size, one_line
from stoker.devices.admission import floor_bytes
from stoker.devices.probes.readers import FAKE_VARIABLE, marked_objects
from stoker.host.command_runner import CommandRunner, ProbeFailure, Reply
from stoker.host.containment.mechanisms import ContainmentChoice
from stoker.host.network import is_clock_synchronised, is_port_free
from stoker.host.resources import NETWORK_FILE_SYSTEMS, SPARE_BYTES, FileSystem, existing_above, file_system_of

# What Stoker needs of a machine beside its hardware: disks, containment, clock, ports.
#
# Collected without a verdict; the checks below decide. What can't be determined is reported, never raised.

Reflink = Callable[[BinaryIO, BinaryIO], bool]
"""Makes one file share another's blocks; returns whether that worked."""


@frozen
class DiskSurvey:
    """A file system and our folders on it."""

    names: tuple[str, ...]
    """`store`, `runs`, …"""
    paths: tuple[str, ...]
    file_system: FileSystem | None
    """`None`: it can't be read."""
    shares_blocks: TriStateAnswer
    """Whether copies on it take no space; tried."""
    why: str = ""


@frozen
class ContainmentSurvey:
    """How the memory of programs is limited."""

    mechanism: str = ""
    """Empty: the requested one does not work."""
    warning: str = ""
    hint: str = ""
    stronger: tuple[tuple[str, str], ...] = ()
    """Stronger mechanisms, each with the reason why it is not used."""


@frozen
class MachineSurvey:
    """What was collected."""

    disks: tuple[DiskSurvey, ...] = ()
    containing: ContainmentSurvey = ContainmentSurvey()
    clock: TriStateAnswer
    """Whether it is synchronised."""
    ports: Mapping[int, TriStateAnswer]
    """Whether it is free."""


def survey(
    places: Mapping[str, str], *, contain: Callable[[], ContainmentChoice], reflink: Reflink, ports: Sequence[int]
) -> MachineSurvey:
    """Collect. `places` are our folders by name, which need not exist; nothing is created."""
    return MachineSurvey(
        disks=_disks(places, reflink),
        containing=_containing(contain),
        clock=is_clock_synchronised(),
        ports={port: is_port_free(port) for port in ports},
    )


def _disks(places: Mapping[str, str], reflink: Reflink) -> tuple[DiskSurvey, ...]:
    by_mount: dict[tuple[str, bool], list[tuple[str, str, FileSystem]]] = {}
    unseen = []
    for name, path in places.items():
        try:
            found = file_system_of(path)
        except OSError as error:
            unknown = TriStateAnswer(verdict=TriState.UNKNOWN)
            why = error.strerror or str(error)
            unseen.append(DiskSurvey(names=(name,), paths=(path,), file_system=None, shares_blocks=unknown, why=why))
            continue
        by_mount.setdefault((found.mount_point, found.is_writable), []).append((name, path, found))
    seen = [
        DiskSurvey(
            names=tuple(name for name, _, _ in group),
            paths=tuple(path for _, path, _ in group),
            file_system=group[0][2],
            shares_blocks=_shares_blocks(group[0][1], reflink),
        )
        for group in by_mount.values()
    ]
    return (*seen, *unseen)


def _shares_blocks(path: str, reflink: Reflink) -> TriStateAnswer:
    """Try it with two files without a name, so that nothing is left behind."""
    place = existing_above(path)
    try:
        with tempfile.TemporaryFile(dir=place) as source, tempfile.TemporaryFile(dir=place) as target:
            source.write(bytes(4096))
            source.flush()
            does = reflink(source, target)
    except OSError as error:
        return TriStateAnswer(verdict=TriState.UNKNOWN, why=error.strerror or str(error))
    return TriStateAnswer(verdict=TriState.YES if does else TriState.NO)


def _containing(contain: Callable[[], ContainmentChoice]) -> ContainmentSurvey:
    try:
        chosen = contain()
    except StokerError as error:
        return ContainmentSurvey(warning=str(error), hint=error.hint)
    return ContainmentSurvey(
        mechanism=str(chosen.mechanism),
        warning=chosen.warning,
        stronger=tuple((str(mechanism), why) for mechanism, why in chosen.tried),
    )


LITTLE_BYTES = 10 * GIB
"""Less free space than this is worth a warning: one model may take as much."""
_FLEETING = frozenset({"tmpfs", "ramfs"})
_REMOTE = NETWORK_FILE_SYSTEMS | {"9p", "afs"}
_ELSEWHERE = "STOKER_HOME names another place"


class CheckStatus(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    """It works, or may, but the user should know."""
    BAD = "bad"
    """It prevents work, or a requirement is not met."""


@frozen_by_position
class Check:
    """One check."""

    name: str
    verdict: CheckStatus
    message: str
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "verdict": str(self.verdict), "message": self.message, "hint": self.hint}


def check_machine(capability: Capability) -> tuple[Check, ...]:
    """Check processors and memory."""
    return (_cpu(capability), _memory(capability))


def check_surroundings(survey: MachineSurvey) -> tuple[Check, ...]:
    """Check what Stoker needs beside hardware."""
    return (
        *(_disk(one) for one in survey.disks),
        _containment(survey.containing),
        _clock(survey.clock),
        *(_port(port, answer) for port, answer in survey.ports.items()),
    )


def check_recipes(count: int, troubles: Sequence[str]) -> Check:
    """Check the recipes: how many there are, and the cookbooks that can't be loaded."""
    count_text = counted(count, "recipe") if count else "none: no cookbook is installed"
    if count and not troubles:
        return Check("recipes", CheckStatus.OK, count_text)
    hint = "reinstall Stoker, or the cookbook that can't be loaded"
    return Check("recipes", CheckStatus.WARN, "; ".join([count_text, *troubles]), hint)


def _cpu(capability: Capability) -> Check:
    cores, threads = capability.cpu_cores, capability.cpu_threads
    count = counted(cores, "core")
    more = f", {threads} threads" if threads > cores else ""
    bound = " may be used" if capability.sources.get("cpu_cores", "").startswith("limits") else ""
    return Check("cpu", CheckStatus.OK, f"{capability.cpu_name or capability.arch}, {count}{more}{bound}")


def _memory(capability: Capability) -> Check:
    total, available = capability.ram_total_bytes, capability.ram_available_bytes
    if total is None:
        hint = "jobs that declare a need are not refused, and none has a memory limit"
        return Check("memory", CheckStatus.WARN, "unknown: the system does not report it", hint)
    if available is None:
        message = f"{format_size(total)} RAM; available memory unknown: the system does not report it"
        hint = "jobs that declare a need are refused only if it exceeds the total"
        return Check("memory", CheckStatus.WARN, message, hint)
    message = f"{format_size(total)} RAM, {format_size(available)} available"
    if available < floor_bytes(total):
        floor = format_size(floor_bytes(total))
        hint = f"jobs that declare memory wait or are refused: {floor} are the system reserve; close other programs"
        return Check("memory", CheckStatus.WARN, message, hint)
    return Check("memory", CheckStatus.OK, message)


def _disk(disk: DiskSurvey) -> Check:
    names = ", ".join(disk.names)
    found = disk.file_system
    if found is None:
        return Check("disk", CheckStatus.BAD, f"{names}: {disk.why}", _ELSEWHERE)
    kind = f" ({found.type})" if found.type else ""
    copies = ", copies share blocks" if disk.shares_blocks.is_yes else ""
    where = f" on {found.mount_point}{kind}" if found.mount_point else kind
    room = f"{format_size(found.free_bytes)} of {format_size(found.total_bytes)} free{where}{copies}"
    fault, hint = _unwritable(found, disk.paths[0])
    if fault:
        return Check("disk", CheckStatus.BAD, f"{names}: {fault}; {room}", hint)
    hint = _worth_knowing(found)
    return Check("disk", CheckStatus.WARN if hint else CheckStatus.OK, f"{names}: {room}", hint)


def _unwritable(found: FileSystem, path: str) -> tuple[str, str]:
    """Return what prevents writing there, and what to do."""
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
        return f"its content is lost when the machine restarts; {_ELSEWHERE}"
    if found.type in _REMOTE:
        return f"locks and databases are not safe on every network disk; {_ELSEWHERE}"
    return ""


def _containment(containing: ContainmentSurvey) -> Check:
    if not containing.mechanism:
        message = f"the mechanism in STOKER_CONTAIN does not work: {containing.warning}"
        hint = containing.hint or "unset STOKER_CONTAIN: the strongest that works is used"
        return Check("containment", CheckStatus.BAD, message, hint)
    if not containing.warning:
        message = f"{containing.mechanism}: only a program that exceeds its memory limit is ended"
        return Check("containment", CheckStatus.OK, message)
    # The first one tried is the one to repair.
    why = next((f"{name} is not available: {why}" for name, why in containing.stronger), "")
    return Check("containment", CheckStatus.WARN, f"{containing.mechanism}: {containing.warning}", why)


def _clock(clock: TriStateAnswer) -> Check:
    if clock.is_yes:
        return Check("clock", CheckStatus.OK, "synchronised")
    if clock.is_no:
        hint = "harmless for one machine; in a fleet, run chrony or systemd-timesyncd (`timedatectl set-ntp true`)"
        return Check("clock", CheckStatus.WARN, f"not known to be synchronised: {clock.why}", hint)
    return Check("clock", CheckStatus.WARN, f"unknown: {clock.why}", "compare it with another machine's clock")


def _port(port: int, is_free: TriStateAnswer) -> Check:
    name = f"port {port}"
    if is_free.is_yes:
        return Check(name, CheckStatus.OK, "free for a coordinator")
    hint = f"only a coordinator on this machine needs it; `ss -ltnp 'sport = :{port}'` shows the program that uses it"
    return Check(name, CheckStatus.WARN, is_free.why, hint)


# Whether a machine meets a requirement given by name: `gpu`, `cuda`, `webgpu`.
#
# Usable backends count: a backend whose every device is hidden or known not to work is not usable, and any other
# implies webgpu. `doctor --require`, `preflight` and `gpu-preflight` print the results.

GPU_WORD = "gpu"
"""Any backend that trainings can use."""
WORDS = (GPU_WORD, *map(str, Backend))
"""All names that can be required."""
FAKED = f"faked by {FAKE_VARIABLE}"
"""Label of fake devices."""


@frozen
class MissingRequirement:
    """A requirement that is not met."""

    word: str
    message: str
    hint: str


def read_words(text: str) -> tuple[str, ...]:
    """Read a comma list of names. Raises `ValueError` that names the wrong ones, with suggestions."""
    words = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    wrong = [word for word in words if word not in WORDS]
    if wrong or not words:
        hints = " ".join(filter(None, (did_you_mean(word, WORDS) for word in wrong)))
        given = " and ".join(map(repr, wrong)) or "an empty text"
        message = f"{given} can't be required, only {', '.join(WORDS)}{f'; {hints}' if hints else ''}"
        raise ValueError(message)
    return words


def has(capability: Capability, word: str) -> bool:
    """Return True if the requirement with this name is met here."""
    words = COMPUTE_BACKENDS if word == GPU_WORD else (Backend(word),)
    return any(backend in capability.backends for backend in words)


def missing(capability: Capability, words: tuple[str, ...]) -> tuple[MissingRequirement, ...]:
    """Return the requirements that are not met, each with what there is instead and what to do."""
    return tuple(_missing(capability, word) for word in words if not has(capability, word))


def preflight_fields(capability: Capability) -> dict[str, Any]:
    """Return the JSON of `gpu-preflight`: any backend will do. `is_fake` only if devices are fake."""
    fields: dict[str, Any] = {
        "cuda": has(capability, Backend.CUDA),
        "cuda_version": _version(capability, Backend.CUDA),
        "metal": has(capability, Backend.METAL),
        "rocm": has(capability, Backend.ROCM),
        "rocm_version": _version(capability, Backend.ROCM),
        "wgpu": has(capability, Backend.WEBGPU),
    }
    fields["any_available"] = bool(capability.backends)
    if capability.is_fake:
        fields["is_fake"] = True
    return fields


def faked_by(capability: Capability) -> str:
    """Return the label of fake devices; empty if they are real."""
    return FAKED if capability.is_fake else ""


def _version(capability: Capability, backend: Backend) -> str | None:
    return capability.backends.get(backend) or None if has(capability, backend) else None


def _of(capability: Capability, word: str) -> list[Device]:
    return [one for one in capability.devices if word in (GPU_WORD, one.backend)]


def _missing(capability: Capability, word: str) -> MissingRequirement:
    there = _of(capability, word)
    if not there:
        others = ", ".join(one.name for one in capability.usable_devices)
        instead = f": there is {others}" if others else ""
        hint = "no sign of one here: install the card's driver, or use another machine"
        if capability.is_fake:
            hint = f"the devices here are {FAKED}; unset it to see the real devices"
        elif capability.findings:
            hint = capability.findings[0].hint or capability.findings[0].message
        return MissingRequirement(word=word, message=f"{word} is required, and there is none{instead}", hint=hint)
    first = there[0]
    if first.visible.is_no:
        return MissingRequirement(
            word=word,
            message=f"{word} is required; {first.name} is installed, but not visible: {first.visible.why}",
            hint="a variable or a permission hides it from programs that are started here",
        )
    return MissingRequirement(
        word=word,
        message=f"{word} is required; {first.name} is there, but can't be used: {first.usable.why}",
        hint="repair its driver; stoker doctor --deep checks it again, through torch",
    )


# What the state of devices and of torch means: three answers for each accelerator, and whether torch fits. Pure.


def check_devices(capability: Capability) -> tuple[Check, ...]:
    """Check each accelerator, and report the other findings of probes."""
    devices = [_device(one, capability.backends.get(one.backend, "")) for one in capability.devices]
    if not devices:
        spoken = f"; programs can use {', '.join(capability.backends)}" if capability.backends else ""
        label = f" ({FAKED})" if capability.is_fake else ""
        message = f"none found; jobs run on the CPU{spoken}{label}"
        devices.append(Check("gpu", CheckStatus.OK, message))
    noticed = [Check(one.probe or "probes", CheckStatus.WARN, one.message, one.hint) for one in capability.findings]
    return (*devices, *noticed)


def check_torch(capability: Capability) -> tuple[Check, ...]:
    """Check the torch of each interpreter against the devices."""
    having = [one for one in capability.interpreters if one.torch]
    if having:
        return tuple(_torch(one, capability) for one in having)
    where = ", ".join(one.path for one in capability.interpreters)
    message = f"none in {where}" if where else "no Python found"
    if capability.usable_devices and not capability.is_fake:
        hint = "a training that needs torch can't use the devices: install it there, or name a Python that has it"
        return (Check("torch", CheckStatus.WARN, message, hint),)
    return (Check("torch", CheckStatus.OK, f"{message}; Stoker itself does not need it"),)


def check_required(missing: tuple[MissingRequirement, ...]) -> tuple[Check, ...]:
    """Report the requirements that are not met."""
    return tuple(Check(f"require {one.word}", CheckStatus.BAD, one.message, one.hint) for one in missing)


def _device(device: Device, version: str) -> Check:
    label = device.backend if device.index is None else f"{device.backend} {device.index}"
    facts = [device.name, _memory_text(device)]
    facts += [f"driver {device.driver}"] if device.driver else []
    facts += [f"{VENDORS[device.backend].label} {version}"] if version else []
    facts += [device.uuid]
    answers = ("installed", device.installed), ("visible", device.visible), ("usable", device.usable)
    # The reason of a fake device is shown once only.
    answered = ", ".join(
        f"{name} {answer.verdict if device.is_fake and answer.is_yes else _shown(answer)}" for name, answer in answers
    )
    message = f"{', '.join(facts)}; {answered}{f' ({FAKED})' if device.is_fake else ''}"
    verdict, hint = _verdict(device)
    return Check(label, verdict, message, hint)


def _memory_text(device: Device) -> str:
    if device.total_bytes is None:
        return "memory unknown"
    unified = " of the machine's memory" if device.memory_type == "unified" else ""
    if device.free_bytes is None:
        return f"{format_size(device.total_bytes)}{unified}, free memory unknown"
    return f"{format_size(device.free_bytes)} of {format_size(device.total_bytes)} free{unified}"


def _shown(answer: TriStateAnswer) -> str:
    return f"{answer.verdict} ({answer.why})" if answer.why else str(answer.verdict)


def _verdict(device: Device) -> tuple[CheckStatus, str]:
    if device.installed.is_no or (device.usable.is_no and not device.visible.is_no):
        return CheckStatus.BAD, "repair its driver: no job is placed there until then"
    if device.visible.is_no:
        return CheckStatus.WARN, "programs started from here can't use it; unset the variable if that is not intended"
    if device.usable.is_yes:
        return CheckStatus.OK, ""
    return CheckStatus.WARN, "no program has tried it: run stoker doctor --smoke, with the torch of your Python"


def _torch(python: MachineInterpreter, capability: Capability) -> Check:
    built = f" for {_toolkit(python)} {python.torch_cuda}" if python.torch_cuda else ", for the CPU only"
    message = f"{python.torch}{built}, in {python.path} (Python {python.version or 'unknown'})"
    cuda = [one for one in capability.usable_devices if one.backend is Backend.CUDA and not one.is_fake]
    if cuda and not python.torch_cuda:
        hint = f"it can't use {cuda[0].name}: install a torch that was built for CUDA"
        return Check("torch", CheckStatus.WARN, message, hint)
    spoken = capability.backends.get(Backend.CUDA, "")
    if cuda and _toolkit(python) == "CUDA" and _major(python.torch_cuda) > _major(spoken) > 0:
        hint = f"the driver supports CUDA {spoken}: update it, or install a torch for CUDA {_major(spoken)}"
        return Check("torch", CheckStatus.WARN, message, hint)
    return Check("torch", CheckStatus.OK, message)


def _toolkit(python: MachineInterpreter) -> str:
    return VENDORS[Backend.ROCM if "rocm" in python.torch else Backend.CUDA].label


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() else 0


LEAST_COSINE = 0.99
LIMIT_S = 120.0
"""The first use of a device may compile kernels."""
_SCRIPT = os.path.join(os.path.dirname(__file__), "probes", "smoke_child.py")


@frozen
class SmokeTestResult:
    """Result of one device; without a device, why nothing was tried."""

    device: str = ""
    name: str = ""
    cosine: float | None = None
    """Similarity of its results and the CPU's; `None`: it gave none."""
    why: str = ""

    @property
    def was_tried(self) -> bool:
        return bool(self.device)

    @property
    def is_right(self) -> bool:
        return self.cosine is not None and self.cosine >= LEAST_COSINE

    @property
    def is_wrong(self) -> bool:
        return self.was_tried and not self.is_right

    def to_dict(self) -> dict[str, object]:
        return {"device": self.device, "name": self.name, "cosine": self.cosine, "why": self.why}


def smoke(capability: Capability, ask: CommandRunner, *, limit_s: float = LIMIT_S) -> tuple[SmokeTestResult, ...]:
    """Try every device that is visible to the torch of the first interpreter that has one."""
    if capability.is_fake:
        return (SmokeTestResult(why=f"the devices are {FAKED}"),)
    python = next((one.path for one in capability.interpreters if one.torch), "")
    if not python:
        return (SmokeTestResult(why="no Python here has torch"),)
    return read_smoke(ask.ask([python, _SCRIPT], limit_s=limit_s), python)


def read_smoke(reply: Reply, python: str) -> tuple[SmokeTestResult, ...]:
    """Read the child's output; unreadable output becomes a result with the reason."""
    if isinstance(reply, ProbeFailure):
        return (SmokeTestResult(why=f"{python}: {reply.why}"),)
    try:
        report = marked_objects(reply.out)[-1]
        if error := report.get("error"):
            return (SmokeTestResult(why=f"{python}: {one_line(str(error), 300)}"),)
        tried = tuple(
            SmokeTestResult(
                device=str(row["device"]),
                name=str(row.get("name", "")),
                cosine=_number(row.get("cosine")),
                why=one_line(str(row.get("error", "")), 300),
            )
            for row in report["devices"]
        )
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return (SmokeTestResult(why=f"{python} printed no readable result (exit {reply.exit_code})"),)
    return tried or (SmokeTestResult(why=f"the torch of {python} sees no device"),)


def check_smoke(tried: tuple[SmokeTestResult, ...]) -> tuple[Check, ...]:
    """Check each device."""
    return tuple(map(_check, tried))


def _check(one: SmokeTestResult) -> Check:
    if not one.was_tried:
        return Check("smoke", CheckStatus.WARN, f"skipped: {one.why}")
    name = f"smoke {one.device}"
    if one.is_right:
        return Check(name, CheckStatus.OK, f"{one.name} computes what the CPU does (cosine {one.cosine:.6f})")
    if one.cosine is not None:
        message = f"{one.name} computes something else than the CPU (cosine {one.cosine:.3f}, below {LEAST_COSINE})"
        return Check(name, CheckStatus.BAD, message, "do not train on it: driver, cooling or memory")
    return Check(name, CheckStatus.BAD, f"{one.name}: {one.why}", "repair its driver, or torch")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
