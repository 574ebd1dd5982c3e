"""Every accelerator of this machine, by all probes, combined; or fake devices for tests.

First the kernel's own files are read, which is cheap. Only if they, or an installed tool, indicate an accelerator are
programs started: in parallel, each in a child and with a timeout. Torch runs after the others: it takes memory of the
devices that it touches, and free memory has been measured by then. A machine without any evidence starts no child at
all. Failing probes never raise; only a bad or forbidden `STOKER_GPU_FAKE` does.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from stoker.core.capability import ProbeFinding
from stoker.core.device import COMPUTE_BACKENDS, GIB, Backend, Device, MemoryType, TriState, TriStateAnswer
from stoker.core.errors import Diagnostic, FakeForbidden, InvalidConfig
from stoker.core.frozen import changed, frozen
from stoker.core.text import did_you_mean, parse_size
from stoker.devices.probes import amd, nvidia, others
from stoker.devices.probes.observations import (
    TORCH,
    DetectedDevices,
    DeviceGroup,
    ProbeResult,
    backend_of,
    compare,
    first_of,
    group,
    is_unified,
    pair,
    unmatched,
    usable_backends,
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

_TAG_DIGITS = 8


@frozen
class _Tool:
    """A vendor's program that lists devices. It runs if there is evidence of devices of its backend."""

    backend: Backend
    probe: str
    """The program's name, too."""
    command: Callable[[str], list[str]]
    """Return its command line for its path."""
    read: Callable[[Reply], ProbeResult]


_TOOLS = (
    _Tool(
        backend=Backend.CUDA, probe=nvidia.NVIDIA_SMI, command=nvidia.nvidia_smi_command, read=nvidia.read_nvidia_smi
    ),
    _Tool(backend=Backend.ROCM, probe=amd.AMD_SMI, command=amd.amd_smi_command, read=amd.read_amd),
    _Tool(backend=Backend.ROCM, probe=amd.ROCM_SMI, command=amd.rocm_smi_command, read=amd.read_rocm),
    _Tool(
        backend=Backend.METAL,
        probe=others.SYSTEM_PROFILER,
        command=others.system_profiler_command,
        read=others.read_system_profiler,
    ),
)
TOOLS = (*(one.probe for one in _TOOLS), *(one.argv[0] for one in others.BACKEND_PROBES))
"""The programs that are run, if they are installed."""
QUICK_PROBES = frozenset({nvidia.NVML, *(one.probe for one in _TOOLS)}) - {nvidia.NVIDIA_SMI}
"""Programs that name devices, without torch, and without the slower one of NVIDIA's two."""


