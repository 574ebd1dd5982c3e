"""One script, a fleet and a queue on a virtual clock, played to a coordinator over HTTP and to the simulation.

    script = make_script("everything", machines=12, jobs=200, shapes=20, users=3)
    clock = ScriptClock()
    with coordinator(url, folder, clock=clock) as fleet:
        decided = play(fleet, clock, script)
    assert decided.decisions == simulated(decided.offers, script)

The driver plays every worker. It sends one request at a time, in the order of the virtual clock, and at one moment in
the order in which the coordinator calls machines: as `WaitingClaims` would ask their questions again. A machine asks
when a job of its own ended or it is called, for as many jobs as it has free slots, as workers do. It starts them at
once; they take as long as the script says, at the speed of their devices.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, groupby
from math import inf
from typing import Any, NamedTuple

from stoker.coordinator.queue.commands import Declare, InspectMachines, MachineInspection, Sweep
from stoker.core.capability import Capability
from stoker.core.clock import FakeClock
from stoker.core.device import MIB, Backend, Device, TriState, TriStateAnswer
from stoker.core.digests import Digest, digest_bytes
from stoker.core.frozen import changed, fields_of
from stoker.core.job import JobSpec, job_id
from stoker.core.machine import Cluster, DevicePreference, Node
from stoker.protocol.job_messages import JOB_BODY, Submission
from stoker.protocol.lease_messages import Claim, Finish, Grant, Hello, Start
from stoker.scheduler.job_types import rounded_s
from stoker.scheduler.offers import NodeOffer, offer_of
from stoker.scheduler.score import CPU_SPEED
from stoker.scheduler.simulation.simulator import Simulator
from stoker.scheduler.simulation.workload import JobShape, WorkloadBatch, make_batch, make_nodes, make_shapes, mixes
from tests.servers.coordinator import Fleet

SEED = 7
SPAN_S = 4 * 3600.0
"""The second half of the jobs comes over this time, one by one."""
BLOB = b"the result of every job"
SHA = hashlib.sha256(BLOB).hexdigest()
YES = TriStateAnswer(verdict=TriState.YES)


class ScriptClock(FakeClock):
    """A wall clock that is set. The monotonic one stands still: no lease ends, no chore of the coordinator is due."""

    def __init__(self) -> None:
        super().__init__(start_s=0.0)

    def set(self, wall_s: float) -> None:
        # As if suspended meanwhile: time has passed, the clock was not set.
        self._suspended_s += wall_s - self._wall_s
        self._wall_s = wall_s


class Decision(NamedTuple):
    """One grant: the job's place in the script, where, on what, and when."""

    job: int
    machine: str
    devices: tuple[str, ...]
    at_s: float


@dataclass(frozen=True)
class Script:
    """Machines, and jobs in the order in which they come."""

    nodes: tuple[Node, ...]
    batch: WorkloadBatch


@dataclass
class Played:
    """What a coordinator granted, in order, to the machines that it knew."""

    offers: tuple[NodeOffer, ...]
    decisions: list[Decision] = field(default_factory=list)
    requests: int = 0


