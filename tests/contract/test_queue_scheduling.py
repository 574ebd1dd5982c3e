"""The queue grants what the scheduler decides: the better machine, shares, calls, and what a restart keeps."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.coordinator.queue.commands import CloseMachine, Declare, MachineCloseMode, OpenMachine, RequeueJobs, Sweep
from stoker.core.capability import Capability
from stoker.core.device import MIB, MemoryType
from stoker.core.frozen import changed
from stoker.core.machine import Cluster, Node
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    Claim,
    ClaimResponse,
    Decline,
    Grant,
    Hello,
    LeaseReport,
    Renewal,
)
from stoker.scheduler.calls import ANSWER_S
from stoker.scheduler.scheduler import Scheduler
from tests.contract.queue_driving import GIB, Driven, order
from tests.contract.queue_words import say, token
from tests.unit.coordinator.fleets import box, card
from tests.unit.scheduler.fleets import BOX, DESKTOP, EDGE

HOUR_S = 3600.0
FAST, SLOW = "NVIDIA H100", "NVIDIA GeForce GTX 1080"
ON_DEVICE: dict[str, Any] = {"wish": "require", "vram_bytes": 4 * GIB, "ram_bytes": GIB}


class Called:
    """The machines that the queue called since this was last looked at."""

    def __init__(self, fleet: Driven) -> None:
        self._machines: set[str] = set()
        fleet.queue.on_wish(self._machines.update)

    def take(self) -> set[str]:
        taken = set(self._machines)
        self._machines.clear()
        return taken


def join(fleet: Driven, name: str, device: str = "", *, slots: int = 1) -> None:
    hello(fleet, box(name, *([card(f"GPU-{name}", name=device)] if device else []), ram_gib=64), slots=slots)


def hello(fleet: Driven, found: Capability, *, slots: int | None = 1) -> None:
    said = Hello(
        worker=found.hostname,
        incarnation=f"incarnation-{found.hostname}",
        capability=found.to_dict(),
        capability_digest=found.hostname,
        slots=slots,
    )
    fleet.ask(said)


def ask(fleet: Driven, name: str) -> ClaimResponse:
    request_id = f"ask-{name}-{fleet.clock.monotonic_s()}"
    answer = fleet.ask(Claim(request_id=request_id, worker=name, incarnation=f"incarnation-{name}"))
    assert isinstance(answer, ClaimResponse)
    return answer


def scheduler_of(fleet: Driven) -> Scheduler:
    scheduler = fleet.queue._writer._setting.scheduler
    assert isinstance(scheduler, Scheduler)
    return scheduler


@pytest.mark.parametrize("first", ["fast", "slow"])
def test_of_two_idle_machines_the_fast_one_gets_the_job_whoever_asks_first(fleet: Driven, first: str) -> None:
    join(fleet, "fast", FAST)
    join(fleet, "slow", SLOW)
    called = Called(fleet)
    for name in sorted(("fast", "slow"), key=lambda name: name != first):
        assert not ask(fleet, name).grants
    fleet.submit(order("one", requirements=ON_DEVICE))
    assert called.take() == {"fast"}
    if first == "slow":
        held = ask(fleet, "slow")
        assert held.waiting == {"better_machine_free": 1}
        assert held.next_s is not None, "a worker that ends when nothing is left has to wait for this"
    assert [grant.spec.name for grant in ask(fleet, "fast").grants] == ["one"]


def test_a_host_that_a_job_prefers_gets_it_whenever_it_is_free(fleet: Driven) -> None:
    for name in ("a", "b", "c"):
        join(fleet, name, FAST)
        ask(fleet, name)
    called = Called(fleet)
    for number in (1, 2, 3):
        fleet.submit(order("mine", number, requirements=ON_DEVICE, prefer_hosts=("b",)))
        assert called.take() == {"b"}
        assert not ask(fleet, "a").grants
        (grant,) = ask(fleet, "b").grants
        fleet.finish(grant)
        assert not ask(fleet, "b").grants


def test_the_host_of_the_higher_priority_gets_a_job_whenever_it_is_free(fleet: Driven) -> None:
    nodes = [Node(name=name, host=name, priority=priority) for name, priority in (("a", 0), ("b", 5))]
    fleet.ask(Declare(cluster=Cluster(nodes=tuple(nodes))))
    for name in ("a", "b"):
        join(fleet, name)
        ask(fleet, name)
    called = Called(fleet)
    fleet.submit(order("one"))
    assert called.take() == {"b"}
    assert not ask(fleet, "a").grants
    assert ask(fleet, "b").grants


def test_what_a_machine_keeps_of_its_ram_is_granted_to_no_job(fleet: Driven) -> None:
    join(fleet, "m1", slots=2)
    fleet.submit(order("large", requirements={"ram_bytes": 60 * GIB}))
    assert ask(fleet, "m1").waiting == {"ram": 1}, "it has 64 GiB, and its worker would admit 58"
    fleet.submit(order("smaller", requirements={"ram_bytes": 58 * GIB}))
    assert [grant.spec.name for grant in ask(fleet, "m1").grants] == ["smaller"]


def test_a_parked_worker_is_called_when_a_lease_on_its_machine_ends(fleet: Driven) -> None:
    join(fleet, "m1", slots=2)
    fleet.submit(*(order("large", number, requirements={"ram_bytes": 40 * GIB}) for number in (1, 2)))
    (grant,) = ask(fleet, "m1").grants
    assert ask(fleet, "m1").waiting == {"ram": 1}
    called = Called(fleet)
    fleet.finish(grant)
    assert called.take() == {"m1"}
    assert ask(fleet, "m1").grants


def test_a_worker_that_is_asked_for_nothing_new_is_not_called(fleet: Driven) -> None:
    for name in ("m1", "m2"):
        join(fleet, name)
    fleet.submit(order("one", requirements=ON_DEVICE))
    for name in ("m1", "m2"):
        assert ask(fleet, name).waiting == {"no_device": 1}
    called = Called(fleet)
    for _ in range(5):
        fleet.ask(Sweep())
    fleet.submit(order("two", requirements=ON_DEVICE))
    assert called.take() == set()


def test_a_parked_worker_that_does_not_answer_is_not_waited_for(fleet: Driven) -> None:
    join(fleet, "fast", FAST)
    join(fleet, "slow", SLOW)
    for name in ("fast", "slow"):
        assert not ask(fleet, name).grants
    called = Called(fleet)
    fleet.submit(order("one", requirements=ON_DEVICE))
    assert not ask(fleet, "slow").grants
    assert called.take() == {"fast"}
    fleet.clock.advance(ANSWER_S)
    fleet.ask(Sweep())
    assert called.take() == {"slow"}
    assert [grant.spec.name for grant in ask(fleet, "slow").grants] == ["one"]


def test_a_worker_whose_machine_is_opened_is_called(fleet: Driven) -> None:
    join(fleet, "m1")
    fleet.submit(order("one"))
    fleet.ask(CloseMachine(machine="m1", how=MachineCloseMode.DRAIN))
    called = Called(fleet)
    assert not ask(fleet, "m1").grants
    fleet.ask(OpenMachine(machine="m1"))
    assert called.take() == {"m1"}
    assert ask(fleet, "m1").grants


def test_a_machine_that_declines_is_called_again_when_its_time_is_over_and_not_before(fleet: Driven) -> None:
    join(fleet, "m1", slots=1)
    fleet.submit(order("one"))
    (grant,) = ask(fleet, "m1").grants
    say(fleet, grant, Decline, reason="disk", message="full")
    called = Called(fleet)
    assert ask(fleet, "m1").waiting == {"declined": 1}
    called.take()
    for _ in range(5):
        fleet.ask(Sweep())
    assert called.take() == set()
    fleet.clock.advance(60.0)
    fleet.ask(Sweep())
    assert called.take() == {"m1"}
    assert ask(fleet, "m1").grants


def test_two_submitters_of_one_priority_take_turns(fleet: Driven) -> None:
    join(fleet, "m1")
    fleet.submit(*(order("first", number) for number in range(1, 7)), submitter="ada")
    fleet.submit(*(order("second", number) for number in range(1, 7)), submitter="bob")
    names = []
    for _ in range(6):
        (grant,) = ask(fleet, "m1").grants
        names.append(grant.spec.name)
        fleet.finish(grant)
    assert names.count("first") == names.count("second") == 3


def test_the_usage_of_a_submitter_outlives_the_coordinator(fleet: Driven) -> None:
    join(fleet, "m1")
    fleet.submit(*(order("first", number) for number in range(1, 4)), submitter="ada")
    for _ in range(2):
        fleet.finish(*ask(fleet, "m1").grants)
    fleet.submit(order("second"), submitter="bob")
    fleet.close()
    fleet.open()
    join(fleet, "m1")
    assert [grant.spec.name for grant in ask(fleet, "m1").grants] == ["second"]


def test_how_long_jobs_take_outlives_the_coordinator(fleet: Driven) -> None:
    join(fleet, "m1", SLOW)
    fleet.submit(*(order("sweep", number, requirements=ON_DEVICE) for number in range(1, 4)))
    for _ in range(3):
        fleet.finish(*ask(fleet, "m1").grants)
    scheduler = scheduler_of(fleet)
    (class_id,) = scheduler.wanted
    learned_s = scheduler.durations.expected_s(class_id)
    speed = scheduler.offers()[0].devices[0].speed
    assert speed != 1.0
    assert learned_s == pytest.approx(61.0 * speed)
    fleet.close()
    fleet.open()
    assert scheduler_of(fleet).durations.expected_s(class_id) == pytest.approx(learned_s)


def stands(fleet: Driven) -> dict[str, dict[str, float]]:
    """Return what decisions about waiting jobs depend on: users' usage, outstanding work, and what runs."""
    book = fleet.queue._writer._known()
    scheduler, now_s = book.scheduler, book.time.now_s()
    starts_s, done_s = scheduler.work.both_s(now_s)
    leases = {
        lease.allocation.machine: {
            "started_s": lease.started_s - now_s,
            "until_s": lease.until_s - now_s,
            "work_rate": lease.work_rate,
            "usage_rate": lease.usage_rate,
            "cost_rate": lease.cost_rate,
        }
        for lease in scheduler.machines.leases()
    }
    return {"usage": scheduler.shares.usage(now_s), "work": {"starts_s": starts_s, "done_s": done_s}, **leases}


