from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.device import GIB, Backend, Device, Needs
from stoker.core.errors import BadInput, InternalError, StokerError
from stoker.core.frozen import changed
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, FakeMeter
from stoker.engine.device_gate import AttemptDevices, DeviceWait
from stoker.engine.ledger_gate import DeviceGrant, DeviceQueueEntry, LedgerGate, read_limit
from stoker.host.identity import ProcessIdentity, mine, of_pid
from tests.unit.engine.lab import card

ONE = Needs(gpu=1)


def part(gib: float) -> Needs:
    return Needs(gpu=1, vram_gib=gib, shares=True)


class Machine:
    """Cards with a ledger of their own, and as many runs as a test wants."""

    def __init__(self, folder: Path, *devices: Device) -> None:
        self.folder = folder / "ledger"
        self.devices = devices
        self.meter = FakeMeter({device.uuid: device.total_bytes or 0 for device in devices})
        self.gates: list[LedgerGate] = []
        self.wakes: dict[LedgerGate, threading.Event] = {}

    def gate(self, **more: Any) -> LedgerGate:
        woken = threading.Event()
        # Each with a ledger object of its own, as two processes have it.
        ledger = Ledger(str(self.folder), clock=SystemClock(), meter=self.meter)
        made = LedgerGate(
            devices=lambda: self.devices,
            ledger=lambda: ledger,
            meter=lambda: self.meter,
            environment={},
            wake=woken.set,
            **{"clock": SystemClock(), "measures_every_s": 0.005, **more},
        )
        self.gates.append(made)
        self.wakes[made] = woken
        return made

    def line_up(self, free_bytes: Callable[[str], int | None], woken: threading.Event) -> DeviceQueueEntry:
        """Stand in line without a gate."""
        return DeviceQueueEntry(
            Ledger(str(self.folder), clock=SystemClock(), meter=self.meter),
            DeviceRequest(job="late/run", devices=(CandidateDevice(uuid="GPU-1", total_bytes=24 * GIB),)),
            wake=woken.set,
            free_bytes=free_bytes,
            ours=list,
            warn=print,
            clock=SystemClock(),
        )

    def ask(self, gate: LedgerGate, needs: Needs, *, job: str = "job/run") -> AttemptDevices | DeviceWait:
        """Ask as the loop does: again whenever it is woken, until it is known how things stand."""
        deadline_s = time.monotonic() + 30
        while True:
            self.wakes[gate].clear()
            answer = gate.take(needs, job=job)
            if isinstance(answer, AttemptDevices) or answer.is_known:
                return answer
            assert self.wakes[gate].wait(deadline_s - time.monotonic())

    def take(self, gate: LedgerGate, needs: Needs, *, job: str = "job/run") -> AttemptDevices:
        answer = self.ask(gate, needs, job=job)
        assert isinstance(answer, AttemptDevices), answer
        return answer

    def wait(
        self, gate: LedgerGate, needs: Needs, *, until: Callable[[DeviceWait], bool] = lambda _wait: True
    ) -> DeviceWait:
        return self._later(
            gate, needs, lambda answer: answer if isinstance(answer, DeviceWait) and until(answer) else None
        )

    def get(self, gate: LedgerGate, needs: Needs) -> AttemptDevices:
        """Wait for devices."""
        return self._later(gate, needs, lambda answer: answer if isinstance(answer, AttemptDevices) else None)

    def _later(self, gate: LedgerGate, needs: Needs, wanted: Callable[[AttemptDevices | DeviceWait], Any]) -> Any:
        deadline_s = time.monotonic() + 30
        while (found := wanted(answer := self.ask(gate, needs))) is None:
            assert time.monotonic() < deadline_s, answer
            self.wakes[gate].wait(0.05)
        return found

    @property
    def owners(self) -> list[ProcessIdentity]:
        state = Ledger(str(self.folder), clock=SystemClock(), meter=self.meter).state()
        return [holder.entry.owner for device in state.devices for holder in device.holders]

    @property
    def line(self) -> list[str]:
        return os.listdir(self.folder / "line")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, card("GPU-1"))
    yield made
    for gate in made.gates:
        gate.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, card("GPU-1"), card("GPU-2"))
    yield made
    for gate in made.gates:
        gate.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True) as process:
        yield process
        process.kill()