def make_script(mix_name: str, *, machines: int, jobs: int, shapes: int, users: int, seed: int = SEED) -> Script:
    """Make a script. All shapes can run, and no two are alike; of every other one it is stated how long it takes.

    First comes one job of each user and shape, so that the simulation knows all classes when the coordinator does.
    """
    mix = mixes()[mix_name]
    nodes = make_nodes(mix, machines, seed)
    drawn = {shape.wanted.requirements: shape for shape in make_shapes(mix, shapes, seed)}
    empty = Simulator([offer_of(node) for node in nodes], WorkloadBatch(tuple(drawn.values())))
    made = [shape for number, shape in enumerate(drawn.values()) if number not in set(empty.unplaceable)]
    # Every two shapes are one recipe: what is learned of one is used for the other.
    made = [
        changed(
            shape,
            expected_s=rounded_s(shape.expected_s),
            is_stated=bool(number % 2),
            like=f"script/{number // 2}",
        )
        for number, shape in enumerate(made)
    ]
    rest = jobs - users * len(made)
    batch = make_batch(mix, made, rest, seed, users=users, span_s=SPAN_S)
    half = rest // 2
    batch.come_s[:half] = array("d", [0.0]) * half
    first = sorted(range(half), key=lambda job: batch.user_of[job])
    script = WorkloadBatch(made)
    for user in range(users):
        for shape, one in enumerate(made):
            script.add(shape, round(one.expected_s, 3), user=user)
    for job in [*first, *range(half, rest)]:
        script.add(
            batch.shape_of[job],
            batch.work_s[job],
            batch.priority_of[job],
            user=batch.user_of[job],
            come_s=batch.come_s[job],
        )
    return Script(nodes, script)


def digest_of(decisions: Iterable[Decision]) -> Digest:
    """Name all decisions: which job began where, on which devices, and when."""
    lines = [f"{one.job} {one.machine} {','.join(one.devices)} {one.at_s.hex()}\n" for one in decisions]
    return digest_bytes("".join(lines).encode())


def simulated(offers: Sequence[NodeOffer], script: Script) -> list[Decision]:
    """Return what the simulation decides on these machines."""
    run = Simulator(offers, script.batch)
    run.queue()
    run.fill()
    run.go()
    log = run.log
    return [
        Decision(job, run.offers[log.node_of[job]].node, log.devices[job] or (), log.start_s[job])
        for job in log.started
    ]


def play(fleet: Fleet, clock: ScriptClock, script: Script) -> Played:
    """Play a script to a coordinator, to the end of its last job."""
    return _Driver(fleet, clock, script).go()


