"""One line about the machine that a program is about to run on."""

from __future__ import annotations

import os
import platform
import sys

from stoker.faces.cli.parts import Parts
from stoker.hardware.admission import Admitted, Memory, admit, memory_here
from stoker.host.interpreter import find_python
from stoker.model.resources import Capacity, Needs
from stoker.model.units import format_size
from stoker.plan.executor import RunOptions
from stoker.worker.ordering import Order
from stoker.worker.trials import is_sweep


def machine_line(parts: Parts, order: Order, options: RunOptions) -> str:
    """Say what there is, how it is bounded, whose Python runs, and how many trials go at once."""
    needs = order.plan.node(order.plan.final).needs
    told = [
        *_devices(parts.capacity),
        *_memory(memory_here(), needs, str(parts.containment.mechanism)),
    ]
    line = f"{platform.node().partition('.')[0]}: {', '.join(told)}; python = {_python(parts, order)}"
    count = len(order.trials)
    if not is_sweep(order.trials):
        return line
    trials = "1 trial" if count == 1 else f"{count:,} trials"
    return f"{line}. {trials}, {_pace(at_once(needs, parts.capacity, options.max_in_flight))}"


def at_once(needs: Needs, capacity: Capacity, most: int) -> int:
    """Say how many programs with these needs run side by side here."""
    room = [most, capacity.cpu // needs.cpu if needs.cpu else most]
    if needs.gpu:
        room.append(len(capacity.gpus) // needs.gpu)
    if needs.memory_bytes:
        room.append(capacity.memory_bytes // needs.memory_bytes)
    return max(1, min(room))


def _pace(count: int) -> str:
    return "one at a time" if count == 1 else f"{count} at a time"


def _devices(capacity: Capacity) -> list[str]:
    told = [f"{capacity.cpu} cores" if capacity.cpu > 1 else "1 core"]
    if capacity.gpus:
        told.append(f"{len(capacity.gpus)} GPU{'s' if len(capacity.gpus) > 1 else ''}")
    return told


def _memory(memory: Memory, needs: Needs, mechanism: str) -> list[str]:
    if memory.total_bytes is None:
        return [f"memory unknown ({mechanism})"]
    admitted = admit(needs.memory_bytes or None, memory, is_work_running=True)
    cap_bytes = admitted.cap_bytes if isinstance(admitted, Admitted) else None
    # What was declared is where it begins: if the same work was killed there before, it gets more.
    may_be_more = needs.memory_bytes and cap_bytes != memory.most_bytes
    cap = "no cap" if cap_bytes is None else f"cap {'from ' if may_be_more else ''}{format_size(cap_bytes)}"
    return [f"{format_size(memory.total_bytes)} RAM", f"{cap} ({mechanism})"]


def _python(parts: Parts, order: Order) -> str:
    settings = parts.settings
    folder = order.program.folder if order.program else settings.folder
    wanted = str(order.trials[0].args.get("python", ""))
    found = find_python(wanted, folder=folder, environment=settings.environment, own_prefix=sys.prefix).path
    if not found:
        return "none"
    near = os.path.relpath(found, folder)
    return found if near.startswith("..") else f"./{near}"