def test_a_restart_changes_no_share_no_outstanding_work_and_no_expected_end(fleet: Driven) -> None:
    for name, device in {"fast": FAST, "slow": "NVIDIA A100", "third": FAST}.items():
        join(fleet, name, device, slots=1)
    hours: dict[str, Any] = {"expected_s": HOUR_S, "requirements": ON_DEVICE}
    fleet.submit(*(order("a", number, **hours) for number in range(6)), submitter="ada")
    fleet.submit(*(order("b", number, **hours) for number in range(6)), submitter="bob")

    def claim(machine: str) -> Grant:
        (grant,) = ask(fleet, machine).grants
        fleet.clock.advance(120.0)
        return grant

    fleet.finish(claim("fast"))
    fleet.fail(claim("fast"))
    fleet.release(claim("fast"))
    cancelled = claim("fast")
    fleet.start(cancelled)
    fleet.clock.advance(900.0)
    fleet.cancel(cancelled.job)
    say(fleet, cancelled, CancelConfirmed)
    running = [claim("fast"), claim("third"), claim("slow")]
    for grant in running[:2]:
        fleet.start(grant)
    fleet.clock.advance(1800.0)
    report = LeaseReport(job=running[0].job, **token(running[0]), step=9, of=10)
    fleet.ask(Renewal(worker="fast", incarnation="incarnation-fast", leases=(report,)))
    for machine in ("fast", "third", "slow"):
        assert not ask(fleet, machine).grants
    before = stands(fleet)
    assert set(before["usage"]) == {"ada", "bob"}
    assert all(lease["cost_rate"] and lease["usage_rate"] for name, lease in before.items() if name in ("fast", "slow"))

    fleet.close()
    fleet.open()
    for machine in ("fast", "third", "slow"):
        assert not ask(fleet, machine).grants
    after = stands(fleet)
    assert after.keys() == before.keys()
    for name, expected in before.items():
        # Some seconds have passed, and sums are made anew.
        assert after[name] == pytest.approx(expected, rel=0.02, abs=10.0 if name != "usage" else 0.02), name
    for lease in ("fast", "third", "slow"):
        for rate in ("work_rate", "usage_rate", "cost_rate"):
            assert after[lease][rate] == pytest.approx(before[lease][rate], rel=0.02), (lease, rate)


