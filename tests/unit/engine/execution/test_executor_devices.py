"""Stages that need devices: taken through the machine's ledger, measured, and ended if they take too much."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.authoring import PlanBuilder, StageContext, stage
from stoker.cookbooks.command.cookbook import OpenProgramArgs, run
from stoker.core.clock import SystemClock
from stoker.core.device import GIB, Needs
from stoker.core.errors import Cancelled, InvalidPlan, OutOfMemory
from stoker.core.retry import FailureCause
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, FakeMeter, Reservation
from stoker.engine.plan import Plan
from stoker.engine.stage import Stage
from stoker.host.identity import mine
from tests.unit.engine.lab import Flight, Lab, lines_of, quick_folder
from tests.unit.engine.stages import Number, NumberArgs, PaceArgs, number, on_gpu, process_number, wait_for_file
from tests.unit.host.real_processes import wait_until

WAITS = "for _ in $(seq 3000); do [ -e gate ] && break; sleep 0.01; done"


class Rig:
    """A lab with one card, and somebody else on the machine who may hold it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lab = Lab(folder / "lab", devices=("a",))
        self.other = Ledger(self.lab.ledger.folder, clock=SystemClock(), meter=self.lab.meter)
        self.gate = folder / "gate"

    @property
    def meter(self) -> FakeMeter:
        assert isinstance(self.lab.meter, FakeMeter)
        return self.lab.meter

    def somebody_holds(self) -> Reservation:
        ask = DeviceRequest(job="theirs/run", devices=(CandidateDevice(uuid="a", total_bytes=24 * GIB),))
        held = self.other.reserve(ask)
        assert isinstance(held, Reservation)
        return held

    def program(self, body: str = WAITS, **needs: object) -> Plan:
        args = OpenProgramArgs(argv=("/bin/sh", "-c", f"echo $$ > pid; {body}"), folder=str(self.folder))
        wanted = Needs(**{"gpu": 1, **needs})  # type: ignore[arg-type]
        return PlanBuilder("program").start(run, args, id="run", needs=wanted).finish()

    def uses(self, size_bytes: int) -> None:
        """Let the program that runs hold so much of the card."""
        self.meter.use("a", self.pid(), size_bytes)

    def pid(self) -> int:
        """Return the number of the program once it runs."""
        path = self.folder / "pid"
        wait_until(lambda: path.exists() and path.read_text().strip() != "")
        return int(path.read_text())

    def holders(self) -> list[tuple[str, int, int | None]]:
        state = self.other.state()
        holders = [one for device in state.devices for one in device.holders]
        return [(one.entry.job, one.entry.owner.pid, one.share.measured_bytes) for one in holders]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with quick_folder() as folder:
        made = Rig(folder)
        yield made
        made.gate.touch()
        made.lab.close()


def waits(flight: Flight) -> list[str]:
    return [event["waits_for"] for event in flight.events("stage_waiting")]


def test_a_stage_waits_for_somebody_elses_job_and_starts_when_it_ends(rig: Rig) -> None:
    held = rig.somebody_holds()
    rig.gate.touch()
    flight = rig.lab.start(rig.program())
    wait_until(lambda: bool(waits(flight)))
    assert waits(flight) == [f"waits for a: held by job theirs/run (pid {os.getpid()})"]
    rig.other.release(held)
    ran = flight.land()
    assert ran.endings == {"run": "ran"}
    assert rig.holders() == []


def test_what_runs_is_held_by_its_own_process_under_the_jobs_name(rig: Rig) -> None:
    flight = rig.lab.start(rig.program())
    pid = rig.pid()
    wait_until(lambda: rig.holders() == [("run-1/run", pid, None)])
    rig.gate.touch()
    assert flight.land().endings == {"run": "ran"}
    assert rig.holders() == []


