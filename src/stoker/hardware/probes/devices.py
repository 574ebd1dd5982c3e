"""Every accelerator of this machine, by all witnesses that can be heard, merged into one answer.

First the kernel's own files are read, which costs nothing. Only where they, or an installed tool, speak for an
accelerator are programs started: all at once, each in a throwaway child and with its limit. Torch is asked when the
others have answered: it takes memory of the devices that it touches, and what is free has been measured by then. A
machine without any evidence pays for no child at all. Whatever witnesses say or fail to say, this never raises; only a
bad or forbidden `STOKER_GPU_FAKE` does.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial

from stoker.hardware.probes.asking import LIMIT_S, Asker, Reply
from stoker.hardware.probes.evidence import Evidence, look, program_on_path
from stoker.hardware.probes.faking import faked
from stoker.hardware.probes.found import Found
from stoker.hardware.probes.kernel_files import KernelFiles
from stoker.hardware.probes.merging import merge
from stoker.hardware.probes.sighting import Statement
from stoker.hardware.probes.three_answers import MachineFacts
from stoker.hardware.probes.witnesses import amd, jetson, kernel, kfd, metal, nvidia_smi, nvml, speaking, torch_witness
from stoker.host.disk import memory_available_bytes, memory_total_bytes
from stoker.model.devices import Backend
from stoker.model.frozen import frozen

TOOLS = (
    nvidia_smi.WITNESS,
    amd.AMD_SMI,
    amd.ROCM_SMI,
    metal.WITNESS,
    *(one.argv[0] for one in speaking.SPEAKERS),
)
"""The programs that are asked, where they are installed."""

_TAG_DIGITS = 8


@frozen
class _Question:
    """A program to ask, and who reads its answer."""

    witness: str
    argv: list[str]
    read: Callable[[Reply], Statement]


def find_devices(  # noqa: PLR0913 - what is handed in, one by one
    environment: Mapping[str, str],
    *,
    ask: Asker,
    files: str = "/",
    python: str = "",
    wants_torch: bool = False,
    witnesses: frozenset[str] | None = None,
    limit_s: float = LIMIT_S,
    torch_limit_s: float = LIMIT_S,
) -> Found:
    """Give the devices of this machine, what can be spoken here, and everything odd that was noticed.

    `files` is the root below which /proc, /sys and /dev are looked up. `python` is the interpreter whose torch is one
    of the witnesses; empty means that torch is not heard. It is asked where there is evidence of a device, or if
    `wants_torch`. `witnesses` are those whose programs may be asked, by the names in `Found.sources`; `None` means all.
    Each program may take `limit_s`, torch `torch_limit_s`. Raises what `faked` raises.
    """
    kernels = KernelFiles(files)
    tag = kernels.text("/etc/machine-id") or os.uname().nodename
    invented = faked(environment, host_tag=hashlib.sha256(tag.encode()).hexdigest()[:_TAG_DIGITS])
    if invented is not None:
        return invented
    read = [kernel.read_driver(kernels), kfd.read(kernels), jetson.read(kernels), kernel.read_bus(kernels)]
    evidence = look(kernels, environment, _seen(read))
    questions = [one for one in _questions(evidence, environment) if _may(one.witness, witnesses)]
    replies = ask.ask_all([one.argv for one in questions], limit_s=limit_s) if questions else ()
    said = [_follow_up(one, reply, ask, limit_s) for one, reply in zip(questions, replies, strict=True)]
    if evidence.nvidia and not any(one.witness == nvml.WITNESS for one in questions) and _may(nvml.WITNESS, witnesses):
        said.insert(0, nvml.missing())
    if python and (wants_torch or evidence.is_of_devices) and _may(torch_witness.WITNESS, witnesses):
        said.append(torch_witness.read(ask.ask(torch_witness.question(python), limit_s=torch_limit_s)))
    return merge([*said, *(one for one in read if one.was_heard)], environment, _facts(kernels, tag))


def _seen(read: list[Statement]) -> dict[str, str]:
    """Give the vendors of whom the kernel names devices that a driver has."""
    vendors = {Backend.CUDA: "nvidia", Backend.ROCM: "amd"}
    return {
        vendors[sighting.backend]: f"{one.witness} lists {sighting.name or sighting.pci}"
        for one in read
        for sighting in one.sightings
        if sighting.works is None
    }


def _questions(evidence: Evidence, environment: Mapping[str, str]) -> list[_Question]:
    found: list[_Question] = []
    if evidence.nvidia:
        if folder := nvml.library_folder():
            found.append(_Question(witness=nvml.WITNESS, argv=nvml.child_command(folder, "snapshot"), read=nvml.read))
        if program := program_on_path(nvidia_smi.WITNESS, environment):
            argv = nvidia_smi.question(program)
            found.append(_Question(witness=nvidia_smi.WITNESS, argv=argv, read=nvidia_smi.read))
    if evidence.amd:
        if program := program_on_path(amd.AMD_SMI, environment):
            argv = amd.amd_question(program)
            found.append(_Question(witness=amd.AMD_SMI, argv=argv, read=amd.read_amd))
        if program := program_on_path(amd.ROCM_SMI, environment):
            argv = amd.rocm_question(program)
            found.append(_Question(witness=amd.ROCM_SMI, argv=argv, read=amd.read_rocm))
    if evidence.apple and (program := program_on_path(metal.WITNESS, environment)):
        found.append(_Question(witness=metal.WITNESS, argv=metal.question(program), read=metal.read))
    if evidence.is_there:
        found.extend(_speakers(environment))
    return found


def _speakers(environment: Mapping[str, str]) -> list[_Question]:
    return [
        _Question(
            witness=one.witness,
            argv=[program, *one.argv[1:]],
            read=partial(speaking.read, one),
        )
        for one in speaking.SPEAKERS
        if (not one.needs or any(environment.get(name) for name in one.needs))
        and (program := program_on_path(one.argv[0], environment))
    ]


def _follow_up(question: _Question, reply: Reply, ask: Asker, limit_s: float) -> Statement:
    """Read an answer, and ask nvidia-smi again where its first answer says that it must be asked otherwise."""
    if question.witness != nvidia_smi.WITNESS:
        return question.read(reply)
    program = question.argv[0]
    if nvidia_smi.wants_old_question(reply):
        reply = ask.ask(nvidia_smi.question(program, is_old=True), limit_s=limit_s)
    statement = question.read(reply)
    if any(one.is_split for one in statement.sightings):
        statement = nvidia_smi.read_parts(statement, ask.ask(nvidia_smi.parts_question(program), limit_s=limit_s))
    return statement


def _may(witness: str, witnesses: frozenset[str] | None) -> bool:
    return witnesses is None or witness in witnesses


def _facts(files: KernelFiles, tag: str) -> MachineFacts:
    proc = files.place("/proc")
    return MachineFacts(
        tag=tag,
        ram_total_bytes=memory_total_bytes(proc),
        ram_available_bytes=memory_available_bytes(proc),
        device_files=kernel.device_files(files),
        has_device_files=not files.has("/dev/dxg"),
        may_use_kfd=files.may_use(kfd.DEVICE_FILE) if files.has(kfd.DEVICE_FILE) else None,
    )