def test_jobs_of_another_user_or_program_are_another_class_also_after_a_restart(fleet: Driven) -> None:
    programs = [order(name, number, recipe="command") for name in ("train", "score") for number in (1, 2)]
    fleet.submit(*programs, submitter="ada")
    fleet.submit(order("train", 3, recipe="command"), order("gbt"), submitter="bob")
    told = {("train", "ada"), ("score", "ada"), ("train", "bob"), ("tabular/gbt", "bob")}

    def classes() -> set[tuple[str, str]]:
        book = fleet.queue._writer._known()
        return {(kind.like, kind.user) for kind in book.classes}

    assert classes() == told
    fleet.close()
    fleet.open()
    assert classes() == told
    fleet.submit(order("train", 4, recipe="command"), submitter="ada")
    assert classes() == told


def test_a_requeued_job_stays_its_submitters(fleet: Driven) -> None:
    (job,) = fleet.submit(order("one"), submitter="ada").jobs
    fleet.cancel(job.id)
    fleet.ask(RequeueJobs(jobs=(job.id,), by="bob"))
    scheduler = scheduler_of(fleet)
    assert {queue.user for users in scheduler.ready.levels.values() for queue in users.values()} == {"ada"}


# --- system B's rule binds grants -----------------------------------------------------------------


