"""The board decides what asking the rule about every node would decide, whatever came and went before."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.core.device import GIB, Backend, MemoryType, usable_bytes
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob
from stoker.scheduler.fit import Placement, PlacementShape, choose
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import DeviceOffer, NodeOffer, ResidentBase, ResidentProcess, Sharing
from tests.lengths import examples

NAMES = ("a", "b", "c", "d", "e", "f")
RAM = st.sampled_from([None, 8 * GIB, 30 * GIB])
ALLOW = st.sampled_from([(), (), (), ("gbt",), ("lora", "resnet")])
USABLE = usable_bytes(24 * GIB, MemoryType.DISCRETE)

devices = st.builds(
    DeviceOffer,
    uuid=st.just(""),
    type=st.sampled_from(["rtx-4090", "rtx-3090", "H100", "Jetson Orin", "who knows"]),
    backend=st.sampled_from([Backend.CUDA, Backend.CUDA, Backend.CUDA, Backend.ROCM]),
    memory_type=st.sampled_from([MemoryType.DISCRETE, MemoryType.DISCRETE, MemoryType.UNIFIED]),
    total_bytes=st.sampled_from([8 * GIB, 24 * GIB, 24 * GIB, 80 * GIB]),
    free_bytes=st.sampled_from([None, None, None, 7 * GIB, 20 * GIB]),
    sharing=st.sampled_from(Sharing),
    slots=st.sampled_from([None, None, 1, 2]),
    closed=st.sampled_from(["", "", "", "cordoned"]),
)


@st.composite
def offers(draw: st.DrawFn) -> NodeOffer:
    """A node; its devices are often alike."""
    kinds = draw(st.lists(devices, max_size=2))
    count = draw(st.integers(1, 3))
    found = [one for one in kinds for _ in range(count)]
    return NodeOffer(
        node="",
        devices=tuple(changed(one, uuid=f"GPU-{at}") for at, one in enumerate(found)),
        slots=draw(st.integers(1, 4)),
        is_slot_per_device=draw(st.booleans()),
        ram_bytes=draw(RAM),
        cores=draw(st.sampled_from([None, 4, 9])),
        allow_jobs=draw(ALLOW),
        deny_jobs=draw(st.sampled_from([(), (), (), ("lora",)])),
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        closed=draw(st.sampled_from(["", "", "", "", "drained"])),
    )


@st.composite
def fleets(draw: st.DrawFn) -> list[NodeOffer]:
    """Nodes that are often alike, so that they are equally good and only their order, or a little less RAM, decides."""
    models = draw(st.lists(offers(), min_size=1, max_size=2))
    fleet = []
    for name in NAMES[: draw(st.integers(2, len(NAMES)))]:
        model = draw(st.sampled_from(models))
        if draw(st.booleans()):
            model = changed(model, ram_bytes=draw(RAM), allow_jobs=draw(ALLOW), closed="")
        fleet.append(changed(model, node=name))
    return fleet


hosts = st.sampled_from([(), (), (), ("a",), ("b", "c"), ("c", "d", "e")])
wanted = st.builds(
    SchedulableJob,
    name=st.sampled_from(["x", "gbt", "resnet/3"]),
    model=st.sampled_from(["", "lora", "resnet"]),
    requirements=st.builds(
        Requirements,
        wish=st.sampled_from(DevicePreference),
        backend=st.sampled_from([Backend.CUDA, Backend.CUDA, Backend.ROCM]),
        device_count=st.sampled_from([1, 1, 1, 2, 3]),
        vram_bytes=st.sampled_from([0, 2 * GIB, 6 * GIB, 12 * GIB, 22 * GIB, USABLE, USABLE - 2 * GIB]),
        ram_bytes=st.sampled_from([0, 4 * GIB, 7 * GIB]),
        cores=st.sampled_from([0, 1, 3]),
        may_share=st.booleans(),
        base=st.sampled_from(["", "", "llama"]),
        base_bytes=st.sampled_from([GIB, 2 * GIB]),
        base_ram_bytes=st.sampled_from([0, 3 * GIB]),
    ),
    allowed_hosts=hosts,
    preferred_hosts=hosts,
)


def naive(shape: PlacementShape, fleet: dict[str, NodeOffer]) -> tuple[str, Placement] | None:
    """Ask the rule about every node; the first of the best."""
    best: tuple[str, Placement] | None = None
    for node, offer in fleet.items():
        choice = choose(shape, offer)
        if choice is not None and (best is None or choice.key > best[1].key):
            best = node, choice
    return best


def charged(device: DeviceOffer, shape: PlacementShape, is_shared: bool, sign: int) -> DeviceOffer:
    """Count a job in (+1) or out (-1), slowly."""
    if not is_shared:
        promised = shape.vram_bytes if sign > 0 else 0
        return changed(device, is_held=sign > 0, jobs=device.jobs + sign, promised_bytes=promised)
    bases = {(one.base, one.size_bytes): one.jobs for one in device.bases}
    promised = device.promised_bytes + sign * (shape.vram_bytes - shape.base_bytes)
    if shape.base:
        key = shape.base, shape.base_bytes
        before, after = bases.get(key, 0), bases.get(key, 0) + sign
        promised += shape.base_bytes * ((after > 0) - (before > 0))
        bases[key] = after
    kept = tuple(
        ResidentBase(base=base, size_bytes=size, jobs=jobs) for (base, size), jobs in sorted(bases.items()) if jobs
    )
    return changed(device, jobs=device.jobs + sign, promised_bytes=promised, bases=kept)


def processes_after(
    offer: NodeOffer, shape: PlacementShape, choice: Placement, sign: int
) -> tuple[tuple[ResidentProcess, ...], int]:
    """Return the processes that jobs share once one came or went, and by how much less RAM that counts for."""
    if not shape.base_ram_bytes:
        return offer.processes, 0
    device = offer.devices[choice.devices[0].at].uuid if choice.devices else ""
    counts = {(one.base, one.size_bytes, one.device): one.jobs for one in offer.processes}
    key = shape.base, shape.base_ram_bytes, device
    before = counts.get(key, 0)
    counts[key] = before + sign
    others = before if sign > 0 else before - 1
    kept = tuple(
        ResidentProcess(base=base, size_bytes=size, device=uuid, jobs=jobs)
        for (base, size, uuid), jobs in sorted(counts.items())
        if jobs
    )
    return kept, shape.base_ram_bytes if others else 0


def after(offer: NodeOffer, shape: PlacementShape, choice: Placement, sign: int) -> NodeOffer:
    """Return the offer once a job came (+1) or went (-1)."""
    changing = {one.at: one.is_shared for one in choice.devices}
    processes, shared_bytes = processes_after(offer, shape, choice, sign)
    return changed(
        offer,
        devices=tuple(
            charged(device, shape, changing[at], sign) if at in changing else device
            for at, device in enumerate(offer.devices)
        ),
        jobs=offer.jobs + sign,
        cpu_jobs=offer.cpu_jobs + (0 if choice.devices else sign),
        ram_held_bytes=offer.ram_held_bytes + sign * (shape.ram_bytes - shared_bytes),
        processes=processes,
        cores_held=offer.cores_held + sign * shape.cores,
    )


class Machine(RuleBasedStateMachine):
    """Jobs come and go on a random fleet; the model is plain offers."""

    @initialize(fleet=fleets())
    def lay_out(self, fleet: list[NodeOffer]) -> None:
        self.board = NodeIndex(fleet)
        self.fleet = {offer.node: offer for offer in fleet}
        self.placed: list[PlacedJob] = []
        self.shapes: list[PlacementShape] = []

    @rule(job=wanted)
    def come(self, job: SchedulableJob) -> None:
        shape = self.board.shape_of(job)
        if shape not in self.shapes:
            self.shapes.append(shape)
        expected = naive(shape, self.fleet)
        placed = self.board.place(shape)
        self.note(placed, expected)

    @precondition(lambda self: self.shapes)
    @rule(data=st.data())
    def come_again(self, data: st.DataObject) -> None:
        shape = data.draw(st.sampled_from(self.shapes))
        self.note(self.board.place(shape), naive(shape, self.fleet))

    @precondition(lambda self: self.shapes)
    @rule(data=st.data())
    def come_here(self, data: st.DataObject) -> None:
        shape, node = data.draw(st.sampled_from(self.shapes)), data.draw(st.sampled_from(list(self.fleet)))
        choice = choose(shape, self.fleet[node])
        self.note(self.board.place_on(node, shape), None if choice is None else (node, choice))

    def note(self, placed: PlacedJob | None, expected: tuple[str, Placement] | None) -> None:
        if expected is None:
            assert placed is None
            return
        assert placed is not None
        node, choice = expected
        assert (placed.node, placed.choice) == (node, choice)
        assert placed.score == choice.key.score
        self.fleet[node] = after(self.fleet[node], placed.shape, choice, +1)
        self.placed.append(placed)

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        placed = self.placed.pop(data.draw(st.integers(0, len(self.placed) - 1)))
        self.board.release(placed)
        self.fleet[placed.node] = after(self.fleet[placed.node], placed.shape, placed.choice, -1)

    @rule(data=st.data(), offer=offers())
    def change(self, data: st.DataObject, offer: NodeOffer) -> None:
        """A node without jobs is described anew, or a new one joins."""
        idle = [name for name in NAMES if name not in {one.node for one in self.placed}]
        if idle:
            named = changed(offer, node=data.draw(st.sampled_from(idle)))
            if self.board.put(named):
                self.shapes.clear()
            self.fleet[named.node] = named
            self.fleet = {node: self.fleet[node] for node in self.board.nodes}

    @precondition(lambda self: len(self.fleet) > 1)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(list(self.fleet)))
        self.board.remove(node)
        del self.fleet[node]
        self.placed = [one for one in self.placed if one.node != node]

    @invariant()
    def every_node_is_as_the_model_has_it(self) -> None:
        for node, offer in self.fleet.items():
            assert self.board.offer(node) == offer

    @invariant()
    def the_bits_of_a_node_are_the_shapes_that_fit(self) -> None:
        for node, offer in self.fleet.items():
            bits = self.board.fitting(node)
            for shape in self.shapes:
                assert bool(bits >> self.board.number_of(shape) & 1) == (choose(shape, offer) is not None)


TestBoard = Machine.TestCase
TestBoard.settings = settings(max_examples=examples(20, 60), stateful_step_count=30, deadline=None)
