"""System B's placement rule on the same queue, machines and clock: what Stoker's rules are measured by.

    score = free usable VRAM ÷ budget × speed factor × 1 ÷ (1 + jobs there); 0 where it does not fit or the budget is 0

Greedy in the order of jobs; the highest score wins, the first node among equals; a node at its limit of jobs is
skipped. As its authors wrote it, it

- sums memory over a node's devices, so that a job larger than any of them is "placed" (and would run out of memory),
- gives nodes without devices no score, so that jobs for the CPU are never placed,
- knows no cores, no RAM and no device that a job has to itself,
- leaves out what it can't place without a word, and never looks again.

`defects` counts what that does to a queue. Beside it, `GreedyRun` gives the rule every chance: it keeps a queue and
looks again whenever a job ends; what the machines can't really carry is refused and the next best node tried; a job for
the CPU scores by RAM with the factor 0.01 that stands in B's table and is never used. What is left is its order of
things: always the best node for the next job, never a thought about the jobs behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from stoker.core.device import MemoryType
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements
from stoker.scheduler.job_types import JobTypes
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.simulation.workload import WorkloadBatch

CPU_FACTOR = 0.01
FACTORS = {
    "RTX 4090": 1.0,
    "RTX 4080": 0.72,
    "RTX 3090": 0.55,
    "RTX 3080": 0.45,
    "A100": 1.2,
    "H100": 2.0,
    "Jetson Orin": 0.06,
    "Jetson Nano": 0.02,
}
UNKNOWN_FACTOR = 0.5


def factor_of(node: Node) -> float:
    return max((FACTORS.get(gpu.type, UNKNOWN_FACTOR) for gpu in node.gpus), default=CPU_FACTOR)


def score(node: Node, reserved_bytes: int, jobs: int, budget_bytes: int) -> float:
    """B-39: the score of a node for a job."""
    free_bytes = node.usable_bytes - reserved_bytes
    if budget_bytes == 0 or free_bytes < budget_bytes:
        return 0.0
    return free_bytes / budget_bytes * factor_of(node) / (1 + jobs)


def budget_of(asked: Requirements) -> int:
    return 0 if asked.wish is DevicePreference.NEVER else asked.vram_bytes * asked.device_count


def place(nodes: Sequence[Node], budgets: Sequence[int]) -> list[int | None]:
    """B-41 as it is: a node for each job, or nothing."""
    reserved, jobs = [0] * len(nodes), [0] * len(nodes)
    places: list[int | None] = []
    for budget in budgets:
        scores = [
            0.0 if jobs[at] >= node.max_adapters else score(node, reserved[at], jobs[at], budget)
            for at, node in enumerate(nodes)
        ]
        best = max(range(len(nodes)), key=scores.__getitem__) if nodes else 0
        if not nodes or scores[best] <= 0:
            places.append(None)
            continue
        reserved[best] += budget
        jobs[best] += 1
        places.append(best)
    return places


def check_fixed_points() -> None:
    """B-42: what the rule is known to answer on its authors' own sample."""
    mib = 2**20
    desktop = Node(name="desktop", host="d", gpus=(Gpu(uuid="a", type="RTX 4090", vram_mb=24564),), max_adapters=3)
    board = Gpu(uuid="b", type="Jetson Orin", vram_mb=8192, memory_type=MemoryType.UNIFIED)
    nodes = [desktop, Node(name="edge", host="e", gpus=(board,)), Node(name="cpu", host="c")]
    assert round(score(desktop, 0, 0, 8000 * mib), 2) == 2.61
    assert round(score(desktop, 8000 * mib, 1, 8000 * mib), 2) == 0.80
    assert place(nodes, [6000 * mib] * 4) == [0, 0, 0, None]
    assert place(nodes, [2000 * mib] * 4) == [0, 0, 0, 1]
    assert place(nodes, [30000 * mib]) == [None]