# --- what can never be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (Needs(), ""),
        (Needs(gpu=1), ""),
        (Needs(gpu=2, vram_gib=24), ""),
        (Needs(gpu=3), "needs 3 GPUs, this machine offers 2"),
        (Needs(gpu=1, vram_gib=25), "needs 25.0 GiB of a GPU's memory: GPU-1 has 24.0 GiB, and 25.0 GiB are needed"),
        (part(20.39), ""),
        (part(20.5), ""),
        (part(25), "needs 25.0 GiB of a GPU's memory: GPU-1 has 24.0 GiB, and 25.0 GiB are needed"),
    ],
    ids=["nothing", "one", "two", "three", "too-large", "part", "part-of-no-other", "too-large-a-part"],
)
def test_what_can_never_be_met_is_told_with_both_numbers(pair: Machine, needs: Needs, why: str) -> None:
    assert pair.gate().never(needs) == why


def test_a_machine_without_devices_says_so(tmp_path: Path) -> None:
    gate = Machine(tmp_path).gate()
    assert gate.never(Needs(gpu=1)) == "needs 1 GPU, this machine offers 0"


def test_who_needs_no_device_asks_nobody() -> None:
    def nobody() -> Any:
        raise AssertionError

    gate = LedgerGate(devices=nobody, ledger=nobody, meter=nobody, environment={}, wake=nobody, clock=SystemClock())
    assert gate.never(Needs(cpu=64, memory_gib=1e6)) == ""
    assert gate.noticed() == []
    gate.wait_only_for(set())
    gate.close()


def test_a_device_of_unknown_size_is_given_whole(tmp_path: Path) -> None:
    machine = Machine(tmp_path, card("GPU-1", total_bytes=None))
    first, second = machine.gate(), machine.gate()
    assert first.never(ONE) == ""
    taken = machine.take(first, ONE)
    assert machine.wait(second, ONE).place == 1
    first.give_back(taken)
    machine.get(second, ONE)
    second.close()


# --- taking and waiting --------------------------------------------------------------------------


def test_two_runs_never_have_the_same_device(pair: Machine) -> None:
    first, second = pair.gate(), pair.gate()
    mine_, yours = pair.take(first, ONE), pair.take(second, ONE)
    assert {*mine_.devices, *yours.devices} == {"GPU-1", "GPU-2"}
    assert mine_.variables == {"CUDA_VISIBLE_DEVICES": mine_.devices[0]}
    assert isinstance(pair.ask(second, ONE), DeviceWait)


def test_both_devices_or_none(pair: Machine) -> None:
    first, second = pair.gate(), pair.gate()
    one = pair.take(first, ONE)
    assert isinstance(pair.ask(second, Needs(gpu=2)), DeviceWait)
    first.give_back(one)
    assert pair.get(second, Needs(gpu=2)).devices == ("GPU-1", "GPU-2")


def test_who_waits_is_told_for_what_and_since_when(machine: Machine) -> None:
    first, second = machine.gate(), machine.gate()
    machine.take(first, ONE, job="train/run")
    wait = machine.wait(second, ONE)
    assert wait.waits_for == f"waits for GPU-1: held by job train/run (pid {os.getpid()})"
    assert re.match(rf"{re.escape(wait.waits_for)} for \d+(\.\d)?s\b", wait.why)
    assert not wait.is_ours


def test_who_waits_is_woken_by_a_release(machine: Machine) -> None:
    first, second = machine.gate(), machine.gate()
    taken = machine.take(first, ONE)
    machine.wait(second, ONE)
    machine.wakes[second].clear()
    first.give_back(taken)
    # The net under it is five seconds wide.
    assert machine.wakes[second].wait(4)
    assert isinstance(machine.ask(second, ONE), AttemptDevices)


