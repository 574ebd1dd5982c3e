"""Explanations of a queue that lives: what the rows and matching say, brought together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.coordinator.http.overview import Explanations
from stoker.coordinator.queue.commands import CloseMachine, MachineCloseMode, Write
from stoker.core.job import JobSpec, job_id
from stoker.core.leases import FleetTimes
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Decline, Hello, Renewal
from tests.contract.queue_driving import GIB, Driven, order
from tests.unit.coordinator.fleets import box, card


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Driven]:
    driven = Driven(f"sqlite:///{tmp_path}/queue.db")
    driven.join("m1", slots=1)
    yield driven
    driven.close()


@pytest.fixture
def explanations(fleet: Driven) -> Explanations:
    return Explanations(fleet.queue, fleet.clock, FleetTimes())


def ran(fleet: Driven, *names: str) -> None:
    """Let jobs run here, a minute each."""
    fleet.submit(*(order(name) for name in names))
    for _ in names:
        (grant,) = fleet.claim()
        fleet.finish(grant)


def test_a_waiting_job_is_told_who_is_before_it_and_when_it_may_start(fleet: Driven, explanations: Explanations):
    ran(fleet, "a", "b", "c")
    fleet.submit(order("first"), order("second"), order("third"))
    (grant,) = fleet.claim()
    fleet.start(grant)
    started_s = fleet.clock.wall_s()
    found = explanations.explain("third")
    assert found.verdict == (
        "pending, queue position 2: expected on m1 in about 2m01s. m1: taken by first for about 1m00s"
    )
    # The runs took a minute and a second; estimates are in steps of a tenth.
    assert found.starts_s is not None
    assert found.starts_s == pytest.approx(started_s + 122, rel=0, abs=6)
    assert found.based_on == "median of 3 runs"
    assert found.expected is not None
    assert (found.expected.machine, found.expected.starts_s) == ("m1", found.starts_s)
    assert found.expected.ends_s == pytest.approx(found.starts_s + 61, abs=3)
    assert found.changes == ("starts now if m1 has 2 slots instead of 1",)
    assert explanations.explain("first").verdict == "runs on m1 for about 1m00s"


def test_a_jobs_own_progress_says_when_it_ends(fleet: Driven, explanations: Explanations):
    fleet.submit(order("first"))
    (grant,) = fleet.claim()
    fleet.start(grant)
    fleet.clock.advance(49.0)
    fleet.renew(grant, step=50, of=100)
    # Renewals live in memory, and are written down between two commands.
    fleet.submit(order("second"))
    fleet.submit(order("third"))
    found = explanations.explain("first")
    assert found.verdict == "runs on m1 for about 52s"
    assert found.based_on == "its own progress, 50 of 100"


def test_programs_are_alike_only_by_name(fleet: Driven, explanations: Explanations):
    fleet.submit(*(order("long", number, recipe="command") for number in (1, 2, 3)))
    for _ in range(3):
        (grant,) = fleet.claim()
        fleet.finish(grant)
    fleet.submit(order("other", recipe="command"), order("long", 4, recipe="command"))
    assert explanations.explain("other").based_on == ""
    assert explanations.explain("long/4").based_on == "median of 3 runs"


def test_a_job_that_comes_after_another_is_in_no_line(fleet: Driven, explanations: Explanations):
    fleet.submit(order("prep"), order("train", after=("prep",)))
    found = explanations.explain("train")
    assert (found.verdict, found.place_in_line) == ("waits for prep (pending)", None)
    assert found.changes == ("starts once prep has completed (pending)",)


def test_a_decline_is_told_with_its_reason(fleet: Driven, explanations: Explanations):
    fleet.submit(order("first"))
    (grant,) = fleet.claim()
    said = Decline(attempt=grant.attempt, epoch=grant.epoch, generation=grant.generation, reason="folder_missing")
    fleet.ask(Write(job=grant.job, said=said))
    (decline,) = explanations.explain("first").declines
    assert decline["machine"] == "m1"


def test_closed_and_silent_machines_are_named(fleet: Driven, explanations: Explanations):
    fleet.submit(order("first"))
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.DRAIN, why="new disk", for_s=3600))
    (change,) = [one for one in explanations.explain("first").changes if "opened" in one]
    assert change.startswith("starts now if machine m1, which is drained: new disk for about")
    assert [one.state for one in explanations.machines()] == ["drained"]
    fleet.sweep_late()
    assert "may start if m1 comes back" in explanations.explain("first").changes[-1]
    (machine,) = explanations.machines("m1")
    assert machine.state == "silent"
    assert explanations.machines("nobody") == ()


@pytest.mark.parametrize("leaves", [False, True], ids=["silent", "left"])
def test_what_a_worker_declared_holds_after_it_is_gone(fleet: Driven, explanations: Explanations, leaves: bool):
    found = box("small", card("GPU-1"), cpu_cores=16, ram_total_bytes=64 * GIB)
    declared = {"cores": 2, "ram_bytes": 4 * GIB, "gpus": 0}
    start = {"worker": "small", "incarnation": "incarnation-small", "capability_digest": "small"}
    fleet.ask(Hello.model_validate({**start, "capability": found.to_dict(), "declared": declared}))
    (here,) = explanations.machines("small")
    if leaves:
        fleet.ask(Renewal(worker="small", incarnation="incarnation-small", is_leaving=True))
    else:
        fleet.sweep_late()
    (gone,) = explanations.machines("small")
    assert gone.state == ("left" if leaves else "silent")
    assert (gone.cores, gone.ram_bytes, gone.slots) == (here.cores, here.ram_bytes, here.slots) == (2, 4 * GIB, 1)
    assert gone.devices[0]["closed"] == here.devices[0]["closed"] == "the worker was started for 0 devices"


def test_a_machine_shows_what_it_holds(fleet: Driven, explanations: Explanations):
    fleet.submit(order("first"))
    fleet.claim()
    (machine,) = explanations.machines()
    assert (machine.state, machine.slots, machine.held, machine.jobs) == ("busy", 1, 1, ("first",))


def forecast(fleet: Driven, explanations: Explanations, *jobs: JobSpec) -> list[str]:
    asked = Submission(jobs=jobs, dry_run=True, submitter="me@desk")
    return [one.forecast for one in explanations.forecast(asked, fleet.submit(*jobs, dry_run=True)).jobs]


def test_a_dry_run_says_what_would_become_of_each_job(fleet: Driven, explanations: Explanations):
    fleet.submit(order("known"))
    needs_gpu = {"wish": "require", "vram_bytes": 30 * GIB}
    found = forecast(
        fleet,
        explanations,
        order("known"),
        order("urgent", priority=5),
        order("train", after=("known",)),
        order("big", requirements=needs_gpu),
        order("latest"),
    )
    assert found == [
        "",
        "pending, queue position 1: starts with the next claim of m1",
        "waits for known (pending)",
        "never on this fleet: needs a cuda device, no machine has one",
        "pending, queue position 4: expected on m1",
    ]
    assert fleet.reader.counts()["pending"] == 1


def program(name: str, tree: str, argv: tuple[str, ...]) -> JobSpec:
    args = {"argv": [*argv, name]}
    id = job_id(recipe="command", schema_version=1, args=args)
    return order(name, recipe="command", code_tree=tree, id=id, args=args, identity=args)


def test_a_dry_run_knows_machines_that_run_only_certain_code(fleet: Driven, explanations: Explanations):
    tree, other = "a" * 64, "b" * 64
    fleet.join("m1", slots=1, accepts=(tree,))
    script, shell = ("python", "train.py"), ("sh", "-c", "id")
    taken, denied, foreign, recipe = forecast(
        fleet,
        explanations,
        program("taken", tree, script),
        program("denied", other, script),
        program("foreign", tree, shell),
        order("recipe"),
    )
    assert taken == "pending, queue position 1: starts with the next claim of m1"
    assert denied == f"never on this fleet: m1: accepts only {tree[:12]}, and this is tree {other[:12]}"
    only = f"never on this fleet: m1: accepts only {tree[:12]}"
    assert foreign == f"{only}, and this starts a program outside of its tree"
    assert recipe.startswith("pending, queue position 2")


def test_jobs_that_can_never_run_hold_nobody_up(fleet: Driven, explanations: Explanations):
    fleet.submit(*(order(f"huge{number}", requirements={"wish": "require"}) for number in range(3)), order("small"))
    assert explanations.explain("small").place_in_line == 1
    assert forecast(fleet, explanations, order("next")) == ["pending, queue position 2: expected on m1"]


def test_a_worker_that_left_is_told_of_and_ranks_nowhere(fleet: Driven, explanations: Explanations):
    fleet.submit(order("one"), order("big", requirements={"wish": "require"}))
    fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", is_leaving=True))
    assert [one.state for one in explanations.machines()] == ["left"]
    found = explanations.explain("one")
    assert (found.machines, found.never) == ((), "")
    assert "may start if m1 comes back (away: its worker left" in found.changes[0]
    assert explanations.explain("big").never == "needs a cuda device, no machine has one"