def test_stages_of_a_cookbook_take_theirs_the_same_way(rig: Rig) -> None:
    held = rig.somebody_holds()
    plan = PlanBuilder("stage").start(process_number, NumberArgs(value=1), needs=Needs(gpu=1)).finish()
    flight = rig.lab.start(plan)
    wait_until(lambda: bool(waits(flight)))
    rig.other.release(held)
    assert set(flight.land().endings.values()) == {"ran"}


def test_who_waits_for_a_device_holds_nobody_up_who_needs_none(rig: Rig) -> None:
    held = rig.somebody_holds()
    builder = PlanBuilder("both")
    builder.start(on_gpu, PaceArgs(), id="device")
    builder.start(number, NumberArgs(value=2), id="plain")
    flight = rig.lab.start(builder.finish(), max_in_flight=1)
    wait_until(lambda: bool(flight.events("stage_end")))
    assert [event["node"] for event in flight.events("stage_end")] == ["plain"]
    rig.other.release(held)
    assert flight.land().endings == {"device": "ran", "plain": "ran"}


@stage("test/long", inline=True, needs=Needs(cpu=1), timeout_s=60.0)
def long(job: StageContext, args: PaceArgs) -> Number:
    wait_for_file(args.gate, job)
    return job.save(Number, args.value)


def test_a_run_that_has_no_place_for_one_more_leaves_the_device_to_others(rig: Rig) -> None:
    """It may take hours until it could start: whoever is behind it in line goes first."""
    held = rig.somebody_holds()
    builder = PlanBuilder("both")
    builder.start(on_gpu, PaceArgs(), id="device")
    builder.start(long, PaceArgs(gate=str(rig.gate)), id="plain")
    flight = rig.lab.start(builder.finish(), max_in_flight=1)
    wait_until(lambda: bool(flight.events("stage_begin")))
    line = os.path.join(rig.other.folder, "line")
    wait_until(lambda: os.listdir(line) == [])
    rig.other.release(held)
    third = rig.somebody_holds()
    rig.gate.touch()
    wait_until(lambda: bool(os.listdir(line)))
    rig.other.release(third)
    assert flight.land().endings == {"device": "ran", "plain": "ran"}


def test_a_run_in_its_own_way_says_that_it_is_blocked_and_nothing_more(rig: Rig, ledger: str) -> None:
    builder = PlanBuilder("two")
    for value in range(2):
        builder.start(on_gpu, PaceArgs(value=value, gate=str(rig.gate), ledger=ledger), id=f"n{value}")
    flight = rig.lab.start(builder.finish())
    wait_until(lambda: bool(flight.events("stage_blocked")))
    assert [(event["node"], event["short_of"]) for event in flight.events("stage_blocked")] == [("n1", ["gpu"])]
    rig.gate.touch()
    ran = flight.land()
    assert not ran.of_kind("stage_waiting")
    assert lines_of(ledger) == ["0 a", "1 a"]


def test_cancelled_while_waiting_it_ends_and_leaves_the_line(rig: Rig) -> None:
    rig.somebody_holds()
    flight = rig.lab.start(rig.program())
    wait_until(lambda: bool(waits(flight)))
    flight.executor.cancel(Cancelled("interrupted"))
    assert flight.land().endings == {"run": "cancelled"}
    assert os.listdir(os.path.join(rig.other.folder, "line")) == []


def test_nobody_stands_in_line_for_what_another_process_is_making(rig: Rig) -> None:
    plan = PlanBuilder("twins").start(on_gpu, PaceArgs(gate=str(rig.gate)), id="device").finish()
    first = rig.lab.start(plan)
    wait_until(lambda: bool(first.events("stage_begin")))
    twin = Lab(rig.folder / "twin", devices=("a",), store=rig.folder / "lab" / "store")
    twin.ledger = Ledger(rig.other.folder, clock=SystemClock(), meter=rig.meter)
    # Leases name processes: to the second lab the first is another one.
    twin.leases._me = mine().__class__.from_dict({**mine().to_dict(), "start_ticks": 1})
    second = twin.start(plan)
    wait_until(lambda: bool(second.events("stage_waiting")))
    assert "has been running it for " in second.events("stage_waiting")[0]["why"]
    assert os.listdir(os.path.join(rig.other.folder, "line")) == []
    rig.gate.touch()
    assert first.land().endings == {"device": "ran"}
    assert second.land().endings == {"device": "hit"}
    twin.close()