def defects(nodes: Sequence[Node], batch: WorkloadBatch) -> dict[str, int]:
    """Count jobs that the rule as it is never places, and jobs that it would place where no device holds them."""
    most_bytes = max((node.usable_bytes for node in nodes), default=0)
    counts = {"never placed": 0, "placed where no device holds them": 0}
    verdicts = []
    for shape in batch.shapes:
        asked = shape.wanted.requirements
        budget = budget_of(asked)
        largest = max((gpu.usable_bytes for node in nodes for gpu in node.gpus), default=0)
        if not 0 < budget <= most_bytes:
            verdicts.append("never placed")
        elif asked.vram_bytes > largest and asked.device_count == 1:
            verdicts.append("placed where no device holds them")
        else:
            verdicts.append("")
    for shape in batch.shape_of:
        if verdicts[shape]:
            counts[verdicts[shape]] += 1
    return counts


class GreedyRun:
    """The rule with a queue, on machines that refuse what they can't carry."""

    def __init__(self, nodes: Sequence[Node], offers: Sequence[NodeOffer], batch: WorkloadBatch) -> None:
        self.nodes = nodes
        self.batch = batch
        self.board = NodeIndex(offers)
        self.job_types = JobTypes(self.board)
        self.types = [self.job_types.of(one.wanted, one.expected_s)[0] for one in batch.shapes]
        self.speeds = {offer.node: [device.speed for device in offer.devices] for offer in offers}
        self.order = {node.name: at for at, node in enumerate(nodes)}
        self.reserved = [0] * len(nodes)
        self.jobs = [0] * len(nodes)
        self.lines: list[list[int]] = [[] for _ in batch.shapes]
        for job, shape in enumerate(batch.shape_of):
            self.lines[shape].append(job)
        for line in self.lines:
            line.reverse()
        self.running: list[tuple[float, int, int, PlacedJob]] = []
        self.now_s = self.makespan_s = 0.0

    def go(self) -> float:
        """Run everything; gives the makespan."""
        self._fill()
        while self.running:
            self.now_s, _, shape, placed = heappop(self.running)
            at = self.order[placed.node]
            self.board.release(placed)
            self.reserved[at] -= budget_of(self.batch.shapes[shape].wanted.requirements)
            self.jobs[at] -= 1
            # Nobody who waits fits anywhere else, or he would be there: the first who fits here has it.
            while (first := self._first(self._fitting(placed.node))) is not None:
                self._start(first, at)
        return self.makespan_s

    def _fitting(self, node: str) -> int:
        return self.job_types.expand(self.board.fitting(node))

    def _fill(self) -> None:
        full = set()
        for shape in self.batch.shape_of:
            if shape in full or not self.lines[shape]:
                continue
            at = self._best(shape)
            if at is None:
                full.add(shape)
            else:
                self._start(shape, at)

    def _best(self, shape: int) -> int | None:
        bits = self.types[shape].bits
        asked = self.batch.shapes[shape].wanted.requirements
        best, best_score = None, 0.0
        for at, node in enumerate(self.nodes):
            scored = self._score(node, at, asked)
            if scored > best_score and self._fitting(node.name) & bits:
                best, best_score = at, scored
        return best

    def _score(self, node: Node, at: int, asked: Requirements) -> float:
        if asked.wish is DevicePreference.NEVER:
            return CPU_FACTOR * (node.ram_mb or 0) / (asked.ram_bytes / 2**20) / (1 + self.jobs[at])
        # Where a job has the device to itself, more of its memory than is "usable" is there for it.
        free_bytes = max(node.usable_bytes - self.reserved[at], 1)
        return free_bytes / budget_of(asked) * factor_of(node) / (1 + self.jobs[at])

    def _first(self, fits: int) -> int | None:
        types, best = self.types, None
        for shape, line in enumerate(self.lines):
            if line and types[shape].bits & fits and (best is None or line[-1] < self.lines[best][-1]):
                best = shape
        return best

    def _start(self, shape: int, at: int) -> None:
        one, node = self.types[shape], self.nodes[at].name
        number = one.device_number
        if number is None or not self._fitting(node) >> number & 1:
            number = one.cpu_number
        assert number is not None
        placed = self.board.place_on(node, self.job_types.shape_of[number])
        assert placed is not None
        job = self.lines[shape].pop()
        devices = [self.speeds[node][one.at] for one in placed.choice.devices]
        end_s = self.now_s + self.batch.work_s[job] / (min(devices) if devices else one.cpu_speed)
        self.reserved[at] += budget_of(self.batch.shapes[shape].wanted.requirements)
        self.jobs[at] += 1
        self.makespan_s = max(self.makespan_s, end_s)
        heappush(self.running, (end_s, job, shape, placed))