def test_who_waits_is_woken_by_the_end_of_the_process_that_does_the_work(
    machine: Machine, sleeper: subprocess.Popen[bytes]
) -> None:
    first, second = machine.gate(), machine.gate()
    worker = of_pid(sleeper.pid)
    assert worker is not None
    machine.take(first, ONE).started(worker)
    assert machine.owners == [worker]
    assert f"(pid {sleeper.pid})" in machine.wait(second, ONE).waits_for
    machine.wakes[second].clear()
    sleeper.kill()
    sleeper.wait()
    assert machine.wakes[second].wait(4)
    assert isinstance(machine.ask(second, ONE), AttemptDevices)


def test_first_come_first_served_and_everybody_sees_his_place(machine: Machine) -> None:
    first, second, third = (machine.gate() for _ in range(3))
    taken = machine.take(first, ONE)
    assert machine.wait(second, ONE).place == 1
    wait = machine.wait(third, ONE)
    assert (wait.place, wait.waits_for.endswith(", queue position 2")) == (2, True)
    first.give_back(taken)
    held = machine.get(second, ONE)
    machine.wait(third, ONE, until=lambda wait: wait.place == 1)
    second.give_back(held)
    machine.get(third, ONE)


def test_who_leaves_the_line_lets_others_pass(machine: Machine) -> None:
    first, second, third = (machine.gate() for _ in range(3))
    taken = machine.take(first, ONE)
    machine.wait(second, ONE)
    machine.wait(third, ONE)
    second.wait_only_for(set())
    machine.wait(third, ONE, until=lambda wait: wait.place == 1)
    first.give_back(taken)
    machine.get(third, ONE)


def test_what_was_granted_to_who_left_meanwhile_is_free_again(machine: Machine) -> None:
    woken = threading.Event()
    line = machine.line_up(machine.meter.free_bytes, woken)
    assert woken.wait(30)
    assert isinstance(line.answer(), DeviceGrant)
    line.leave()
    assert isinstance(line.answer(), DeviceWait)
    assert isinstance(machine.ask(machine.gate(), ONE), AttemptDevices)


def test_what_was_granted_and_then_could_not_be_measured_is_free_again(machine: Machine) -> None:
    def broken(_uuid: str) -> int | None:
        message = "a meter raised"
        raise RuntimeError(message)

    woken = threading.Event()
    line = machine.line_up(broken, woken)
    assert woken.wait(30)
    with pytest.raises(InternalError, match="a meter raised"):
        line.answer()
    assert isinstance(machine.ask(machine.gate(), ONE), AttemptDevices)


def test_a_driver_that_does_not_answer_is_worth_telling_after_a_moment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(machine.meter, "free_bytes", lambda _uuid: 24 * GIB if answers.wait(30) else None)
    clock = FakeClock()
    gate = machine.gate(clock=clock)
    first = gate.take(ONE, job="job/run")
    assert isinstance(first, DeviceWait)
    assert not first.is_known
    clock.advance(1.0)
    later = gate.take(ONE, job="job/run")
    assert isinstance(later, DeviceWait)
    assert (later.is_known, later.waits_for) == (True, "waits for the driver's answer")
    answers.set()
    machine.get(gate, ONE)


def test_a_place_is_kept_for_those_who_need_the_same(machine: Machine) -> None:
    first, second = machine.gate(), machine.gate()
    taken = machine.take(first, ONE)
    machine.wait(second, ONE)
    second.wait_only_for({ONE})
    assert len(machine.line) == 1
    first.give_back(taken)
    machine.get(second, ONE)
    assert machine.line == []


def test_a_run_that_is_in_its_own_way_has_nothing_to_tell(machine: Machine) -> None:
    gate = machine.gate()
    machine.take(gate, ONE)
    assert machine.wait(gate, ONE).is_ours


def test_closing_leaves_the_line_and_what_is_held_stays_with_its_process(
    machine: Machine, sleeper: subprocess.Popen[bytes]
) -> None:
    first, second, third = (machine.gate() for _ in range(3))
    worker = of_pid(sleeper.pid)
    assert worker is not None
    machine.take(first, ONE).started(worker)
    machine.wait(second, ONE)
    second.close()
    assert machine.line == []
    first.close()
    assert machine.wait(third, ONE).place == 1


