"""What an attempt holds of this machine's devices, seen in a real ledger among real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.core.capability import Capability
from stoker.core.device import MIB, Backend, Device, TriState, TriStateAnswer
from stoker.devices.ledger.reservations import FakeMeter
from stoker.engine.device_gate import held_base
from stoker.host.identity import ProcessIdentity, mine, of_pid
from stoker.worker.machine_checks import LocalMachine, MachineOffer
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.grants import grant_of
from tests.fakes.keeping import Keep
from tests.unit.devices.ledger.lab import CARD, gib, held, real_ledger, sharing, whole

GRANT = grant_of(
    job="a" * 64, attempt=1, epoch=1, generation=1, name="a", recipe="command", lease_s=9.0, start_s=9.0,
    devices=(CARD.uuid,),
)  # fmt: skip


@pytest.fixture
def meter() -> FakeMeter:
    return FakeMeter({CARD.uuid: CARD.total_bytes})


@pytest.fixture
def machine(tmp_path: Path, meter: FakeMeter) -> LocalMachine:
    keep = Keep(tmp_path, FakeCoordinator())
    yes = TriStateAnswer(verdict=TriState.YES)
    total_bytes = CARD.total_bytes
    card = Device(
        uuid=CARD.uuid, backend=Backend.CUDA, name="card", total_bytes=total_bytes, free_bytes=total_bytes,
        installed=yes, visible=yes, usable=yes,
    )  # fmt: skip
    capability = Capability(hostname="desk", os="Linux", arch="any", cpu_cores=2, cpu_threads=2, devices=(card,))
    ledger = real_ledger(tmp_path, meter=meter)
    keep.look_as(offer=MachineOffer(capability), ledger=lambda: ledger)
    return keep.machine


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = of_pid(process.pid)
    assert found is not None
    return found


def test_devices_are_seen_to_be_held_until_the_attempts_own_process_is_gone(machine: LocalMachine):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        held(machine.ledger().reserve(sharing(MIB, job="a/run", owner=identity_of(program))))
        held(machine.ledger().reserve(sharing(MIB, job="a/run", owner=mine())))
        (own,) = machine.holdings(GRANT, identity_of(program))
        assert len(machine.holdings(GRANT, mine())) == 2, "what runs below an attempt's process is its own"
        assert machine.is_held(GRANT, frozenset({own}))
        program.communicate(b"\n")
    assert not machine.is_held(GRANT, frozenset({own})), "another one's of the same name does not count"
    assert machine.is_held(GRANT, machine.holdings(GRANT, mine()))


def test_a_base_that_is_on_the_device_is_not_asked_for_again_before_a_start(machine: LocalMachine):
    room = CARD.usable_bytes
    base_bytes = room - 3 * MIB
    held(machine.ledger().reserve(sharing(room - MIB, job="first", base=held_base("qwen"), base_bytes=base_bytes)))
    second = GRANT.model_copy(
        update={"is_shared": True, "vram_bytes": base_bytes + MIB, "base": "qwen", "base_bytes": base_bytes}
    )
    assert not machine.look(second).device_trouble
    assert machine.look(second.model_copy(update={"base": "llama"})).device_trouble
    assert machine.look(second.model_copy(update={"vram_bytes": base_bytes + 2 * MIB})).device_trouble


def left_bytes(machine: LocalMachine) -> int:
    """Return what the machine tells the coordinator that other programs leave of its device."""
    return machine.measured({}).free_bytes[CARD.uuid]


def test_a_base_that_several_jobs_of_one_process_hold_is_told_once(machine: LocalMachine, meter: FakeMeter):
    base: dict[str, Any] = {"base": held_base("qwen"), "base_bytes": gib(6)}
    rooms = [held(machine.ledger().reserve(sharing(gib(7), job=f"adapter {number}", **base))) for number in range(3)]
    meter.use(CARD.uuid, mine().pid, gib(9))
    for room in rooms:
        machine.ledger().note_measured(room, {CARD.uuid: gib(9)})
    assert left_bytes(machine) == CARD.total_bytes


def test_memory_that_a_job_has_given_back_is_told_as_free_once(machine: LocalMachine, meter: FakeMeter):
    room = held(machine.ledger().reserve(sharing(gib(10))))
    machine.ledger().note_measured(room, {CARD.uuid: gib(10)})
    meter.use(CARD.uuid, mine().pid, gib(2))
    meter.use(CARD.uuid, 1, gib(12))
    assert left_bytes(machine) == CARD.total_bytes - gib(12)


def test_what_the_job_that_has_a_device_alone_uses_is_told_as_free(machine: LocalMachine, meter: FakeMeter):
    held(machine.ledger().reserve(whole()))
    meter.use(CARD.uuid, mine().pid, gib(20))
    assert left_bytes(machine) == CARD.total_bytes
