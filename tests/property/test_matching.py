"""What a machine is granted fits it by a slow, plain count of all leases, and goes strictly by priority, whatever came
and went before; and whenever a job fits a machine that gets nothing, the answer names why."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from stoker.coordinator.queue.machines import join
from stoker.core.capability import Capability
from stoker.core.device import GIB, Backend, Device, MemoryType, TriState, TriStateAnswer
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.fit import PlacementShape, choose, shape_of
from stoker.scheduler.leases import HoldDecision, HoldReason, StartDecision, StartReason
from stoker.scheduler.machine_index import LeaseAllocation, MatchableMachine
from stoker.scheduler.offers import DeviceOffer, NodeOffer, ResidentBase
from stoker.scheduler.ready_queue import ReadyHead
from stoker.scheduler.scheduler import Scheduler

NAMES = ("a", "b", "c")
PRIORITIES = st.sampled_from([0, 5, 9])
YES = TriStateAnswer(verdict=TriState.YES)

wanted = st.builds(
    SchedulableJob,
    name=st.sampled_from(["x", "gbt", "resnet/3"]),
    model=st.sampled_from(["", "lora"]),
    requirements=st.builds(
        Requirements,
        wish=st.sampled_from([*DevicePreference, DevicePreference.REQUIRE, DevicePreference.REQUIRE]),
        backend=st.sampled_from([Backend.CUDA] * 5 + [Backend.ROCM]),
        device_count=st.sampled_from([1, 1, 2]),
        vram_bytes=st.sampled_from([0, 6 * GIB, 12 * GIB, 22 * GIB]),
        ram_bytes=st.sampled_from([0, 4 * GIB, 12 * GIB]),
        cores=st.sampled_from([0, 1, 3]),
        may_share=st.booleans(),
        base=st.sampled_from(["", "", "llama"]),
        base_bytes=st.just(GIB),
    ),
    allowed_hosts=st.sampled_from([()] * 6 + [("a",), ("b", "c")]),
    preferred_hosts=st.sampled_from([()] * 6 + [("b",), ("a", "c")]),
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> tuple[Node, Capability]:
    """A machine: what is declared and what is found."""
    sizes = draw(st.lists(st.sampled_from([8 * 1024, 24564, 24564]), max_size=3))
    gpus = tuple(Gpu(uuid=f"GPU-{name}{at}", type="rtx-4090", vram_mb=size) for at, size in enumerate(sizes))
    found = tuple(
        Device(
            uuid=gpu.uuid,
            backend=draw(st.sampled_from([Backend.CUDA] * 5 + [Backend.ROCM])),
            name="NVIDIA GeForce RTX 4090",
            memory_type=draw(st.sampled_from([MemoryType.DISCRETE, MemoryType.DISCRETE, MemoryType.UNIFIED])),
            total_bytes=gpu.total_bytes,
            free_bytes=draw(st.sampled_from([None, None, gpu.total_bytes, 7 * GIB])),
            installed=YES,
            visible=YES,
            usable=YES,
        )
        for gpu in gpus
    )
    node = Node(
        name=name,
        host=name,
        gpus=gpus,
        cpu_cores=draw(st.sampled_from([None, 4])),
        slots=draw(st.sampled_from([None, None, 1, 2, 4])),
        shares_devices=draw(st.sampled_from([None, True, False])),
        allow_jobs=draw(st.sampled_from([()] * 8 + [("gbt", "lora")])),
        deny_jobs=draw(st.sampled_from([()] * 8 + [("lora",), ("resnet",)])),
    )
    capability = Capability(
        hostname=name,
        os="linux",
        arch="x86_64",
        cpu_cores=draw(st.sampled_from([2, 8])),
        ram_total_bytes=draw(st.sampled_from([None, 8 * GIB, 32 * GIB])),
        devices=found,
    )
    return node, capability


def charged(device: DeviceOffer, shape: PlacementShape, *, is_shared: bool) -> DeviceOffer:
    """Count a job in, slowly."""
    if not is_shared:
        return changed(device, is_held=True, jobs=device.jobs + 1, promised_bytes=shape.vram_bytes)
    bases = {(one.base, one.size_bytes): one.jobs for one in device.bases}
    key = shape.base, shape.base_bytes
    promised = device.promised_bytes + shape.vram_bytes - (shape.base_bytes if key in bases else 0)
    if shape.base:
        bases[key] = bases.get(key, 0) + 1
    resident = tuple(ResidentBase(base=base, size_bytes=size, jobs=n) for (base, size), n in sorted(bases.items()))
    return changed(device, jobs=device.jobs + 1, promised_bytes=promised, bases=resident)


def after(offer: NodeOffer, shape: PlacementShape, uuids: Iterable[str], *, is_shared: bool) -> NodeOffer:
    """Return the offer once a job came."""
    taken = set(uuids)
    return changed(
        offer,
        devices=tuple(
            charged(device, shape, is_shared=is_shared) if device.uuid in taken else device for device in offer.devices
        ),
        jobs=offer.jobs + 1,
        cpu_jobs=offer.cpu_jobs + (not taken),
        ram_held_bytes=offer.ram_held_bytes + shape.ram_bytes,
        cores_held=offer.cores_held + shape.cores,
    )


class Fleet(RuleBasedStateMachine):
    """Machines, jobs and leases come and go; the model is plain offers and a sorted list."""

    @initialize(data=st.data())
    def join(self, data: st.DataObject) -> None:
        self.scheduler = Scheduler()
        self.found: dict[str, tuple[Node, Capability]] = {}
        self.closed: dict[str, str] = {}
        self.available: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.wanted: dict[int, SchedulableJob] = {}
        self.heads: dict[tuple[int, int], ReadyHead] = {}
        self.leases: list[LeaseAllocation] = []
        self.now_s, self.seq = 0.0, 0
        for name in NAMES[: data.draw(st.sampled_from([1, 1, 2, 3]))]:
            self.put(name, data)
        for wish in data.draw(st.lists(wanted, min_size=4, max_size=8)):
            self.submit_one(wish, data.draw(PRIORITIES), 1)

    def put(self, name: str, data: st.DataObject) -> None:
        self.found[name] = node, capability = data.draw(nodes(name))
        self.closed[name] = closed = data.draw(st.sampled_from([""] * 8 + ["drained"]))
        self.available.pop(name, None)
        for device in capability.devices:
            self.free.pop(device.uuid, None)
        offer = changed(join(name, capability, node).offer, closed=closed)
        self.scheduler.put_machine(MatchableMachine(offer, capability.ram_available_bytes))

    @rule(data=st.data())
    def hello_again(self, data: st.DataObject) -> None:
        self.put(data.draw(st.sampled_from(NAMES)), data)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        self.scheduler.remove_machine(name)
        self.found.pop(name, None)

    @rule(wish=wanted, priority=PRIORITIES, count=st.integers(1, 3))
    def submit(self, wish: SchedulableJob, priority: int, count: int) -> None:
        self.submit_one(wish, priority, count)

    def submit_one(self, wish: SchedulableJob, priority: int, count: int) -> None:
        class_id = next((one for one, known in self.wanted.items() if known == wish), len(self.wanted))
        if class_id not in self.wanted:
            self.wanted[class_id] = wish
            self.scheduler.put_class(class_id, wish)
        if (class_id, priority) not in self.heads:
            self.seq += 1
            self.put_head(ReadyHead(class_id=class_id, priority=priority, seq=self.seq, count=count))

    def put_head(self, head: ReadyHead) -> None:
        self.heads[head.class_id, head.priority] = head
        self.scheduler.ready.set_head(head.class_id, head.priority, head.seq, head.count)

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.scheduler.calls(self.now_s)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), is_completed=st.booleans())
    def end(self, data: st.DataObject, *, is_completed: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        self.scheduler.release(lease, self.now_s, is_completed=is_completed)

    @precondition(lambda self: self.found)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.found)))
        self.scheduler.measure(name, self.measure(name, data))
        for _ in range(data.draw(st.integers(1, 4))):
            decision = self.scheduler.choose(name, self.now_s, tells=True)
            if isinstance(decision, HoldDecision):
                self.assert_reasons(name, decision)
                return
            self.assert_fits(decision)
            self.assert_priority(decision)
            self.grant(decision)

    def assert_reasons(self, name: str, hold: HoldDecision) -> None:
        """Every ready job is counted, and one that fits is not said to lack room."""
        offer = self.offer(name)
        assert bool(hold.closed) == bool(offer.closed)
        ready = sum(head.count for head in self.heads.values())
        assert sum(hold.waiting.values()) == (0 if hold.closed else ready)
        fitting = sum(head.count for head in self.heads.values() if choose(self.shape(head), offer) is not None)
        held = sum(count for reason, count in hold.waiting.items() if reason in set(HoldReason))
        assert held == (0 if hold.closed else fitting)

    def assert_fits(self, grant: StartDecision) -> None:
        allocation = grant.allocation
        assert grant.head == self.heads[grant.head.class_id, grant.head.priority]
        offer, shape = self.offer(allocation.machine), self.shape(grant.head)
        placed_as = changed(shape, wish=DevicePreference.REQUIRE if allocation.devices else DevicePreference.NEVER)
        machine = self.scheduler.machines.machines[allocation.machine]
        if machine.kept is not None and grant.why is not StartReason.KEPT:
            # Of a machine that is kept it gets what the other job does not need, if that is enough.
            mine = [changed(one, closed="" if one.uuid in allocation.devices else "kept") for one in offer.devices]
            offer = changed(offer, devices=tuple(mine))
        choice = choose(placed_as, offer)
        assert choice is not None
        assert allocation.devices == tuple(offer.devices[one.at].uuid for one in choice.devices)
        assert not choice.devices or allocation.is_shared == choice.devices[0].is_shared

    def assert_priority(self, grant: StartDecision) -> None:
        """Where no other machine could have it, nothing that fits waits behind a lower priority."""
        if len(self.found) == 1:
            offer = self.offer(grant.allocation.machine)
            fitting = [head.priority for head in self.heads.values() if choose(self.shape(head), offer) is not None]
            assert grant.head.priority == max(fitting)

    def measure(self, name: str, data: st.DataObject) -> WorkerMeasurements:
        available = data.draw(st.sampled_from([None] * 5 + [5 * GIB, 20 * GIB]))
        free = {
            device.uuid: data.draw(st.sampled_from([GIB, 7 * GIB, 23 * GIB]))
            for device in self.found[name][1].devices
            if data.draw(st.integers(0, 7)) == 0
        }
        self.free |= free
        if available is not None:
            self.available[name] = available + self.held(name)
        return WorkerMeasurements(ram_available_bytes=available, free_bytes=free)

    def grant(self, grant: StartDecision) -> None:
        self.scheduler.grant(grant, self.now_s)
        self.leases.append(grant.allocation)
        head = grant.head
        del self.heads[head.class_id, head.priority]
        if head.count > 1:
            self.seq += 1
            self.put_head(changed(head, seq=self.seq, count=head.count - 1))
        else:
            self.scheduler.ready.set_head(head.class_id, head.priority, 0, 0)

    def shape(self, head: ReadyHead) -> PlacementShape:
        return shape_of(self.wanted[head.class_id])

    def held(self, name: str) -> int:
        return sum(self.wanted[lease.class_id].requirements.ram_bytes for lease in self.leases if lease.machine == name)

    def offer(self, name: str) -> NodeOffer:
        node, capability = self.found[name]
        offer = changed(join(name, capability, node).offer, closed=self.closed[name])
        devices = tuple(
            changed(one, free_bytes=min(self.free[one.uuid], one.total_bytes)) if one.uuid in self.free else one
            for one in offer.devices
        )
        ram_bytes = min(offer.ram_bytes or inf, self.available.get(name, inf))
        offer = changed(offer, devices=devices, ram_bytes=None if ram_bytes == inf else int(ram_bytes))
        there = {device.uuid for device in devices}
        for lease in self.leases:
            if lease.machine == name:
                taken = there.intersection(lease.devices)
                offer = after(offer, shape_of(self.wanted[lease.class_id]), taken, is_shared=lease.is_shared)
        return offer

    @invariant()
    def offers_are_as_counted(self) -> None:
        if hasattr(self, "scheduler"):
            assert {offer.node: offer for offer in self.scheduler.offers()} == {
                name: self.offer(name) for name in self.found
            }


@pytest.mark.parametrize("count", [16, pytest.param(400, marks=pytest.mark.slow)])
def test_grants_fit_by_a_plain_count_of_all_leases(count: int) -> None:
    run(Fleet, settings=settings(max_examples=count, stateful_step_count=30, deadline=None))