def test_giving_back_twice_or_late_is_harmless(machine: Machine) -> None:
    first, second = machine.gate(), machine.gate()
    taken = machine.take(first, ONE)
    first.give_back(taken)
    first.give_back(taken)
    machine.take(second, ONE)
    taken.started(mine())
    first.give_back(taken)
    assert machine.owners == [mine()]
    assert isinstance(machine.ask(first, ONE), DeviceWait)


def test_a_ledger_that_cant_be_used_is_an_error_and_not_a_grant(machine: Machine) -> None:
    machine.folder.parent.mkdir(exist_ok=True)
    machine.folder.write_text("no folder")
    gate = machine.gate()
    with pytest.raises(StokerError):
        machine.ask(gate, ONE)


def test_a_bug_on_the_way_is_told_and_nobody_waits_for_ever(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_uuid: str) -> int | None:
        message = "a meter raised"
        raise RuntimeError(message)

    monkeypatch.setattr(machine.meter, "free_bytes", broken)
    with pytest.raises(InternalError, match="waiting for devices: RuntimeError: a meter raised"):
        machine.ask(machine.gate(), ONE)


# --- sharing -------------------------------------------------------------------------------------


def test_those_who_share_are_side_by_side_as_far_as_the_card_is_shared_out(machine: Machine) -> None:
    first, second, third = (machine.gate() for _ in range(3))
    for gate in (first, second):
        taken = machine.take(gate, part(10.0), job="a/run")
        assert taken.variables["STOKER_VRAM_BYTES"] == str(10 * GIB)
    wait = machine.wait(third, part(1.0))
    pid = os.getpid()
    assert wait.waits_for == (
        f"waits for 1.0 GiB of GPU-1: 409.0 MiB left to share, held by job a/run (pid {pid}), job a/run (pid {pid})"
    )


def test_members_of_a_shared_process_take_their_base_once_and_those_of_another_one_take_another(
    machine: Machine,
) -> None:
    member = Needs(gpu=1, vram_gib=10.0, base_gib=8.0, shares=True, share_key="one")
    gate = machine.gate()
    taken = [machine.take(gate, member, job=f"job/{number}") for number in range(6)]
    assert isinstance(machine.ask(gate, member), DeviceWait)
    gate.wait_only_for(frozenset())
    for one in taken[2:]:
        gate.give_back(one)
    # 12 of 20.4 GiB are held: enough for a member, not for one more base.
    another = changed(member, share_key="another")
    assert isinstance(machine.ask(gate, another), DeviceWait)
    gate.give_back(taken[1])
    machine.get(gate, another)


def test_who_has_a_base_and_is_too_large_to_share_gets_a_device_to_itself(machine: Machine) -> None:
    large = Needs(gpu=1, vram_gib=22.0, base_gib=20.0, shares=True, share_key="one")
    gate = machine.gate()
    assert gate.never(large) == ""
    machine.take(gate, large)
    assert isinstance(machine.ask(gate, part(1.0)), DeviceWait)


def test_who_does_not_share_waits_for_those_who_do_and_the_other_way_round(machine: Machine) -> None:
    first, second, third = (machine.gate() for _ in range(3))
    some = machine.take(first, part(1.0))
    machine.wait(second, ONE)
    first.give_back(some)
    whole = machine.get(second, ONE)
    machine.wait(third, part(1.0))
    second.give_back(whole)
    machine.get(third, part(1.0))


def test_a_full_device_is_waited_for_although_nobody_of_ours_holds_it(machine: Machine) -> None:
    machine.meter.use("GPU-1", os.getpid(), 20 * GIB)
    wait = machine.wait(machine.gate(), Needs(gpu=1, vram_gib=10))
    assert wait.waits_for == "waits: GPU-1 has 4.0 GiB free by the driver's measure, and 10.0 GiB are needed"


# --- measured ------------------------------------------------------------------------------------


def noticed(gate: LedgerGate) -> list[tuple[str, bool]]:
    """Wait for news of a gate."""
    deadline_s = time.monotonic() + 30
    while not (told := gate.noticed()):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return [(one.message, one.is_over_limit) for one in told]