def join_sample(fleet: Driven) -> None:
    """Let system B's sample cluster join, as its file declares it."""
    fleet.ask(Declare(cluster=Cluster(nodes=(DESKTOP, EDGE, BOX))))
    found = [
        box("desktop", card("GPU-4090", total_bytes=24564 * MIB), ram_gib=64),
        box(
            "edge",
            card("GPU-orin", name="Jetson Orin", total_bytes=8192 * MIB, memory_type=MemoryType.UNIFIED),
            ram_gib=8,
        ),
        box("box", cpu_cores=16, ram_gib=64),
    ]
    for machine in found:
        hello(fleet, machine, slots=None)


def on_device(vram_mb: int, **more: Any) -> dict[str, Any]:
    return {"wish": "require", "vram_bytes": vram_mb * MIB, "ram_bytes": GIB, **more}


def grants_by(fleet: Driven, *names: str) -> list[str]:
    """Let all machines ask in turns until none of them gets anything; return who got each job."""
    got: list[str] = []
    asked = -1
    while asked != len(got):
        asked = len(got)
        for name in names:
            got += [name for _ in ask(fleet, name).grants]
    return got


@pytest.mark.parametrize(
    ("vram_mb", "machines"),
    [(6000, ["desktop"] * 3), (2000, ["desktop", "desktop", "desktop", "edge"]), (30000, [])],
    ids=["6000", "2000", "30000"],
)
def test_four_jobs_are_granted_where_system_b_places_them(fleet: Driven, vram_mb: int, machines: list[str]) -> None:
    join_sample(fleet)
    assert grants_by(fleet, "box", "edge", "desktop") == []
    fleet.submit(*(order("four", number, requirements=on_device(vram_mb)) for number in range(4)))
    assert sorted(grants_by(fleet, "box", "edge", "desktop")) == machines


def test_a_grant_has_system_b_s_score_and_lowers_the_next_one(fleet: Driven) -> None:
    join_sample(fleet)
    fleet.submit(*(order("two", number, requirements=on_device(8000)) for number in range(2)))
    scheduler = scheduler_of(fleet)
    (wanted,) = scheduler.wanted.values()

    def score() -> float:
        found = scheduler.index.choice("desktop", scheduler.index.shape_of(wanted))
        assert found is not None
        return found.key.score

    assert score() == pytest.approx(2.61, abs=0.005)
    assert ask(fleet, "desktop").grants
    assert score() == pytest.approx(0.80, abs=0.01)


def test_a_machine_counts_as_its_fastest_device(fleet: Driven) -> None:
    hello(fleet, box("mixed", card("GPU-slow", name=SLOW), card("GPU-fast", name=FAST), ram_gib=64))
    join(fleet, "middle", "NVIDIA GeForce RTX 4090")
    assert grants_by(fleet, "middle", "mixed") == []
    fleet.submit(order("one", requirements=ON_DEVICE))
    assert not ask(fleet, "middle").grants
    (grant,) = ask(fleet, "mixed").grants
    assert grant.devices == ("GPU-fast",)


def test_a_job_goes_where_fewer_share_a_device(fleet: Driven) -> None:
    nodes = tuple(changed(DESKTOP, name=name, host=name) for name in ("a", "b"))
    fleet.ask(Declare(cluster=Cluster(nodes=nodes)))
    for name in ("a", "b"):
        hello(fleet, box(name, card("GPU-4090", total_bytes=24564 * MIB), ram_gib=64), slots=None)
    assert grants_by(fleet, "a", "b") == []
    shared = on_device(6000, may_share=True)
    fleet.submit(*(order("two", number, requirements=shared) for number in range(2)))
    assert sorted(grants_by(fleet, "a", "b")) == ["a", "b"]


@pytest.mark.parametrize(
    ("mflop", "devices"), [(100, ()), (20_000, ()), (20_001, ("GPU-gpu",)), (1_000_000, ("GPU-gpu",))]
)
def test_work_that_is_not_worth_its_transfer_is_granted_on_the_cpu(
    fleet: Driven, mflop: float, devices: tuple[str, ...]
) -> None:
    hello(fleet, box("gpu", card("GPU-gpu"), ram_gib=64))
    asked = on_device(1000, wish="prefer", transfer_mb=1.0, mflop=mflop)
    fleet.submit(order("one", requirements=asked))
    (grant,) = ask(fleet, "gpu").grants
    assert grant.devices == devices


@pytest.mark.parametrize(("mflop", "machine"), [(100, "cpu"), (1_000_000, "gpu")])
def test_work_that_is_not_worth_its_transfer_leaves_the_device_to_others(
    fleet: Driven, mflop: float, machine: str
) -> None:
    join(fleet, "gpu", FAST)
    join(fleet, "cpu")
    assert grants_by(fleet, "cpu", "gpu") == []
    fleet.submit(order("one", requirements=on_device(1000, wish="prefer", transfer_mb=1.0, mflop=mflop)))
    assert grants_by(fleet, "cpu", "gpu") == [machine]