# --- what can never be ---------------------------------------------------------------------------


def test_too_much_memory_of_a_device_is_refused_before_anything_runs(rig: Rig) -> None:
    with pytest.raises(InvalidPlan, match=r"run: needs 30\.0 GiB of a GPU's memory: a has 24\.0 GiB, and 30\.0 GiB"):
        rig.lab.run(rig.program(vram_gib=30.0))
    assert not (rig.folder / "pid").exists()


@pytest.mark.parametrize(
    "needs",
    [Needs(gpu=1, shares=True), Needs(vram_gib=1.0), Needs(shares=True), Needs(gpu=1, vram_gib=-1.0)],
    ids=["shares-what", "no-device", "shares-nothing", "negative"],
)
def test_needs_that_make_no_sense_are_refused_where_they_are_declared(needs: Needs) -> None:
    def declare() -> Stage:
        @stage("test/odd", needs=needs)
        def odd(job: StageContext) -> Number:
            return job.save(Number, 1)

        return odd

    with pytest.raises(ValueError, match="test/odd"):
        declare()


# --- measured ------------------------------------------------------------------------------------


def test_the_peak_is_told_kept_with_the_result_and_remembered(rig: Rig) -> None:
    flight = rig.lab.start(rig.program())
    rig.uses(6 * GIB)
    wait_until(lambda: [one[2] for one in rig.holders()] == [6 * GIB])
    rig.uses(2 * GIB)
    rig.gate.touch()
    ran = flight.land()
    (end,) = ran.of_kind("stage_end")
    assert (end["peak_gpu_bytes"], end["devices"]) == (6 * GIB, ["a"])
    (product,) = ran["run"].products
    assert product.record.body["peak_gpu_bytes"] == 6 * GIB
    # The next time it waits it hears what would let it start.
    held = rig.somebody_holds()
    again = rig.lab.start(rig.program())
    wait_until(lambda: bool(waits(again)))
    (event,) = again.events("stage_waiting")
    assert event["why"].endswith(
        "; it took 6.0 GiB of one so far, so with vram=7G shares=true it could run beside others that share"
    )
    rig.other.release(held)
    again.land()


def test_a_stage_without_devices_has_nothing_to_say_about_them(rig: Rig) -> None:
    ran = rig.lab.run(PlanBuilder("plain").start(number, NumberArgs(value=1)).finish())
    (end,) = ran.of_kind("stage_end")
    assert not {"peak_gpu_bytes", "devices"} & set(end)
    assert not os.path.exists(rig.lab.ledger.folder)


def test_more_than_a_fifth_too_much_is_a_warning(rig: Rig) -> None:
    flight = rig.lab.start(rig.program(vram_gib=4.0, shares=True))
    rig.uses(5 * GIB)
    wait_until(lambda: bool(flight.events("warning")))
    rig.gate.touch()
    ran = flight.land()
    assert ran.endings == {"run": "ran"}
    assert [event["message"] for event in ran.of_kind("warning")] == [
        "run: it holds 5.0 GiB of a, and was promised 4.0 GiB"
    ]


def test_beyond_the_limit_it_is_ended_as_out_of_memory(rig: Rig) -> None:
    rig.lab.vram_limit_percent = 150
    flight = rig.lab.start(rig.program(vram_gib=4.0, shares=True))
    rig.uses(7 * GIB)
    ran = flight.land()
    failed = ran["run"]
    assert failed.cause is FailureCause.OOM_DEVICE
    assert failed.message == (
        "out of GPU memory: it holds 7.0 GiB of a, and was promised 4.0 GiB, and 150 % of that are the limit"
    )
    assert isinstance(ran.result.error, OutOfMemory)
    assert rig.holders() == []
