"""Fake hardware by `STOKER_GPU_FAKE`, for tests and demonstrations; and all probes of a machine combined.

The variable is a comma list of words, each with its memory if it has devices: `cuda`, `rocm,metal`, `cuda:2x24GiB`,
`cuda:24GiB,cuda:8GiB`. Empty and `none` mean a machine without accelerators. All results are labelled as fake.
`STOKER_STRICT=1` forbids it. All errors in the variable are reported at once.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from stoker.core.capability import ProbeFinding
from stoker.core.device import GIB, Backend, Device, MemoryType, TriState, TriStateAnswer
from stoker.core.errors import Diagnostic, FakeForbidden, InvalidConfig
from stoker.core.frozen import changed, frozen
from stoker.core.text import did_you_mean, parse_size
from stoker.devices.probes import amd, nvidia, others
from stoker.devices.probes.observations import (
    TORCH,
    DetectedDevices,
    Group,
    ProbeResult,
    backend_of,
    compare,
    first_of,
    group,
    is_unified,
    pair,
    spoken,
    unmatched,
)
from stoker.devices.probes.readers import FAKE_VARIABLE, Evidence, KernelFiles, look, program_on_path
from stoker.devices.probes.visibility import (
    DetectedMachineFacts,
    VisibilityDevice,
    installed,
    usable,
    visible,
    visible_answers,
)
from stoker.host.command_runner import LIMIT_S, CommandRunner, Reply
from stoker.host.resources import memory_available_bytes, memory_total_bytes

STRICT_VARIABLE = "STOKER_STRICT"
SOURCE = "fake"

_NONE = "none"
_DEFAULT_BYTES = 24 * GIB
_MOST_DEVICES = 256
_MOST_BYTES = 1 << 50
_WITH_DEVICES = (Backend.CUDA, Backend.ROCM, Backend.METAL, Backend.ONEAPI)
_COUNT = re.compile(r"(\d+)\s*x\s*(.*)", re.ASCII)
_OFF = frozenset({"", "0", "false", "no", "off"})
_WHY = f"invented by {FAKE_VARIABLE}"


@frozen
class _Wanted:
    backend: Backend
    count: int
    total_bytes: int


def faked(environment: Mapping[str, str], *, host_tag: str = "") -> DetectedDevices | None:
    """Return the fake hardware of the environment; `None` if there is none, and probes are used.

    Variables hide fake devices as they do real ones. `host_tag` makes their UUIDs this host's. Raises `FakeForbidden`
    in strict mode, `InvalidConfig` for an invalid value.
    """
    text = environment.get(FAKE_VARIABLE)
    if text is None:
        return None
    if environment.get(STRICT_VARIABLE, "").strip().lower() not in _OFF:
        raise FakeForbidden(
            f"{FAKE_VARIABLE}={text!r} requests fake hardware, and {STRICT_VARIABLE} forbids it",
            hint=f"unset one of the two; unset {FAKE_VARIABLE} to see the real devices",
            value=text,
        )
    wanted = _parse(text)
    devices = _hide(_devices(wanted, host_tag), environment)
    return DetectedDevices(
        devices=devices,
        backends=spoken(dict.fromkeys((one.backend for one in wanted), ""), devices),
        findings=(
            ProbeFinding(
                code="faked",
                message=f"the accelerators of this machine are {_WHY}={text!r}: nothing was probed",
                probe=SOURCE,
                hint=f"unset {FAKE_VARIABLE} to see the real devices",
            ),
        ),
        sources={"devices": SOURCE, "backends": SOURCE},
        is_fake=True,
    )


def _parse(text: str) -> list[_Wanted]:
    words = [word.strip().lower() for word in text.split(",")]
    if words in ([""], [_NONE]):
        return []
    wanted: list[_Wanted] = []
    faults: list[Diagnostic] = []
    for word in words:
        try:
            wanted.append(_one(word))
        except ValueError as error:
            faults.append(Diagnostic(FAKE_VARIABLE, str(error), _hint(word)))
    if sum(one.count for one in wanted) > _MOST_DEVICES:
        faults.append(Diagnostic(FAKE_VARIABLE, f"more than {_MOST_DEVICES} devices"))
    if faults:
        message = f"{FAKE_VARIABLE}={text!r} can't be read" if len(faults) > 1 else str(faults[0])
        raise InvalidConfig(message, faults=tuple(faults), value=text)
    return wanted


def _one(word: str) -> _Wanted:
    name, colon, size = (part.strip() for part in word.partition(":"))
    if not name:
        raise ValueError("an empty word between commas" if not colon else f"{word!r} names no backend")
    if name == _NONE:
        raise ValueError(f"{_NONE!r} stands alone or not at all")
    if name not in tuple(Backend):
        raise ValueError(f"{name!r} is not a backend")
    backend = Backend(name)
    if backend not in _WITH_DEVICES:
        if colon:
            raise ValueError(f"{name!r} is spoken to other backends' devices: it has no memory of its own")
        return _Wanted(backend=backend, count=0, total_bytes=0)
    count, total_bytes = _amount(size) if colon else (1, _DEFAULT_BYTES)
    return _Wanted(backend=backend, count=count, total_bytes=total_bytes)


def _amount(size: str) -> tuple[int, int]:
    counted = _COUNT.fullmatch(size)
    count, each = (int(counted[1]), counted[2]) if counted else (1, size)
    if each.isdecimal():
        raise ValueError(f"{size!r} has no unit")
    total_bytes = parse_size(each)
    if not 0 < count <= _MOST_DEVICES:
        raise ValueError(f"{count} devices: allowed are 1 to {_MOST_DEVICES}")
    if not 0 < total_bytes <= _MOST_BYTES:
        raise ValueError(f"{each!r} is not a size of device memory")
    return count, total_bytes


def _hint(word: str) -> str:
    name = word.partition(":")[0].strip()
    if name and name not in (*Backend, _NONE):
        return did_you_mean(name, map(str, Backend)) or f"one of {', '.join(Backend)}, or {_NONE}"
    return "for example cuda, cuda:2x24GiB or none"


def _devices(wanted: list[_Wanted], host_tag: str) -> tuple[Device, ...]:
    made: list[Device] = []
    for backend in _WITH_DEVICES:
        sizes = [one.total_bytes for one in wanted if one.backend is backend for _ in range(one.count)]
        made.extend(_device(backend, index, total_bytes, host_tag) for index, total_bytes in enumerate(sizes))
    return tuple(made)


def _hide(devices: tuple[Device, ...], environment: Mapping[str, str]) -> tuple[Device, ...]:
    candidates = [VisibilityDevice(uuid=one.uuid, backend=one.backend, name=one.name) for one in devices]
    return tuple(
        one if answer.is_yes else changed(one, visible=answer)
        for one, answer in zip(devices, visible_answers(candidates, environment), strict=True)
    )


def _device(backend: Backend, index: int, total_bytes: int, host_tag: str) -> Device:
    yes = TriStateAnswer(verdict=TriState.YES, why=_WHY)
    return Device(
        uuid=f"FAKE-{backend}-{index}{'-' * bool(host_tag)}{host_tag}",
        backend=backend,
        name=f"Fake {backend} device",
        index=index,
        memory_type=MemoryType.UNIFIED if backend is Backend.METAL else MemoryType.DISCRETE,
        total_bytes=total_bytes,
        free_bytes=total_bytes,
        installed=yes,
        visible=yes,
        usable=yes,
        is_fake=True,
        sources=dict.fromkeys(("uuid", "name", "total_bytes", "free_bytes"), SOURCE),
    )


# All probe results combined. Pure: `observations` decides which probe is believed, and which differences matter.

_FIELDS = ("name", "index", "memory_type", "total_bytes", "free_bytes", "driver", "capability", "pci")
_FROM_MEMORY = "meminfo"
_MADE_UP = "made up"


def merge(
    statements: Sequence[ProbeResult], environment: Mapping[str, str], facts: DetectedMachineFacts
) -> DetectedDevices:
    """Return the devices of all results, with the source of each value, and all differences."""
    heard = {one.probe: one for one in statements}
    groups = group(statements)
    uuids, findings = _identities(groups, facts.tag)
    by_variables = visible_answers(
        [
            VisibilityDevice(uuid=uuid, backend=backend_of(one), name=_text(one, "name"), parent=_text(one, "parent"))
            for one, uuid in zip(groups, uuids, strict=True)
        ],
        environment,
    )
    if TORCH in heard:
        seen = [one for one, answer in zip(groups, by_variables, strict=True) if not answer.is_no]
        findings += unmatched(pair(seen, heard[TORCH]))
    devices = tuple(
        _device_merging(one, uuid, answer, heard, facts)
        for one, uuid, answer in zip(groups, uuids, by_variables, strict=True)
    )
    reported = [finding for one in statements for finding in one.findings]
    noticed = [*reported, *findings, *compare(groups, devices, heard, facts.device_files)]
    backends, sources = _backends(statements)
    return DetectedDevices(
        devices=devices,
        backends=spoken(backends, devices),
        findings=tuple(dict.fromkeys(noticed)),
        sources={
            **({"devices": ", ".join(dict.fromkeys(w for one in groups for w in one))} if groups else {}),
            **sources,
        },
    )


def made_up_uuid(tag: str, backend: Backend, key: str) -> str:
    """Return the identity of a device whose vendor gives it none: constant, and of this machine only."""
    digits = hashlib.sha256(f"{tag}\n{backend}\n{key}".encode()).hexdigest()
    return f"LOCAL-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def _identities(groups: Sequence[Group], tag: str) -> tuple[list[str], list[ProbeFinding]]:
    uuids: list[str] = []
    taken: set[str] = set()
    findings: list[ProbeFinding] = []
    for number, one in enumerate(groups):
        uuid, pci = _text(one, "uuid"), _text(one, "pci")
        if uuid.lower() in taken:
            findings.append(
                ProbeFinding(
                    code="duplicate_uuid",
                    message=f"two devices report the UUID {uuid}; the one at {pci or number} got another name here",
                    hint="a virtual machine was copied together with the identity of its device",
                )
            )
            uuid = ""
        key = pci or _text(one, "name")
        while not uuid or uuid.lower() in taken:
            uuid = made_up_uuid(tag, backend_of(one), key)
            key += "+"
        taken.add(uuid.lower())
        uuids.append(uuid)
    return uuids, findings


def _device_merging(
    of: Group, uuid: str, by_variables: TriStateAnswer, heard: Mapping[str, ProbeResult], facts: DetectedMachineFacts
) -> Device:
    values: dict[str, object] = {}
    sources = {"uuid": first_of(of, "uuid")[1] if _text(of, "uuid") == uuid else _MADE_UP}
    for field in _FIELDS:
        value, probe = first_of(of, field)
        values[field] = value
        if probe:
            sources[field] = probe
    if values["memory_type"] is None and is_unified(of):
        values["memory_type"] = MemoryType.UNIFIED
        sources["memory_type"] = sources["name"]
    if values["memory_type"] is MemoryType.UNIFIED:
        for field, known in (("total_bytes", facts.ram_total_bytes), ("free_bytes", facts.ram_available_bytes)):
            if values[field] is None and known is not None:
                values[field], sources[field] = known, _FROM_MEMORY
    seen = visible(of, by_variables, heard, facts)
    return Device(
        uuid=uuid,
        backend=backend_of(of),
        name=_text(of, "name") or f"{backend_of(of)} device",
        index=cast("int | None", values["index"]),
        memory_type=cast("MemoryType | None", values["memory_type"]) or MemoryType.DISCRETE,
        total_bytes=cast("int | None", values["total_bytes"]),
        free_bytes=cast("int | None", values["free_bytes"]),
        driver=_text(of, "driver"),
        capability=_text(of, "capability"),
        pci=_text(of, "pci"),
        installed=installed(of),
        visible=seen,
        usable=usable(of, seen, heard),
        sources=sources,
    )


def _backends(statements: Sequence[ProbeResult]) -> tuple[dict[Backend, str], dict[str, str]]:
    backends: dict[Backend, str] = {}
    sources: dict[str, str] = {}
    for one in statements:
        for backend, version in one.backends.items():
            if not backends.get(backend):
                backends[backend] = version
                sources[str(backend)] = one.probe
    return backends, sources


def _text(of: Group, field: str) -> str:
    return cast("str", first_of(of, field)[0] or "")


# Every accelerator of this machine, by all probes, combined.
#
# First the kernel's own files are read, which is cheap. Only if they, or an installed tool, indicate an accelerator are
# programs started: in parallel, each in a child and with a timeout. Torch runs after the others: it takes memory of the
# devices that it touches, and free memory has been measured by then. A machine without any evidence starts no child at
# all. Failing probes never raise; only a bad or forbidden `STOKER_GPU_FAKE` does.

TOOLS = (
    nvidia.NVIDIA_SMI,
    amd.AMD_SMI,
    amd.ROCM_SMI,
    others.SYSTEM_PROFILER,
    *(one.argv[0] for one in others.SPEAKERS),
)
"""The programs that are run, if they are installed."""

_TAG_DIGITS = 8


@frozen
class _Question:
    """A program to run, and the reader of its output."""

    probe: str
    argv: list[str]
    read: Callable[[Reply], ProbeResult]


def find_devices(  # noqa: PLR0913 - what is handed in, one by one
    environment: Mapping[str, str],
    *,
    ask: CommandRunner,
    files: str = "/",
    python: str = "",
    wants_torch: bool = False,
    probes: frozenset[str] | None = None,
    limit_s: float = LIMIT_S,
    torch_limit_s: float = LIMIT_S,
) -> DetectedDevices:
    """Return the devices of this machine, the usable backends, and all findings.

    `files` is the root of /proc, /sys and /dev. `python` is the interpreter whose torch is one of the probes; empty
    means none. It runs if there is evidence of a device, or if `wants_torch`. `probes` are the allowed probes, by the
    names in `Found.sources`; `None` means all. `limit_s` is the timeout of each program, `torch_limit_s` that of torch.
    Raises what `faked` raises.
    """
    kernels = KernelFiles(files)
    tag = kernels.text("/etc/machine-id") or os.uname().nodename
    invented = faked(environment, host_tag=hashlib.sha256(tag.encode()).hexdigest()[:_TAG_DIGITS])
    if invented is not None:
        return invented
    read = [nvidia.read_driver(kernels), amd.read_kfd(kernels), nvidia.read_jetson(kernels), nvidia.read_bus(kernels)]
    evidence = look(kernels, environment, _seen(read))
    questions = [one for one in _questions(evidence, environment) if _may(one.probe, probes)]
    replies = ask.ask_all([one.argv for one in questions], limit_s=limit_s) if questions else ()
    results = [_follow_up(one, reply, ask, limit_s) for one, reply in zip(questions, replies, strict=True)]
    if evidence.nvidia and not any(one.probe == nvidia.NVML for one in questions) and _may(nvidia.NVML, probes):
        results.insert(0, nvidia.missing())
    if python and (wants_torch or evidence.is_of_devices) and _may(others.TORCH, probes):
        results.append(others.read_torch(ask.ask(others.torch_question(python), limit_s=torch_limit_s)))
    return merge([*results, *(one for one in read if one.was_heard)], environment, _facts(kernels, tag))


def _seen(read: list[ProbeResult]) -> dict[str, str]:
    """Return the vendors of devices that the kernel lists with a driver."""
    vendors = {Backend.CUDA: "nvidia", Backend.ROCM: "amd"}
    return {
        vendors[report.backend]: f"{one.probe} lists {report.name or report.pci}"
        for one in read
        for report in one.reports
        if report.works is None
    }


def _questions(evidence: Evidence, environment: Mapping[str, str]) -> list[_Question]:
    found: list[_Question] = []
    if evidence.nvidia:
        if folder := nvidia.library_folder():
            found.append(
                _Question(probe=nvidia.NVML, argv=nvidia.child_command(folder, "snapshot"), read=nvidia.read_nvml)
            )
        if program := program_on_path(nvidia.NVIDIA_SMI, environment):
            argv = nvidia.question(program)
            found.append(_Question(probe=nvidia.NVIDIA_SMI, argv=argv, read=nvidia.read_nvidia_smi))
    if evidence.amd:
        if program := program_on_path(amd.AMD_SMI, environment):
            argv = amd.amd_question(program)
            found.append(_Question(probe=amd.AMD_SMI, argv=argv, read=amd.read_amd))
        if program := program_on_path(amd.ROCM_SMI, environment):
            argv = amd.rocm_question(program)
            found.append(_Question(probe=amd.ROCM_SMI, argv=argv, read=amd.read_rocm))
    if evidence.apple and (program := program_on_path(others.SYSTEM_PROFILER, environment)):
        found.append(
            _Question(probe=others.SYSTEM_PROFILER, argv=others.question(program), read=others.read_system_profiler)
        )
    if evidence.is_there:
        found.extend(_speakers(environment))
    return found


def _speakers(environment: Mapping[str, str]) -> list[_Question]:
    return [
        _Question(
            probe=one.probe,
            argv=[program, *one.argv[1:]],
            read=partial(others.read, one),
        )
        for one in others.SPEAKERS
        if (not one.needs or any(environment.get(name) for name in one.needs))
        and (program := program_on_path(one.argv[0], environment))
    ]


def _follow_up(question: _Question, reply: Reply, ask: CommandRunner, limit_s: float) -> ProbeResult:
    """Read an output, and run nvidia-smi again if its first output requires other arguments."""
    if question.probe != nvidia.NVIDIA_SMI:
        return question.read(reply)
    program = question.argv[0]
    if nvidia.wants_old_question(reply):
        reply = ask.ask(nvidia.question(program, is_old=True), limit_s=limit_s)
    statement = question.read(reply)
    if any(one.is_split for one in statement.reports):
        statement = nvidia.read_parts(statement, ask.ask(nvidia.parts_question(program), limit_s=limit_s))
    return statement


def _may(probe: str, probes: frozenset[str] | None) -> bool:
    return probes is None or probe in probes


def _facts(files: KernelFiles, tag: str) -> DetectedMachineFacts:
    proc = files.place("/proc")
    return DetectedMachineFacts(
        tag=tag,
        ram_total_bytes=memory_total_bytes(proc),
        ram_available_bytes=memory_available_bytes(proc),
        device_files=nvidia.device_files(files),
        has_device_files=not files.has("/dev/dxg"),
        may_use_kfd=files.may_use(amd.DEVICE_FILE) if files.has(amd.DEVICE_FILE) else None,
    )
