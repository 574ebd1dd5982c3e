"""One line about the machine that a program runs on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.core.device import Capacity, Device, Needs
from stoker.core.errors import StokerError
from stoker.core.text import counted, format_size
from stoker.devices.admission import Admission, MachineMemory, admit, memory_here, shares
from stoker.engine.types import RunOptions
from stoker.jobs.builder import JobBuild
from stoker.jobs.trials import is_sweep

if TYPE_CHECKING:
    from stoker.api.app_parts import AppParts


def machine_line(parts: AppParts, build: JobBuild, options: RunOptions) -> str:
    """Return devices, memory limit, interpreter, and the number of parallel trials as one line."""
    needs = build.plan.node(build.plan.final).needs
    devices = [device for device in parts.devices if needs.may_use(device)]
    facts = [
        *_devices(devices, needs),
        ", ".join(
            [counted(parts.capacity.cpu, "core"), *_memory(memory_here(), needs, str(parts.containment.mechanism))]
        ),
        *_interpreter(parts, build),
    ]
    line = f"{os.uname().nodename.partition('.')[0]}: {'; '.join(facts)}"
    count = len(build.trials)
    if not is_sweep(build.trials):
        return line
    trials = counted(count, "trial")
    pace = _pace(at_once(needs, parts.capacity, devices, options.max_in_flight))
    return f"{line}. {trials}, {pace}{_part(devices, needs)}"


def at_once(needs: Needs, capacity: Capacity, devices: Sequence[Device], most: int) -> int:
    """Return how many programs with these needs run at once here, if no other process uses the devices."""
    room = [most, capacity.cpu // needs.cpu if needs.cpu else most]
    if needs.gpu:
        room.append(sum(_places_on(device, needs) for device in devices) // needs.gpu)
    if needs.memory_bytes:
        room.append(capacity.memory_bytes // needs.memory_bytes)
    return max(1, min(room))


def _places_on(device: Device, needs: Needs) -> int:
    """Return how many programs with these needs fit on a device; without sharing, one."""
    return (device.usable_bytes or 0) // needs.vram_bytes if _is_shared(device, needs) else 1


def _is_shared(device: Device, needs: Needs) -> bool:
    return shares(needs.vram_bytes, device.usable_bytes or 0, is_allowed=needs.shares)


def _pace(count: int) -> str:
    return "one at a time" if count == 1 else f"{count} at a time"


def _part(devices: Sequence[Device], needs: Needs) -> str:
    """Return the part of a device that each program gets."""
    if not needs.gpu:
        return ""
    if any(_is_shared(device, needs) for device in devices):
        return f", each with {format_size(needs.vram_bytes)} of a GPU"
    return ", each with a whole GPU" if needs.gpu == 1 else f", each with {needs.gpu} whole GPUs"


def _devices(devices: Sequence[Device], needs: Needs) -> list[str]:
    if not devices:
        return []
    if not needs.gpu:
        return [f"{counted(len(devices), 'GPU')}, not used"]
    from stoker.views.device_lines import devices_text

    return [devices_text(devices)]


def _memory(memory: MachineMemory, needs: Needs, mechanism: str) -> list[str]:
    if memory.total_bytes is None:
        return [f"memory unknown ({mechanism})"]
    admitted = admit(needs.memory_bytes or None, memory, is_work_running=True)
    cap_bytes = admitted.cap_bytes if isinstance(admitted, Admission) else None
    # The declared limit is the first one: after an out-of-memory kill the retry gets more.
    may_be_more = needs.memory_bytes and cap_bytes != memory.most_bytes
    cap = "no limit" if cap_bytes is None else f"limit {'from ' if may_be_more else ''}{format_size(cap_bytes)}"
    return [f"{format_size(memory.total_bytes)} RAM", f"{cap} ({mechanism})"]


def _interpreter(parts: AppParts, build: JobBuild) -> list[str]:
    """Return the interpreter that runs the program and why; nothing if it is unknown or differs between trials."""
    from stoker.engine.runners.program.program_runner import ProgramRunner

    nodes = {
        (trial.spec.args["argv"][0], trial.spec.args.get("python", "")): build.plan.node(trial.nodes.final)
        for trial in build.trials
    }
    runner = parts.tools.engine.runner_for(build.plan.node(build.plan.final).stage)
    if not isinstance(runner, ProgramRunner):
        return []
    try:
        launches = runner.launches({node.id: (node.stage, node.args) for node in nodes.values()})
    except StokerError:
        # The run reports it, unless the result is cached.
        return []
    found = {(launch.folder, launch.python, launch.python_found_by) for launch in launches}
    if len(found) != 1:
        return []
    ((folder, path, why),) = found
    if not path:
        return []
    near = os.path.relpath(path, folder)
    shown = path if near.startswith("..") else f"./{near}"
    return [f"python = {shown} ({why})" if why else f"python = {shown}"]
