"""The ready queue: which job is first, and how many wait."""

from __future__ import annotations

from stoker.core.machine import SchedulableJob
from stoker.scheduler.ready_queue import NONE_READY, UserQueue, type_of
from tests.unit.scheduler.policy_fleet import HOUR_S, Fleet, device, node


def test_a_kind_of_job_that_is_new_is_known_to_queues_that_wait_already() -> None:
    fleet = Fleet([node("a", "RTX 4090")], device(8))
    fleet.come(0)
    for class_id in (7, 8):
        fleet.scheduler.put_class(class_id, SchedulableJob(name="job", requirements=device(class_id)[0]))
    picked = fleet.ask("a")
    assert picked is not None
    assert picked[0] == 0


def queue_of(fleet: Fleet, priority: int = 0) -> UserQueue:
    (queue,) = fleet.scheduler.ready.levels[priority].values()
    return queue


def test_heads_are_in_the_order_of_priority_and_number() -> None:
    fleet = Fleet([], device(8), device(9))
    fleet.come(1, 2)
    fleet.come(0, 3, priority=4)
    fleet.come(0)
    found = [(head.priority, head.seq, head.count) for head in fleet.scheduler.ready.heads()]
    assert found == [(4, 3, 3), (0, 1, 2), (0, 6, 1)]


def test_the_first_of_several_classes_of_a_type_is_the_oldest() -> None:
    fleet = Fleet([], device(8))
    fleet.scheduler.put_class(9, SchedulableJob(name="job", requirements=device(8)[0]), expected_s=HOUR_S)
    fleet.come(9)
    fleet.come(0)
    ready, queue = fleet.scheduler.ready, queue_of(fleet)
    index = ready.classes[0].type.index
    assert ready.classes[9].type.index == index
    assert ready.first_class(queue, index) == 9
    assert type_of(ready.first(queue, queue.bits)) == index
    assert queue.counts[index] == ready.type_counts[index] == 2
    fleet.go(9)
    assert ready.first_class(queue, index) == 0


def test_nothing_is_left_of_a_queue_that_is_empty() -> None:
    fleet = Fleet([], device(8))
    ready = fleet.scheduler.ready
    fleet.come(0, priority=3)
    fleet.go(0, priority=3)
    assert (ready.bits, ready.count, ready.levels, ready.priorities) == (0, 0, {}, [])
    ready.set_head(0, 3, 1, 0)
    assert ready.head(0, 3) is None


def test_a_machine_is_kept_for_the_first_job_and_the_next_counts_as_not_kept() -> None:
    fleet = Fleet([], device(8))
    fleet.come(0, 2)
    ready, queue, machine = fleet.scheduler.ready, queue_of(fleet), object()
    ready.keep(queue, 0, machine)
    assert queue.unkept[0] == ready.rank_at(queue, 0, 1) > queue.ranks[0]
    ready.keep(queue, 0, object())
    assert queue.unkept[0] == NONE_READY
    ready.unkeep(queue, 0, machine)
    fleet.go(0)
    assert queue.unkept[0] == NONE_READY
    assert ready.freed == []
    fleet.go(0)
    assert len(ready.freed) == 1, "no job is left for which it could be kept"
    assert queue.unkept is queue.ranks


def test_a_class_moves_with_its_ready_jobs() -> None:
    fleet = Fleet([], device(8))
    fleet.come(0, 3)
    fleet.come(0, 2, priority=7)
    before = fleet.scheduler.ready.classes[0].type
    fleet.scheduler.put_class(0, SchedulableJob(name="job", requirements=device(8)[0]), user="eve", expected_s=9.0)
    ready = fleet.scheduler.ready
    after = ready.classes[0].type
    assert after is not before
    assert (ready.type_counts[before.index], ready.type_counts[after.index]) == (0, 5)
    assert [(one.priority, one.count) for one in ready.heads()] == [(7, 2), (0, 3)]
    assert {user for users in ready.levels.values() for user in users} == {"eve"}


def test_an_old_job_that_is_ready_again_is_seen_as_passed() -> None:
    fleet = Fleet([], device(8), device(9))
    fleet.come(0)
    fleet.come(1, 40)
    queue = queue_of(fleet)
    fleet.scheduler.ready.set_head(0, 0, 0, 0)
    queue.floor = min(queue.unkept)
    fleet.scheduler.ready.set_head(0, 0, 1, 1)
    assert queue.floor <= queue.ranks[fleet.scheduler.ready.classes[0].type.index]