def test_what_is_measured_is_recorded_and_a_fifth_too_much_is_said_once(
    machine: Machine, sleeper: subprocess.Popen[bytes]
) -> None:
    gate = machine.gate()
    worker = of_pid(sleeper.pid)
    assert worker is not None
    taken = machine.take(gate, part(5.0))
    machine.meter.use("GPU-1", sleeper.pid, 6 * GIB)
    taken.started(worker)
    deadline_s = time.monotonic() + 30
    while taken.peak_bytes != 6 * GIB:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    assert gate.noticed() == []
    machine.meter.use("GPU-1", sleeper.pid, 7 * GIB)
    assert noticed(gate) == [("it holds 7.0 GiB of GPU-1, and was promised 5.0 GiB", False)]
    machine.meter.use("GPU-1", sleeper.pid, 8 * GIB)
    while taken.peak_bytes != 8 * GIB:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    assert gate.noticed() == []
    gate.give_back(taken)


def test_beyond_the_limit_it_is_said_that_it_has_to_end(machine: Machine, sleeper: subprocess.Popen[bytes]) -> None:
    gate = machine.gate(limit_percent=150)
    worker = of_pid(sleeper.pid)
    assert worker is not None
    taken = machine.take(gate, part(4.0))
    machine.meter.use("GPU-1", sleeper.pid, 6 * GIB + 1)
    taken.started(worker)
    message = "it holds 6.0 GiB of GPU-1, and was promised 4.0 GiB, and 150 % of that are the limit"
    assert noticed(gate) == [(message, True)]
    gate.give_back(taken)


@pytest.mark.parametrize(("text", "limit"), [("", None), ("  ", None), ("150", 150), ("120 %", 120), ("100%", 100)])
def test_the_limit_is_a_percentage(text: str, limit: int | None) -> None:
    assert read_limit(text) == limit


@pytest.mark.parametrize("text", ["much", "99", "-150", "1.5", "1e3", "150%%", "\u0661\u0665\u0660", "100001"])
def test_another_limit_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="STOKER_VRAM_LIMIT"):
        read_limit(text)


def test_a_shared_processs_memory_is_shared_out_and_what_its_members_took_beside_the_base_is_known(
    machine: Machine, sleeper: subprocess.Popen[bytes]
) -> None:
    gate = machine.gate()
    worker = of_pid(sleeper.pid)
    assert worker is not None
    needs = Needs(gpu=1, vram_gib=8.0, base_gib=6.0, shares=True, share_key="llama")
    machine.meter.use("GPU-1", sleeper.pid, 11 * GIB)
    first, second = (machine.take(gate, needs, job=job) for job in ("one", "two"))
    for taken in (first, second):
        taken.started(worker)
    deadline_s, size_bytes = time.monotonic() + 30, 11 * GIB
    # Only what is more than before is told; the second one has come since the first look.
    while min(taken.beside_base[0] for taken in (first, second)) < 4 * GIB:
        assert time.monotonic() < deadline_s
        size_bytes += 1
        machine.meter.use("GPU-1", sleeper.pid, size_bytes)
        time.sleep(0.01)
    assert {taken.beside_base[1] // GIB for taken in (first, second)} == {5}
    assert gate.noticed() == []
    for taken in (first, second):
        gate.give_back(taken)


def test_a_backend_selects_among_the_devices_of_a_machine(tmp_path: Path) -> None:
    cuda, rocm = card("GPU-1"), card("FAKE-rocm-0", backend=Backend.ROCM, index=0)
    machine = Machine(tmp_path, cuda, rocm)
    gate = machine.gate()
    rocm_needs = Needs(gpu=1, gpu_backend="rocm")
    try:
        taken = machine.take(gate, rocm_needs)
        assert (taken.devices, taken.variables) == ((rocm.uuid,), {"HIP_VISIBLE_DEVICES": "0"})
        assert isinstance(machine.ask(gate, rocm_needs), DeviceWait)
        assert machine.take(gate, Needs(gpu=1)).devices == (cuda.uuid,)
        assert gate.never(Needs(gpu=2)) == gate.never(rocm_needs) == ""
        assert gate.never(Needs(gpu=2, gpu_backend="rocm")) == "needs 2 rocm GPUs, this machine offers 1"
        assert gate.never(Needs(gpu=1, gpu_backend="metal")) == "needs 1 metal GPU, this machine offers 0"
    finally:
        gate.close()
