"""What fits on one device is one rule: the scheduler, the ledger, a run's gate and a worker's second look agree."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.clock import FakeClock
from stoker.core.device import GIB, MIB, MemoryType, Needs
from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob
from stoker.devices.ledger.ledger_rules import (
    DeviceAssignment,
    LedgerDecisionInputs,
    charges_on,
    decide,
    left_for,
    total_of,
)
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, Reservation, ReservationShare
from stoker.devices.ledger.snapshot import DeviceHolder, DeviceState
from stoker.engine.device_gate import held_base
from stoker.engine.ledger_gate import LedgerGate
from stoker.protocol.lease_messages import Grant as Granted
from stoker.scheduler.fit import NodeUsage, Placement, PlacementShape, choose, shape_of
from stoker.scheduler.offers import DeviceOffer, MeasuredNode, NodeOffer, Sharing
from stoker.worker.machine_checks import room_for
from tests.fakes.grants import grant_of
from tests.lengths import examples
from tests.unit.devices.ledger.lab import someone
from tests.unit.engine.lab import card

BASES = {"llama": 4 * GIB, "qwen": 1000 * MIB}
USABLE = (20879 * MIB, 4915 * MIB, 14745 * MIB)
sizes = st.one_of(
    st.sampled_from([0, MIB, 6 * GIB, 8192 * MIB, 24564 * MIB, 24565 * MIB, *USABLE, *(one + MIB for one in USABLE)]),
    st.integers(1, 25 * 1024).map(lambda count: count * MIB),
)
small = st.integers(1, 5 * 1024).map(lambda count: count * MIB)


class Job(NamedTuple):
    """A job as a submitter describes it."""

    vram_bytes: int
    may_share: bool
    base: str

    def requirements(self) -> Requirements:
        base_bytes = BASES.get(self.base, 0)
        return Requirements(
            wish=DevicePreference.REQUIRE,
            vram_bytes=self.vram_bytes + base_bytes,
            ram_bytes=0,
            may_share=self.may_share,
            base=self.base,
            base_bytes=base_bytes,
        )


jobs = st.builds(Job, st.one_of(sizes, small), st.sampled_from([True, True, False]), st.sampled_from(["", *BASES]))
steps = st.lists(
    st.one_of(
        jobs,
        st.tuples(st.just("end"), st.integers(0, 9)),
        # What other programs hold, and what holders have taken of what they were promised, in parts of it.
        st.tuples(st.just("measure"), st.integers(0, 25 * 1024), st.integers(0, 4)),
    ),
    max_size=12,
)
devices = st.builds(
    CandidateDevice,
    uuid=st.just("GPU-a"),
    total_bytes=st.sampled_from([24564 * MIB, 8192 * MIB]),
    memory_type=st.sampled_from(MemoryType),
    shares=st.booleans(),
    slots=st.sampled_from([0, 0, 1, 3]),
)


class Both:
    """One device as the scheduler has it and as the ledger has it."""

    def __init__(self, device: CandidateDevice) -> None:
        self.device = device
        offered = DeviceOffer(
            uuid=device.uuid,
            type="rtx-4090",
            memory_type=device.memory_type,
            total_bytes=device.total_bytes,
            # A ledger that can't measure counts on all of a device, a coordinator only on the usable part of some.
            free_bytes=None if device.memory_type is MemoryType.DISCRETE else device.total_bytes,
            sharing=Sharing.ALWAYS if device.shares else Sharing.ASKED,
            slots=device.slots or None,
        )
        self.node = NodeUsage(NodeOffer(node="a", devices=(offered,), slots=99), 0)
        self.placed: list[tuple[PlacementShape, Placement]] = []
        self.books = LedgerDecisionInputs()

    def place(self, asked: Requirements) -> tuple[PlacementShape, Placement | None]:
        shape = shape_of(SchedulableJob(name="", requirements=asked))
        return shape, choose(shape, self.node)

    def ask(self, asked: Requirements) -> DeviceRequest:
        return DeviceRequest(
            job="",
            devices=(self.device,),
            vram_bytes=asked.vram_bytes,
            may_share=asked.may_share,
            base=held_base(asked.base) if asked.base else "",
            base_bytes=asked.base_bytes,
        )

    def take(self, shape: PlacementShape, placement: Placement, ask: DeviceRequest) -> None:
        self.node.take(shape, placement)
        self.placed.append((shape, placement))
        self.books = changed(self.books, entries=(*self.books.entries, self._entry(ask)))

    def _entry(self, ask: DeviceRequest) -> Reservation:
        share = ReservationShare(
            uuid=self.device.uuid,
            promised_bytes=ask.vram_bytes,
            total_bytes=self.device.total_bytes,
            memory_type=self.device.memory_type,
            is_exclusive=not ask.shares(self.device),
        )
        times: dict[str, Any] = {"since_s": 0.0, "since_wall_s": 0.0, "lease_s": 90.0, "lease_until_s": 90.0}
        return Reservation(
            id="", job="", owner=someone(7), shares=(share,), base=ask.base, base_bytes=ask.base_bytes, **times
        )

    def end(self, number: int) -> None:
        if self.placed:
            number %= len(self.placed)
            shape, placement = self.placed.pop(number)
            self.node.give_back(shape, (self.device.uuid,), placement)
            entries = self.books.entries
            self.books = changed(self.books, entries=(*entries[:number], *entries[number + 1 :]))

    def measure(self, outside_bytes: int, quarters: int) -> None:
        """Let the driver measure; the scheduler hears of it as a worker tells it."""
        total_bytes, uuid = self.device.total_bytes, self.device.uuid
        charged_bytes = self.charged_bytes
        taken_bytes = charged_bytes * quarters // 4
        free_bytes = max(0, total_bytes - outside_bytes - taken_bytes)
        self.books = changed(self.books, free_bytes={uuid: free_bytes}, taken_bytes={uuid: taken_bytes})
        left_bytes = left_for(charged_bytes, taken_bytes, free_bytes)
        self.node.measure(MeasuredNode(None, "", ((left_bytes, ""),)))

    def forget(self) -> None:
        """Let the measurement be too old: who holds the device changed."""
        if self.books.free_bytes:
            self.measure(0, 0)

    @property
    def charged_bytes(self) -> int:
        return total_of(charges_on(self.device.uuid, self.books.entries))


def walk(device: CandidateDevice, said: list[Any], come: Any) -> None:
    both = Both(device)
    for step in said:
        if isinstance(step, Job):
            come(both, step.requirements())
            both.forget()
        elif step[0] == "end":
            both.end(step[1])
            both.forget()
        else:
            both.measure(step[1] * MIB, step[2])


def agree(both: Both, asked: Requirements) -> None:
    shape, placement = both.place(asked)
    ask = both.ask(asked)
    answer = decide(ask, both.books)
    assert (placement is not None) is isinstance(answer, DeviceAssignment), answer
    if placement is not None:
        assert placement.devices[0].is_shared is ask.shares(both.device)
        both.take(shape, placement, ask)
        (usage,) = both.node.devices
        assert usage.is_held or usage.promised_bytes == both.charged_bytes


@settings(max_examples=examples(90, 2000), deadline=None)
@given(devices, steps)
def test_the_scheduler_and_the_ledger_agree_about_every_job_on_a_device(
    device: CandidateDevice, said: list[Any]
) -> None:
    walk(device, said, agree)


def granted_of(asked: Requirements, *, is_shared: bool) -> Granted:
    return grant_of(
        job="a" * 64,
        attempt=1,
        epoch=1,
        generation=1,
        name="a",
        recipe="command",
        lease_s=9.0,
        start_s=9.0,
        devices=("GPU-a",),
        is_shared=is_shared,
        vram_bytes=asked.vram_bytes,
        base=asked.base if is_shared else "",
        base_bytes=asked.base_bytes if is_shared else 0,
    )


def look_again(both: Both, asked: Requirements) -> None:
    # Odd bytes: reservations of the scheduler are in whole MiB.
    asked = changed(asked, vram_bytes=max(0, asked.vram_bytes - asked.vram_bytes % 7))
    if asked.vram_bytes < asked.base_bytes:
        return
    shape, placement = both.place(asked)
    if placement is None:
        return
    grant = granted_of(asked, is_shared=placement.devices[0].is_shared)
    # A worker knows its devices, and not what a cluster file allows there.
    ask = room_for(grant, (changed(both.device, shares=False, slots=0),))
    assert ask.shares(both.device) is grant.is_shared
    answer = decide(ask, both.books)
    assert isinstance(answer, DeviceAssignment), answer
    both.take(shape, placement, ask)


@settings(max_examples=examples(90, 2000), deadline=None)
@given(devices, steps)
def test_what_the_scheduler_grants_is_not_declined_at_the_second_look(device: CandidateDevice, said: list[Any]) -> None:
    walk(device, said, look_again)


def nobody() -> Any:
    raise AssertionError


@settings(max_examples=examples(90, 2000), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([24564, 8192, 16384]), st.sampled_from(MemoryType)), max_size=3),
    sizes,
    st.booleans(),
    st.integers(1, 3),
)
def test_a_run_is_refused_at_once_exactly_if_an_empty_machine_never_fits_it(
    found: list[tuple[int, MemoryType]], vram_bytes: int, may_share: bool, count: int
) -> None:
    here = [
        changed(card(f"GPU-{number}"), total_bytes=mib * MIB, memory_type=memory_type)
        for number, (mib, memory_type) in enumerate(found)
    ]
    gate = LedgerGate(
        devices=lambda: tuple(here), ledger=nobody, meter=nobody, environment={}, wake=nobody, clock=FakeClock()
    )
    offers = tuple(
        DeviceOffer(
            uuid=one.uuid,
            type="card",
            memory_type=one.memory_type,
            total_bytes=one.total_bytes or 0,
            free_bytes=one.total_bytes,
        )
        for one in here
    )
    wants = Requirements(
        wish=DevicePreference.REQUIRE, vram_bytes=vram_bytes, device_count=count, ram_bytes=0, may_share=may_share
    )
    shape = shape_of(SchedulableJob(name="", requirements=wants))
    fits = choose(shape, NodeOffer(node="a", devices=offers, slots=9)) is not None
    needs = Needs(gpu=count, vram_gib=vram_bytes / GIB, shares=may_share)
    assert (gate.never(needs) == "") is fits


@settings(max_examples=examples(90, 2000), deadline=None)
@given(devices, steps)
def test_the_room_that_is_shown_of_a_device_is_what_can_be_had_of_it(device: CandidateDevice, said: list[Any]) -> None:
    device = changed(device, slots=0)
    shown: list[Both] = []

    def come(both: Both, asked: Requirements) -> None:
        shown[:] = [both]
        agree(both, asked)

    walk(device, said, come)
    for both in shown:
        entries = both.books.entries
        state = DeviceState(
            device=device,
            holders=tuple(
                DeviceHolder(entry=entry, share=entry.shares[0], held_s=0.0, is_late=False) for entry in entries
            ),
            reserved_bytes=both.charged_bytes,
            free_bytes=both.books.free_bytes.get(device.uuid),
            taken_bytes=both.books.taken_bytes.get(device.uuid, 0),
        )

        def can_have(size_bytes: int, both: Both = both) -> bool:
            ask = DeviceRequest(job="", devices=(device,), vram_bytes=size_bytes, may_share=True)
            return ask.shares(device) and isinstance(decide(ask, both.books), DeviceAssignment)

        assert not state.room_bytes or can_have(state.room_bytes)
        assert not can_have(state.room_bytes + 1)
