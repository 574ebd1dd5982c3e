"""A fleet for tests of the policy: machines, ready jobs, and a clock that the test sets."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stoker.core.device import GIB
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.scheduler.leases import StartDecision, StartReason
from stoker.scheduler.machine_index import LeaseAllocation, MatchableMachine
from stoker.scheduler.offers import offer_of
from stoker.scheduler.scheduler import Scheduler

HOUR_S = 3600.0
Asked = tuple[Requirements, float | None]


class Fleet:
    """A scheduler, with a class for each of `asked`, and its ready jobs."""

    def __init__(self, nodes: Sequence[Node], *asked: Asked, users: Sequence[str] = ("",)) -> None:
        self.now_s = 0.0
        self.scheduler = Scheduler(nth=self._nth)
        self._ready: dict[tuple[int, int], deque[int]] = {}
        self._seq = 0
        self.classes = len(asked)
        for one in nodes:
            self.scheduler.put_machine(MatchableMachine(offer_of(one)))
        for at, user in enumerate(users):
            for number, (needs, expected_s) in enumerate(asked):
                wanted = SchedulableJob(name="job", requirements=needs)
                self.scheduler.put_class(at * len(asked) + number, wanted, user=user, expected_s=expected_s)

    def come(self, class_id: int, count: int = 1, priority: int = 0) -> None:
        """Let jobs become ready."""
        ready = self._ready.setdefault((class_id, priority), deque())
        for _ in range(count):
            self._seq += 1
            ready.append(self._seq)
        self._tell(class_id, priority)

    def go(self, class_id: int, priority: int = 0) -> None:
        """Let the first job of a class be ready no more."""
        self._ready[class_id, priority].popleft()
        self._tell(class_id, priority)

    def left(self, class_id: int, priority: int = 0) -> int:
        return len(self._ready.get((class_id, priority), ()))

    def ask(self, node: str) -> tuple[int, StartReason] | None:
        """Return which class the machine would get a job of, and why."""
        decision = self.scheduler.choose(node, self.now_s)
        return (decision.head.class_id, decision.why) if isinstance(decision, StartDecision) else None

    def start(self, node: str) -> LeaseAllocation | None:
        """Let a machine ask and start what it gets."""
        decision = self.scheduler.choose(node, self.now_s)
        if not isinstance(decision, StartDecision):
            return None
        self.scheduler.grant(decision, self.now_s)
        self.go(decision.head.class_id, decision.head.priority)
        return decision.allocation

    def run(self, class_id: int, node: str, devices: int = 1, *, is_shared: bool = False) -> LeaseAllocation:
        """Let a job of a class run on the first devices of a machine."""
        uuids = tuple([device.uuid for device in self.scheduler.index.usage(node).devices[:devices]])
        allocation = LeaseAllocation(node, class_id, uuids, is_shared)
        self.scheduler.leases.restore(allocation, self.now_s)
        return allocation

    def called(self) -> list[str]:
        return self.scheduler.calls(self.now_s)

    def _tell(self, class_id: int, priority: int) -> None:
        ready = self._ready[class_id, priority]
        self.scheduler.ready.set_head(class_id, priority, ready[0] if ready else 0, len(ready))

    def _nth(self, class_id: int, priority: int, place: int) -> int | None:
        ready = self._ready.get((class_id, priority), ())
        return ready[place] if place < len(ready) else None


def node(name: str, *types: str, slots: int = 4, shares: bool = False, vram_mb: int = 24564, priority: int = 0) -> Node:
    gpus = tuple(Gpu(uuid=f"{name}-{at}", type=type_, vram_mb=vram_mb) for at, type_ in enumerate(types))
    return Node(
        name=name,
        host=name,
        gpus=gpus,
        cpu_cores=16,
        ram_mb=65536,
        slots=slots,
        shares_devices=shares,
        priority=priority,
    )


def board(name: str = "board") -> Node:
    return Node(name=name, host=name, gpus=(Gpu(uuid=name, type="Jetson Nano", vram_mb=24564),), cpu_cores=8)


def device(vram_gib: int = 8, *, hours: float | None = 1.0, **asked: object) -> Asked:
    fields = {"wish": DevicePreference.REQUIRE, "vram_bytes": vram_gib * GIB, "ram_bytes": GIB, "cores": 1, **asked}
    return Requirements(**fields), None if hours is None else hours * HOUR_S  # type: ignore[arg-type]


def cpu(*, hours: float | None = 1.0) -> Asked:
    return Requirements(wish=DevicePreference.NEVER, ram_bytes=GIB, cores=1), None if hours is None else hours * HOUR_S