class _Driver:
    """Every worker and every user, one request after another."""

    def __init__(self, fleet: Fleet, clock: ScriptClock, script: Script) -> None:
        self._queue = fleet.queue
        self._client = fleet.client()
        self._clock = clock
        self._script = script
        self._numbers = count(1)
        self._next_job = 0
        self._running: list[tuple[float, int, str, Grant]] = []
        self._join()
        looked = self._queue.ask(InspectMachines())
        assert isinstance(looked, MachineInspection)
        self._played = Played(looked.offers)
        self._speeds = {device.uuid: device.speed for offer in looked.offers for device in offer.devices}
        self._free = {offer.node: offer.slots for offer in looked.offers}
        self._asking: deque[str] = deque()
        # Called in the writer's thread, before what made it call is answered.
        self._queue.on_wish(self._asking.extend)

    def go(self) -> Played:
        self._upload()
        self._submit()
        by_speed = sorted(
            self._played.offers, key=lambda offer: -max((device.speed for device in offer.devices), default=0.0)
        )
        self._ask_called([offer.node for offer in by_speed])
        while self._running or self._come_s < inf:
            end_s = self._running[0][0] if self._running else inf
            call_s, ended = self._call_s, []
            if call_s < min(self._come_s, end_s):
                self._clock.set(max(call_s, self._clock.wall_s()))
                # What the coordinator does by itself about once a second.
                self._queue.ask(Sweep())
            elif self._come_s < end_s:
                self._clock.set(self._come_s)
                self._submit()
            else:
                ended = [self._finish(*heappop(self._running))]
            self._ask_called(ended)
        return self._played

    @property
    def _come_s(self) -> float:
        batch = self._script.batch
        return batch.come_s[self._next_job] if self._next_job < len(batch) else inf

    @property
    def _call_s(self) -> float:
        """When the coordinator has to look whether a reason to wait has ended."""
        at_s = self._queue._writer._setting.scheduler.next_call_s
        return inf if at_s is None else at_s

    def _join(self) -> None:
        self._queue.ask(Declare(cluster=Cluster(nodes=self._script.nodes)))
        for node in self._script.nodes:
            found = _capability(node)
            self._client.hello(
                Hello(
                    worker=node.name,
                    incarnation=f"incarnation-{node.name}",
                    capability=found.to_dict(),
                    capability_digest=found.digest,
                )
            )

    def _upload(self) -> None:
        begun = self._client.begin_upload(SHA, len(BLOB))
        self._client.append_upload(begun.id, BLOB, offset=0)
        assert self._client.finish_upload(begun.id).is_known

    def _submit(self) -> None:
        """Submit the jobs whose time has come: of each user together, in the order of the script."""
        batch, begin = self._script.batch, self._next_job
        while self._come_s <= self._clock.wall_s():
            self._next_job += 1
        for user, jobs in groupby(range(begin, self._next_job), key=lambda job: batch.user_of[job]):
            orders = tuple(_order(job, batch.shapes[batch.shape_of[job]], batch.priority_of[job]) for job in jobs)
            self._client.submit(Submission(jobs=orders, submitter=f"user-{user}"))

    def _ask_called(self, first: Sequence[str]) -> None:
        called = [*self._asking]
        self._asking.clear()
        self._asking.extend(dict.fromkeys((*first, *called)))
        while self._asking:
            self._ask(self._asking.popleft())

    def _ask(self, machine: str) -> None:
        if not self._free[machine]:
            return
        asked = Claim(
            request_id=f"request-{next(self._numbers)}",
            worker=machine,
            incarnation=f"incarnation-{machine}",
            most=self._free[machine],
        )
        at_s, batch = self._clock.wall_s(), self._script.batch
        self._played.requests += 1
        for grant in self._client.claim(asked).grants:
            job = grant.spec.number - 1
            self._free[machine] -= 1
            self._played.decisions.append(Decision(job, machine, grant.devices, at_s))
            self._client.write(grant.job, Start(**_token(grant)))
            wish = batch.shapes[batch.shape_of[job]].wanted.requirements.wish
            on_cpu = 1.0 if wish is DevicePreference.NEVER else CPU_SPEED
            speed = min((self._speeds[uuid] for uuid in grant.devices), default=on_cpu)
            heappush(self._running, (at_s + batch.work_s[job] / speed, job, machine, grant))

    def _finish(self, end_s: float, _job: int, machine: str, grant: Grant) -> str:
        """End a job; return its machine."""
        self._clock.set(end_s)
        self._free[machine] += 1
        self._client.write(
            grant.job, Finish(**_token(grant), tree=SHA, archive_sha256=SHA, size_bytes=len(BLOB), seconds=1.0)
        )
        return machine


def _capability(node: Node) -> Capability:
    """Return what is found on a machine that is as its declaration says."""
    devices = tuple(
        Device(
            uuid=gpu.uuid,
            backend=Backend.CUDA,
            name=gpu.type,
            memory_type=gpu.memory_type,
            total_bytes=gpu.vram_mb * MIB,
            installed=YES,
            visible=YES,
            usable=YES,
        )
        for gpu in node.gpus
    )
    return Capability(
        hostname=node.name,
        os="linux",
        arch="x86_64",
        cpu_cores=node.cpu_cores or 1,
        ram_total_bytes=(node.ram_mb or 0) * MIB,
        devices=devices,
    )


def _order(job: int, shape: JobShape, priority: int) -> JobSpec:
    args = {"job": job}
    fields = {
        "id": job_id(recipe=shape.like, schema_version=1, args=args),
        "name": "script",
        "number": job + 1,
        "recipe": shape.like,
        "args": args,
        "identity": args,
        "priority": priority,
        "expected_s": shape.expected_s if shape.is_stated else None,
        "requirements": {
            name: value for name, value in fields_of(shape.wanted.requirements).items() if name != "backend"
        },
    }
    return JOB_BODY.validate_python(fields)


def _token(grant: Grant) -> dict[str, Any]:
    return {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}
