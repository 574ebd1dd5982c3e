"""What this machine can never give, decided before anything runs: a run refuses it, a dry run says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.core.errors import Fault, OutOfMemory, PlanFaults, StokerError
from stoker.engine.device_gate import DeviceGate, NoDevices
from stoker.engine.permits import MemoryGate
from stoker.engine.plan import PlanNode
from stoker.engine.runners.stage_runner import StageRunner
from stoker.engine.stage import Stage
from stoker.engine.types import Engine

_FEWER = (
    "gpus=0 does without one; `stoker doctor` tells what this machine has, `stoker machines` what the fleet has, and "
    "`stoker submit` takes the same words"
)


def impossible(
    nodes: Sequence[PlanNode],
    *,
    devices: DeviceGate,
    memory: MemoryGate,
    runner_for: Callable[[Stage], StageRunner],
) -> StokerError | None:
    """Return why some of these nodes can never run here, or give nothing.

    `PlanFaults`, `OutOfMemory` for memory, `ProgramNotFound` and its like for a program.
    """
    faults = tuple(Fault(node.id, never) for node in nodes if (never := devices.never(node.needs)))
    if faults:
        headline = str(faults[0]) if len(faults) == 1 else f"{len(faults)} stages can't run on this machine"
        return PlanFaults(headline, faults=faults, hint=_FEWER)
    too_large = [f"{node.id}: {never}" for node in nodes if (never := memory.never(node))]
    if too_large:
        is_said = all(node.stage.is_program for node in nodes)
        less = "declare less" if is_said else "ask less of it (a smaller batch, say)"
        return OutOfMemory("; ".join(too_large[:3]), hint=f"{less}, or run it on a larger machine")
    programs = [node for node in nodes if node.stage.is_program and not node.producers()]
    if programs:
        works = {node.id: (node.stage, node.args) for node in programs}
        try:
            runner_for(programs[0].stage).check(works)
        except StokerError as error:
            return error
    return None


def impossible_here(engine: Engine, nodes: Sequence[PlanNode]) -> StokerError | None:
    """Return the same of nodes that nobody runs."""
    devices = engine.open_devices(lambda: None) if any(node.needs.gpu for node in nodes) else NoDevices()
    try:
        return impossible(nodes, devices=devices, memory=engine.memory, runner_for=engine.runner_for)
    finally:
        devices.close()
