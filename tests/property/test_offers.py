"""Declarations and detections agree on the smaller value; reasons of idle machines name both amounts."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from stoker.coordinator.queue.machines import join
from stoker.core.capability import Capability
from stoker.core.device import MIB, Backend, Device, MemoryType
from stoker.core.job import job_id
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob
from stoker.devices.admission import Admission, MachineMemory, admit
from stoker.protocol.lease_messages import Grant, WorkerMeasurements
from stoker.scheduler.fit import UnfitReason, choose, shape_of
from stoker.scheduler.machine_index import MatchableMachine as ScheduledMachine
from stoker.scheduler.offers import agree, node_of
from stoker.scheduler.reasons import obstacles
from stoker.worker.machine_checks import Precheck, why_not
from tests.fakes.grants import grant_of
from tests.unit.devices.machines import NO, UNKNOWN, YES, capability, device

mib = st.integers(0, 48 * 1024)
sizes = st.one_of(st.sampled_from([0, 1, 8 * 1024, 12 * 1024, 24 * 1024]), mib)

RAM_STEP_BYTES = 64 * MIB
"""What is measured of RAM counts in these steps."""


def granted(ram_bytes: int) -> Grant:
    args = {"argv": ["true"]}
    job = job_id(recipe="command", schema_version=1, args=args)
    return grant_of(
        job=job,
        attempt=1,
        epoch=1,
        generation=1,
        name="a",
        recipe="command",
        args=args,
        identity=args,
        ram_bytes=ram_bytes,
        lease_s=9.0,
        start_s=9.0,
    )


@st.composite
def machines(draw: st.DrawFn) -> Capability:
    devices: list[Device] = []
    for number in range(draw(st.integers(0, 3))):
        total = draw(sizes.filter(bool))
        free = draw(st.one_of(st.none(), st.integers(0, total)))
        devices.append(
            device(
                number,
                backend=draw(st.sampled_from([Backend.CUDA, Backend.ROCM])),
                memory_type=draw(st.sampled_from(list(MemoryType))),
                total_bytes=total * MIB,
                free_bytes=None if free is None else free * MIB,
                visible=draw(st.sampled_from([YES, NO])),
                usable=draw(st.sampled_from([YES, NO, UNKNOWN])),
            )
        )
    total = draw(sizes)
    return capability(
        *devices,
        cpu_cores=draw(st.integers(1, 64)),
        ram_total_bytes=total * MIB,
        ram_available_bytes=draw(st.integers(0, total)) * MIB,
    )


@st.composite
def wishes(draw: st.DrawFn) -> Requirements:
    return Requirements(
        wish=draw(st.sampled_from(list(DevicePreference))),
        backend=draw(st.sampled_from([Backend.CUDA, Backend.ROCM])),
        device_count=draw(st.integers(1, 3)),
        vram_bytes=draw(sizes) * MIB,
        ram_bytes=draw(sizes) * MIB,
        cores=draw(st.integers(0, 64)),
        may_share=draw(st.booleans()),
    )


@given(machines(), wishes())
def test_reasons_of_an_idle_machine_are_there_exactly_if_the_job_does_not_fit_and_amounts_have_both_numbers(
    machine: Capability, wish: Requirements
) -> None:
    offer = agree(None, machine).offer
    shape = shape_of(SchedulableJob(name="", requirements=wish))
    found = obstacles(shape, offer)
    assert bool(found) == (choose(shape, offer) is None)
    for one in found:
        if one.code in (UnfitReason.TOO_SMALL, UnfitReason.ROOM, UnfitReason.RAM):
            assert len(re.findall(r"\d+(?:\.\d)? [KMG]?i?B", one.why)) >= 2


@given(machines(), st.lists(st.tuples(st.integers(0, 4), sizes.filter(bool)), unique_by=lambda one: one[0]))
def test_what_is_agreed_is_never_more_than_either_side_says(
    machine: Capability, declared: list[tuple[int, int]]
) -> None:
    node = Node(
        name="desk",
        host="localhost",
        gpus=tuple(Gpu(uuid=f"GPU-{number}", type="card", vram_mb=size) for number, size in declared),
        cpu_cores=8,
        ram_mb=16 * 1024,
    )
    agreed = agree(node, machine)
    found = {one.uuid: one for one in machine.devices}
    told = {note.what for note in agreed.drift}
    for one, (_, size) in zip(agreed.offer.devices, declared, strict=True):
        assert one.total_bytes <= size * MIB
        if one.uuid in found:
            assert one.total_bytes <= (found[one.uuid].total_bytes or 0)
        else:
            assert one.closed
            assert one.uuid in told
    assert (agreed.offer.cores or 0) <= min(8, machine.cpu_cores)
    assert (agreed.offer.ram_bytes or 0) <= 16 * 1024 * MIB
    assert {uuid for uuid in found if uuid not in {gpu.uuid for gpu in node.gpus}} <= told


@given(machines(), st.integers(-2, 2), st.sampled_from(["room", "most"]))
def test_a_job_fits_the_ram_of_a_machine_exactly_if_its_worker_admits_it(
    machine: Capability, more: int, edge: str
) -> None:
    memory = MachineMemory(total_bytes=machine.ram_total_bytes, available_bytes=machine.ram_available_bytes)
    amount = (memory.room_bytes if edge == "room" else memory.most_bytes) or 0
    wish = Requirements(wish=DevicePreference.NEVER, ram_bytes=max(1, amount + more))
    shape = shape_of(SchedulableJob(name="", requirements=wish))
    look = Precheck(memory=memory, disk_free_bytes=None, recipe_version=1)
    admits = isinstance(admit(wish.ram_bytes, memory), Admission)
    assert (choose(shape, agree(None, machine).offer) is not None) == admits
    assert (why_not(granted(wish.ram_bytes), look) is None) == admits
    # The coordinator, which looks at what is measured with each claim.
    joined = ScheduledMachine(join("desk", machine).offer)
    joined.measure(WorkerMeasurements(ram_room_bytes=memory.room_bytes), 0)
    fits = choose(shape, joined.idle()) is not None
    assert fits <= admits
    assert fits or not isinstance(admit(wish.ram_bytes + RAM_STEP_BYTES, memory), Admission)


@given(machines())
def test_a_machine_agrees_with_its_own_declaration(machine: Capability) -> None:
    assert agree(node_of(machine), machine) == agree(None, machine)
    assert agree(None, machine).drift == ()
