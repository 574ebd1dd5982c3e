"""A scheduler's state as plain data: the same decisions after a round trip, and nothing odd is taken in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.core.errors import BadInput
from stoker.core.frozen import changed
from stoker.core.machine import UserPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.leases import StartDecision
from stoker.scheduler.scheduler import Scheduler
from stoker.scheduler.simulation.workload import batch_of
from stoker.scheduler.snapshot import Snapshot, restore, runs_of, snapshot_from_dict, take, used_classes
from tests.unit.coordinator.fleets import Driven, box, card, cpu_job, gpu_job

NOW_S = 1_000_000.0


def busy() -> tuple[Driven, Snapshot]:
    """A desk whose device is taken, a small machine that is measured, and jobs of two users that wait."""
    driven = Driven(box("desk", card("GPU-1")), box("small", ram_gib=16))
    scheduler = driven.scheduler
    scheduler.set_policies({"ada": UserPolicy(weight=2.0, most_jobs=4)})
    scheduler.put_class(1, gpu_job(10), user="ada", like="vision/resnet", expected_s=600.0)
    scheduler.ready.set_head(1, 0, 1, 1)
    decision = scheduler.choose("desk", NOW_S - 100)
    assert isinstance(decision, StartDecision)
    scheduler.grant(decision, NOW_S - 100)
    scheduler.ready.set_head(1, 0, 0, 0)
    scheduler.measure("small", WorkerMeasurements(ram_available_bytes=8 << 30, closed={"": "paused"}))
    scheduler.put_class(2, cpu_job(), user="bob", expected_s=60.0)
    scheduler.put_class(3, gpu_job(6), user="ada")
    scheduler.ready.set_head(2, 5, 7, 3)
    scheduler.ready.set_head(3, 0, 4, 1)
    taken = take(scheduler, NOW_S, running=[(1, decision.allocation)], declined={"small": {4: NOW_S + 30}})
    return driven, taken


def test_a_snapshot_is_the_same_after_a_round_trip_through_json() -> None:
    _, taken = busy()
    assert snapshot_from_dict(json.loads(json.dumps(taken.to_dict()))) == taken
    assert taken.leases[0].started_s == -100.0
    assert taken.machines[1].told == (("", "paused"),)
    assert taken.machines[1].declined == ((4, 30.0),)
    assert [(level.class_id, level.priority, level.count) for level in taken.ready] == [(2, 5, 3), (3, 0, 1)]


def test_a_restored_scheduler_offers_the_same_machines_and_decides_alike() -> None:
    driven, taken = busy()
    again = Scheduler()
    leases = restore(again, taken)
    assert list(leases) == [1]
    assert again.offers() == driven.offers
    again.ready.set_head(2, 5, 7, 3)
    again.ready.set_head(3, 0, 4, 1)
    for name in ("small", "desk"):
        mine, theirs = again.choose(name, 0.0, tells=True), driven.scheduler.choose(name, NOW_S, tells=True)
        assert type(mine) is type(theirs)
        if isinstance(mine, StartDecision) and isinstance(theirs, StartDecision):
            assert (mine.head, mine.allocation, mine.why) == (theirs.head, theirs.allocation, theirs.why)
        else:
            assert mine == theirs
    assert again.shares.usage(0.0) == pytest.approx(driven.scheduler.shares.usage(NOW_S))


def test_a_restored_lease_ends_when_it_was_expected_to() -> None:
    driven, taken = busy()
    again = Scheduler()
    lease = again.machines.find(restore(again, taken)[1])
    (known,) = driven.scheduler.machines.machines["desk"].leases
    assert lease.until_s == pytest.approx(known.until_s - NOW_S)
    assert again.work.running == 1


def test_the_jobs_of_a_snapshot_keep_the_order_of_the_queue_and_what_is_only_counted_is_counted() -> None:
    _, taken = busy()
    batch = batch_of(taken)
    assert list(batch.numbers) == [1, 4, 7]
    assert batch.running == 1
    assert batch.more == {(2, 5): (8, 2)}
    whole = batch_of(taken, most=10)
    assert list(whole.numbers) == [1, 4, 7, 8, 9]
    assert whole.more == {}


def test_classes_without_jobs_are_left_out() -> None:
    _, taken = busy()
    assert [one.class_id for one in used_classes(changed(taken, ready=()))] == [1]


def test_numbers_without_gaps_are_one_run() -> None:
    assert runs_of([3, 4, 5, 9, 11, 12]) == ((3, 3), (9, 1), (11, 2))
    assert runs_of([]) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "schedule.format"),
        ({"machines": {}}, "schedule.machines"),
        ({"now_s": float("inf")}, "schedule.now_s"),
        ({"now_s": "soon"}, "schedule.now_s"),
        ({"ready": [{"class_id": 99, "priority": 0}]}, "no class 99"),
        ({"ready": [{"class_id": 2, "priority": 0, "more": -1}]}, "schedule.ready[0].more"),
        ({"ready": [{"class_id": 2, "priority": 0, "runs": [[1, 2, 3]]}]}, "schedule.ready[0].runs[0]"),
        ({"leases": [{"job": 1, "class_id": 1}]}, "schedule.leases[0]"),
        ({"classes": None}, "schedule.classes"),
    ],
    ids=["format", "map", "infinite", "text", "class", "negative", "pair", "missing", "null"],
)
def test_what_is_no_snapshot_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    _, taken = busy()
    with pytest.raises(BadInput, match="schedule") as caught:
        snapshot_from_dict({**taken.to_dict(), **change})
    assert said in str(caught.value)


def test_two_machines_of_one_name_are_refused() -> None:
    _, taken = busy()
    with pytest.raises(BadInput, match="two machines of one name"):
        snapshot_from_dict({**taken.to_dict(), "machines": [taken.to_dict()["machines"][0]] * 2})