@frozen
class _ProbeCommand:
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
    names in `DetectedDevices.sources`; `None` means all. `limit_s` is the timeout of each program, `torch_limit_s` that
    of torch. Raises what `faked` raises.
    """
    kernels = KernelFiles(files)
    tag = kernels.text("/etc/machine-id") or os.uname().nodename
    invented = faked(environment, host_tag=hashlib.sha256(tag.encode()).hexdigest()[:_TAG_DIGITS])
    if invented is not None:
        return invented
    read = [nvidia.read_driver(kernels), amd.read_kfd(kernels), nvidia.read_jetson(kernels), others.read_bus(kernels)]
    evidence = look(kernels, environment, _listed(read))
    commands = [one for one in _commands(evidence, environment) if _may(one.probe, probes)]
    replies = ask.ask_all([one.argv for one in commands], limit_s=limit_s) if commands else ()
    results = [_follow_up(one, reply, ask, limit_s) for one, reply in zip(commands, replies, strict=True)]
    if (
        Backend.CUDA in evidence.devices
        and not any(one.probe == nvidia.NVML for one in commands)
        and _may(nvidia.NVML, probes)
    ):
        results.insert(0, nvidia.missing())
    if python and (wants_torch or evidence.is_of_devices) and _may(others.TORCH, probes):
        results.append(others.read_torch(ask.ask(others.torch_command(python), limit_s=torch_limit_s)))
    return merge([*results, *(one for one in read if one.is_readable)], environment, _facts(kernels, tag))


def _listed(results: list[ProbeResult]) -> dict[Backend, str]:
    """Return the backends of devices that the kernel lists with a driver."""
    return {
        report.backend: f"{one.probe} lists {report.name or report.pci}"
        for one in results
        for report in one.reports
        if report.works is None
    }


def _commands(evidence: Evidence, environment: Mapping[str, str]) -> list[_ProbeCommand]:
    found: list[_ProbeCommand] = []
    if Backend.CUDA in evidence.devices and (folder := nvidia.library_folder()):
        argv = nvidia.child_command(folder, "snapshot")
        found.append(_ProbeCommand(probe=nvidia.NVML, argv=argv, read=nvidia.read_nvml))
    found += [
        _ProbeCommand(probe=tool.probe, argv=tool.command(program), read=tool.read)
        for tool in _TOOLS
        if tool.backend in evidence.devices and (program := program_on_path(tool.probe, environment))
    ]
    if evidence.is_there:
        found.extend(_backend_commands(environment))
    return found


def _backend_commands(environment: Mapping[str, str]) -> list[_ProbeCommand]:
    return [
        _ProbeCommand(
            probe=one.probe,
            argv=[program, *one.argv[1:]],
            read=partial(others.read, one),
        )
        for one in others.BACKEND_PROBES
        if (not one.needs or any(environment.get(name) for name in one.needs))
        and (program := program_on_path(one.argv[0], environment))
    ]


def _follow_up(command: _ProbeCommand, reply: Reply, ask: CommandRunner, limit_s: float) -> ProbeResult:
    """Read an output, and run nvidia-smi again if its first output requires other arguments."""
    if command.probe != nvidia.NVIDIA_SMI:
        return command.read(reply)
    program = command.argv[0]
    if nvidia.needs_old_columns(reply):
        reply = ask.ask(nvidia.nvidia_smi_command(program, is_old=True), limit_s=limit_s)
    result = command.read(reply)
    if any(one.is_split for one in result.reports):
        result = nvidia.read_parts(result, ask.ask(nvidia.parts_command(program), limit_s=limit_s))
    return result


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


# All probe results combined. Pure: `observations` decides which probe is believed, and which differences matter.

_FIELDS = ("name", "index", "memory_type", "total_bytes", "free_bytes", "driver", "capability", "pci")
_FROM_MEMORY = "meminfo"
_MADE_UP = "made up"


def merge(
    results: Sequence[ProbeResult], environment: Mapping[str, str], facts: DetectedMachineFacts
) -> DetectedDevices:
    """Return the devices of all results, with the source of each value, and all differences."""
    by_probe = {one.probe: one for one in results}
    groups = group(results)
    uuids, findings = _identities(groups, facts.tag)
    by_variables = visible_answers(
        [
            VisibilityDevice(uuid=uuid, backend=backend_of(one), name=_text(one, "name"), parent=_text(one, "parent"))
            for one, uuid in zip(groups, uuids, strict=True)
        ],
        environment,
    )
    if TORCH in by_probe:
        seen = [one for one, answer in zip(groups, by_variables, strict=True) if not answer.is_no]
        findings += unmatched(pair(seen, by_probe[TORCH]))
    devices = tuple(
        _merged_device(one, uuid, answer, by_probe, facts)
        for one, uuid, answer in zip(groups, uuids, by_variables, strict=True)
    )
    reported = [finding for one in results for finding in one.findings]
    noticed = [*reported, *findings, *compare(groups, devices, by_probe, facts.device_files)]
    backends, sources = _backends(results)
    return DetectedDevices(
        devices=devices,
        backends=usable_backends(backends, devices),
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


def _identities(groups: Sequence[DeviceGroup], tag: str) -> tuple[list[str], list[ProbeFinding]]:
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


def _merged_device(
    of: DeviceGroup,
    uuid: str,
    by_variables: TriStateAnswer,
    by_probe: Mapping[str, ProbeResult],
    facts: DetectedMachineFacts,
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
    seen = visible(of, by_variables, by_probe, facts)
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
        usable=usable(of, seen, by_probe),
        sources=sources,
    )


def _backends(results: Sequence[ProbeResult]) -> tuple[dict[Backend, str], dict[str, str]]:
    backends: dict[Backend, str] = {}
    sources: dict[str, str] = {}
    for one in results:
        for backend, version in one.backends.items():
            if not backends.get(backend):
                backends[backend] = version
                sources[str(backend)] = one.probe
    return backends, sources


def _text(of: DeviceGroup, field: str) -> str:
    return cast("str", first_of(of, field)[0] or "")


# Fake hardware by `STOKER_GPU_FAKE`, for tests and demonstrations.
#
# The variable is a comma list of words, each with its memory if it has devices: `cuda`, `rocm,metal`, `cuda:2x24GiB`,
# `cuda:24GiB,cuda:8GiB`. Empty and `none` mean a machine without accelerators. All results are labelled as fake.
# `STOKER_STRICT=1` forbids it. All errors in the variable are reported at once.


STRICT_VARIABLE = "STOKER_STRICT"
SOURCE = "fake"

_NONE = "none"
_DEFAULT_BYTES = 24 * GIB
_MOST_DEVICES = 256
_MOST_BYTES = 1 << 50
_COUNT = re.compile(r"(\d+)\s*x\s*(.*)", re.ASCII)
_OFF = frozenset({"", "0", "false", "no", "off"})
_WHY = f"invented by {FAKE_VARIABLE}"


@frozen
class _FakeWord:
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
    words = _parse(text)
    devices = _hide(_devices(words, host_tag), environment)
    return DetectedDevices(
        devices=devices,
        backends=usable_backends(dict.fromkeys((one.backend for one in words), ""), devices),
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


def _parse(text: str) -> list[_FakeWord]:
    texts = [word.strip().lower() for word in text.split(",")]
    if texts in ([""], [_NONE]):
        return []
    words: list[_FakeWord] = []
    faults: list[Diagnostic] = []
    for word in texts:
        try:
            words.append(_one(word))
        except ValueError as error:
            faults.append(Diagnostic(FAKE_VARIABLE, str(error), _hint(word)))
    if sum(one.count for one in words) > _MOST_DEVICES:
        faults.append(Diagnostic(FAKE_VARIABLE, f"more than {_MOST_DEVICES} devices"))
    if faults:
        message = f"{FAKE_VARIABLE}={text!r} can't be read" if len(faults) > 1 else str(faults[0])
        raise InvalidConfig(message, faults=tuple(faults), value=text)
    return words


def _one(word: str) -> _FakeWord:
    name, colon, size = (part.strip() for part in word.partition(":"))
    if not name:
        raise ValueError("an empty word between commas" if not colon else f"{word!r} names no backend")
    if name == _NONE:
        raise ValueError(f"{_NONE!r} stands alone or not at all")
    if name not in tuple(Backend):
        raise ValueError(f"{name!r} is not a backend")
    backend = Backend(name)
    if backend not in COMPUTE_BACKENDS:
        if colon:
            raise ValueError(f"{name!r} uses the devices of other backends: it has no memory of its own")
        return _FakeWord(backend=backend, count=0, total_bytes=0)
    count, total_bytes = _amount(size) if colon else (1, _DEFAULT_BYTES)
    return _FakeWord(backend=backend, count=count, total_bytes=total_bytes)


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


def _devices(words: list[_FakeWord], host_tag: str) -> tuple[Device, ...]:
    made: list[Device] = []
    for backend in COMPUTE_BACKENDS:
        sizes = [one.total_bytes for one in words if one.backend is backend for _ in range(one.count)]
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
