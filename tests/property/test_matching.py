"""What a machine is given is what a slow, plain reading of the rules would give it, whatever came and went before."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from stoker.coordinator.matching.heads import Head, Match, Seat
from stoker.coordinator.matching.joining import join
from stoker.coordinator.matching.matcher import Matcher
from stoker.model.capability import Capability
from stoker.model.devices import Answer, Backend, Device, MemoryType, Verdict
from stoker.model.frozen import changed
from stoker.model.nodes import Gpu, Node
from stoker.model.requirements import Requirements, WantedJob, Wish
from stoker.model.resources import GIB
from stoker.scheduler.fit import choose, cores_left, device_block, ram_left, slots_left
from stoker.scheduler.offers import DeviceOffer, NodeOffer, ResidentBase
from stoker.scheduler.shapes import Shape, idle, shape_of
from stoker.wire.leasing import Measured

NAMES = ("a", "b", "c")
STARVED_S = 100.0
PRIORITIES = st.sampled_from([0, 5, 9])
YES = Answer(verdict=Verdict.YES)

wanted = st.builds(
    WantedJob,
    name=st.sampled_from(["x", "gbt", "resnet/3"]),
    model=st.sampled_from(["", "lora"]),
    requirements=st.builds(
        Requirements,
        wish=st.sampled_from([*Wish, Wish.REQUIRE, Wish.REQUIRE]),
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


def charged(device: DeviceOffer, shape: Shape, *, is_shared: bool) -> DeviceOffer:
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


def after(offer: NodeOffer, shape: Shape, uuids: Iterable[str], *, is_shared: bool) -> NodeOffer:
    """Give the offer once a job came."""
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


def kept(offer: NodeOffer, shape: Shape) -> NodeOffer:
    """Give what a job that waits for a machine leaves to lower ones."""
    choice = choose(changed(shape, ram_bytes=0, cores=0), offer)
    if choice is not None:
        uuids = [offer.devices[one.at].uuid for one in choice.devices]
        return after(offer, shape, uuids, is_shared=any(one.is_shared for one in choice.devices))
    able = [device for device in offer.devices if device_block(shape, device) is None]
    if shape.takes_cpu or not offer.is_slot_per_device or len(able) >= shape.device_count:
        is_short_of_slots = shape.takes_cpu or len(able) >= shape.device_count or slots_left(offer) < 1
        if is_short_of_slots:
            return changed(offer, closed="kept")
    could = {device.uuid for device in idle(offer).devices if device_block(shape, device) is None}
    free = sum(1 for device in offer.devices if device.uuid in could and not device.jobs)
    return changed(
        offer,
        devices=tuple(changed(one, closed="kept") if one.uuid in could else one for one in offer.devices),
        slots=offer.slots - (free if offer.is_slot_per_device else 1),
        ram_held_bytes=offer.ram_held_bytes + shape.ram_bytes,
        cores_held=offer.cores_held + shape.cores,
    )


class Fleet(RuleBasedStateMachine):
    """Machines, jobs and leases come and go; the model is plain offers and a sorted list."""

    @initialize(data=st.data())
    def join(self, data: st.DataObject) -> None:
        self.matcher = Matcher(starved_s=STARVED_S)
        self.found: dict[str, tuple[Node, Capability]] = {}
        self.closed: dict[str, str] = {}
        self.available: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.wanted: dict[int, WantedJob] = {}
        self.heads: dict[tuple[int, int], Head] = {}
        self.seats: list[Seat] = []
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
        self.matcher.put_machine(name, capability, node, closed=closed)

    @rule(data=st.data())
    def hello_again(self, data: st.DataObject) -> None:
        self.put(data.draw(st.sampled_from(NAMES)), data)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(NAMES))
        self.matcher.remove_machine(name)
        self.found.pop(name, None)

    @rule(wish=wanted, priority=PRIORITIES, count=st.integers(1, 3))
    def submit(self, wish: WantedJob, priority: int, count: int) -> None:
        self.submit_one(wish, priority, count)

    def submit_one(self, wish: WantedJob, priority: int, count: int) -> None:
        class_id = next((one for one, known in self.wanted.items() if known == wish), len(self.wanted))
        if class_id not in self.wanted:
            self.wanted[class_id] = wish
            self.matcher.put_class(class_id, wish)
        if (class_id, priority) not in self.heads:
            self.seq += 1
            self.put_head(Head(class_id=class_id, priority=priority, seq=self.seq, since_s=self.now_s, count=count))

    def put_head(self, head: Head) -> None:
        self.heads[head.class_id, head.priority] = head
        self.matcher.line.put(head)

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(self.seats))
        self.seats.remove(seat)
        self.matcher.unseat(seat)

    @precondition(lambda self: self.found)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.found)))
        measured = self.measure(name, data)
        for _ in range(data.draw(st.integers(1, 4))):
            answer = self.matcher.choose(name, self.matcher.line, self.now_s, measured)
            expected = self.expected(name)
            if not isinstance(answer, Match):
                assert expected is None
                waiting = sum(head.count for head in self.heads.values())
                assert sum(answer.waiting.values()) == (0 if answer.closed else waiting)
                assert bool(answer.closed) == bool(self.offer(name).closed)
                return
            assert expected is not None
            head, devices = expected
            assert (answer.head, answer.seat.devices) == (head, devices)
            self.grant(answer)
            measured = Measured()

    def measure(self, name: str, data: st.DataObject) -> Measured:
        available = data.draw(st.sampled_from([None] * 5 + [5 * GIB, 20 * GIB]))
        free = {
            device.uuid: data.draw(st.sampled_from([GIB, 7 * GIB, 23 * GIB]))
            for device in self.found[name][1].devices
            if data.draw(st.integers(0, 7)) == 0
        }
        self.free |= free
        if available is not None:
            self.available[name] = available + self.held(name)
        return Measured(ram_available_bytes=available, free_bytes=free)

    def grant(self, match: Match) -> None:
        self.assert_nobody_higher_loses(match, self.offer(match.seat.machine))
        self.matcher.seat(match.seat)
        self.seats.append(match.seat)
        head = match.head
        del self.heads[head.class_id, head.priority]
        if head.count > 1:
            self.seq += 1
            self.put_head(changed(head, seq=self.seq, since_s=self.now_s, count=head.count - 1))
        else:
            self.matcher.line.drop(head.class_id, head.priority)

    def assert_nobody_higher_loses(self, match: Match, offer: NodeOffer) -> None:
        """Whoever is before the one that starts, and waits for this machine, is no further from starting."""
        later = after(offer, self.shape(match.head), match.seat.devices, is_shared=match.seat.is_shared)
        for head in self.heads.values():
            shape = self.shape(head)
            if self.level(head) >= self.level(match.head) or not self.waits_for(head, offer.node):
                continue
            assert min(ram_left(later), shape.ram_bytes) == min(ram_left(offer), shape.ram_bytes)
            assert min(cores_left(later), shape.cores) == min(cores_left(offer), shape.cores)
            before = [one for one in offer.devices if device_block(shape, one) is None]
            since = [one for one in later.devices if device_block(shape, one) is None]
            assert min(len(since), shape.device_count) == min(len(before), shape.device_count)

    def shape(self, head: Head) -> Shape:
        return shape_of(self.wanted[head.class_id])

    def level(self, head: Head) -> tuple[bool, int]:
        """Smaller goes first."""
        is_starved = head.since_s < self.now_s - STARVED_S
        return not is_starved, 0 if is_starved else -head.priority

    def held(self, name: str) -> int:
        return sum(self.wanted[seat.class_id].requirements.ram_bytes for seat in self.seats if seat.machine == name)

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
        for seat in self.seats:
            if seat.machine == name:
                taken = there.intersection(seat.devices)
                offer = after(offer, shape_of(self.wanted[seat.class_id]), taken, is_shared=seat.is_shared)
        return offer

    def waits_for(self, head: Head, name: str) -> bool:
        shape = self.shape(head)
        elsewhere = [self.offer(other) for other in self.found if other != name]
        fits_idle = choose(shape, idle(self.offer(name))) is not None
        return fits_idle and all(choose(shape, other) is None for other in elsewhere)

    def expected(self, name: str) -> tuple[Head, tuple[str, ...]] | None:
        """Go through everybody in order; who can't start and waits for the machine keeps what he needs."""
        room = self.offer(name)
        backends = {one.backend for one in join(name, self.found[name][1], self.found[name][0]).offer.devices}
        levels = sorted({self.level(head) for head in self.heads.values()})
        starved: set[Shape] = set()
        for level in levels:
            heads = sorted(
                [head for head in self.heads.values() if self.level(head) == level],
                key=lambda head: (self.turn(head, backends), head.seq),
            )
            for head in heads:
                choice = choose(self.shape(head), room)
                if choice is not None:
                    return head, tuple(room.devices[one.at].uuid for one in choice.devices)
            keeping: dict[Shape, None] = {}
            for head in sorted(heads, key=lambda head: head.seq):
                if self.waits_for(head, name):
                    keeping.setdefault(self.listed(self.shape(head)))
            for shape in keeping:
                if shape not in starved:
                    room = kept(room, shape)
            if not level[0]:
                starved = {self.listed(self.shape(head)) for head in heads}
        return None

    def listed(self, shape: Shape) -> Shape:
        """Jobs are told apart by those of their names that some list ever had."""
        return changed(shape, words=shape.words & {"gbt", "lora", "resnet"})

    def turn(self, head: Head, backends: set[Backend]) -> int:
        asked = self.wanted[head.class_id].requirements
        if asked.wish is not Wish.NEVER and asked.backend in backends:
            return 0
        return 2 if asked.wish is Wish.PREFER else 1

    @invariant()
    def offers_are_as_counted(self) -> None:
        if hasattr(self, "matcher"):
            assert {offer.node: offer for offer in self.matcher.offers()} == {
                name: self.offer(name) for name in self.found
            }


@pytest.mark.parametrize("count", [16, pytest.param(400, marks=pytest.mark.slow)])
def test_the_matcher_does_what_its_model_does(count: int) -> None:
    run(Fleet, settings=settings(max_examples=count, stateful_step_count=30, deadline=None))
