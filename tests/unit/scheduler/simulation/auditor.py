"""An auditor of simulations who knows no placement code: only declared machines, jobs, and what was written down.

Machines here carry what the mixes' machines say: a device is had alone, or shared up to its usable memory by jobs that
take one device; base models are charged once per device; cores, RAM and slots are never exceeded.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.machine import DevicePreference, Gpu, Node, Requirements
from stoker.scheduler.simulation.simulator import NOWHERE, Log
from stoker.scheduler.simulation.workload import WorkloadBatch

MIB = 1024**2
GIB = 1024**3
SPEEDS = {
    "RTX 4090": 1.0,
    "RTX 4080": 0.72,
    "RTX 3090": 0.55,
    "RTX 3080": 0.45,
    "A100": 1.2,
    "H100": 2.0,
    "Jetson Orin": 0.06,
    "Jetson Nano": 0.02,
}
ON_CPU = 0.01


class Held:
    """What one node's jobs hold at a moment."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.jobs: dict[int, tuple[Requirements, tuple[str, ...]]] = {}

    def faults(self) -> list[str]:
        node, found = self.node, []
        if len(self.jobs) > node.most_jobs:
            found.append(f"{len(self.jobs)} jobs in {node.most_jobs} slots")
        cores = sum(asked.cores for asked, _ in self.jobs.values())
        if node.cpu_cores is not None and cores > node.cpu_cores:
            found.append(f"{cores} cores of {node.cpu_cores}")
        ram = sum(asked.ram_bytes for asked, _ in self.jobs.values())
        # A tenth of a machine's RAM, at most 6 GiB, is the system's.
        if node.ram_mb is not None and ram > node.ram_mb * MIB - min(6 * GIB, node.ram_mb * MIB // 10):
            found.append(f"{ram} bytes of RAM of {node.ram_mb} MiB")
        for gpu in node.gpus:
            on_it = [asked for asked, devices in self.jobs.values() if gpu.uuid in devices]
            found += [f"{gpu.uuid}: {fault}" for fault in self._device_faults(gpu, on_it)]
        return found

    def _device_faults(self, gpu: Gpu, on_it: list[Requirements]) -> list[str]:
        if len(on_it) == 1 and on_it[0].vram_bytes <= gpu.total_bytes:
            return []
        if len(on_it) > 1 and not (self.node.may_share and all(asked.device_count == 1 for asked in on_it)):
            return [f"{len(on_it)} jobs share it"]
        bases = {asked.base: asked.base_bytes for asked in on_it if asked.base}
        own = sum(asked.vram_bytes - (asked.base_bytes if asked.base else 0) for asked in on_it)
        promised = own + sum(bases.values())
        return [f"{promised} bytes promised of {gpu.usable_bytes}"] if promised > gpu.usable_bytes else []


def audit(nodes: Sequence[Node], batch: WorkloadBatch, log: Log) -> list[str]:
    """Return everything that is wrong with a run."""
    found = _faults_of_jobs(nodes, batch, log)
    held = [Held(node) for node in nodes]
    moments = []
    for job in range(len(batch)):
        if log.node_of[job] != NOWHERE:
            # Who ends at a moment is gone before others begin.
            moments.append((log.end_s[job], 0, job))
            moments.append((log.start_s[job], 1, job))
    for at_s, is_start, job in sorted(moments):
        where = held[log.node_of[job]]
        if is_start:
            where.jobs[job] = (batch.shapes[batch.shape_of[job]].wanted.requirements, log.devices[job] or ())
            found += [f"{where.node.name} at {at_s}: {fault}" for fault in where.faults()]
        else:
            del where.jobs[job]
    return found


def _faults_of_jobs(nodes: Sequence[Node], batch: WorkloadBatch, log: Log) -> list[str]:
    found = []
    for job in range(len(batch)):
        if log.node_of[job] == NOWHERE:
            found.append(f"job {job} never began")
            continue
        asked = batch.shapes[batch.shape_of[job]].wanted.requirements
        node, devices = nodes[log.node_of[job]], log.devices[job] or ()
        types = {gpu.uuid: gpu.type for gpu in node.gpus}
        if set(devices) - set(types) or len(set(devices)) != len(devices):
            found.append(f"job {job} has devices that {node.name} has not: {devices}")
            continue
        if (
            len(devices) != (0 if asked.wish is DevicePreference.NEVER else asked.device_count)
            and asked.wish is not DevicePreference.PREFER
        ):
            found.append(f"job {job} has {len(devices)} devices")
        speed = min(
            (SPEEDS[types[uuid]] for uuid in devices), default=1.0 if asked.wish is DevicePreference.NEVER else ON_CPU
        )
        if abs(log.end_s[job] - log.start_s[job] - batch.work_s[job] / speed) > 1e-6 * log.end_s[job]:
            found.append(f"job {job} took {log.end_s[job] - log.start_s[job]} s")
    return found
