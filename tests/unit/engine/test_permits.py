from __future__ import annotations

from typing import Any

from stoker.authoring import Stage, StageContext, stage
from stoker.core.device import GIB, Capacity, Needs, Resource
from stoker.core.digests import Digest
from stoker.engine.action import Action, StageFacts
from stoker.engine.execution.schedule import NodeQueue, QueuedNode
from stoker.engine.permits import PermitGrant, Permits, Shortage
from stoker.engine.plan import PlanNode
from stoker.engine.result_cache import Execute
from tests.unit.engine.stages import Number

MACHINE = Capacity(cpu=4, network=4, disk=2, memory_bytes=16 * GIB)


def granted(permits: Permits, **needs: Any) -> PermitGrant:
    taken = permits.take(Needs(**needs))
    assert isinstance(taken, PermitGrant)
    return taken


def short_of(permits: Permits, **needs: Any) -> tuple[Resource, ...]:
    taken = permits.take(Needs(**needs))
    assert isinstance(taken, Shortage)
    return taken.short_of


# --- permits -------------------------------------------------------------------------------------


def test_all_is_taken_or_nothing() -> None:
    permits = Permits(MACHINE)
    granted(permits, cpu=4)
    assert short_of(permits, cpu=1, network=2, disk=1) == (Resource.CPU,)
    assert granted(permits, cpu=0, network=4, disk=2).disk == 2


def test_every_shortage_is_named_in_one_fixed_order() -> None:
    permits = Permits(MACHINE)
    granted(permits, cpu=4, network=4, disk=2, memory_gib=16.0)
    everything = tuple(resource for resource in Resource if resource is not Resource.GPU)
    assert short_of(permits, memory_gib=1.0, disk=1, network=1, cpu=1) == everything


def test_devices_are_not_counted_here() -> None:
    permits = Permits(MACHINE)
    for _ in range(9):
        granted(permits, cpu=0, gpu=5, vram_gib=100.0)


def test_a_shared_process_holds_its_cores_and_its_base_once_until_its_last_member_has_left() -> None:
    permits = Permits(MACHINE)
    needs: dict[str, Any] = {"cpu": 4, "memory_gib": 8.0, "base_memory_gib": 6.0, "share_key": "words"}
    joined = [granted(permits, **needs) for _ in range(5)]
    assert short_of(permits, **needs) == (Resource.MEMORY,)
    assert permits.members_of("words") == 5
    assert short_of(permits, cpu=1) == (Resource.CPU,)
    for grant in joined[:4]:
        permits.give_back(grant)
    assert short_of(permits, cpu=1, memory_gib=9.0) == (Resource.CPU, Resource.MEMORY)
    permits.give_back(joined[4])
    assert permits.members_of("words") == 0
    assert granted(permits, cpu=4, memory_gib=16.0).cpu == 4


def test_members_of_different_sizes_give_back_exactly_what_they_took() -> None:
    permits = Permits(MACHINE)
    first = granted(permits, cpu=2, memory_gib=8.0, base_memory_gib=6.0, share_key="words")
    second = granted(permits, cpu=2, memory_gib=10.0, base_memory_gib=6.0, share_key="words")
    permits.give_back(first)
    permits.give_back(second)
    assert granted(permits, cpu=4, memory_gib=16.0).memory_bytes == 16 * GIB


def test_what_is_larger_than_the_machine_is_cut_down_and_runs_alone() -> None:
    permits = Permits(MACHINE)
    small = granted(permits, cpu=1, memory_gib=1.0)
    assert short_of(permits, cpu=64, memory_gib=1000.0) == (Resource.CPU, Resource.MEMORY)
    permits.give_back(small)
    large = granted(permits, cpu=64, memory_gib=1000.0, network=9, disk=9)
    assert (large.cpu, large.memory_bytes, large.network, large.disk) == (4, 16 * GIB, 4, 2)
    assert short_of(permits, cpu=1) == (Resource.CPU,)
    permits.give_back(large)
    granted(permits, cpu=4, memory_gib=16.0)


def test_memory_that_is_not_limited_is_not_counted() -> None:
    permits = Permits(Capacity(cpu=100))
    for _ in range(100):
        granted(permits, cpu=1, memory_gib=1000.0)


# --- those who wait ------------------------------------------------------------------------------

FACTS = StageFacts(stage="s", version=1, output="k@1", code={}, env={})
EXECUTE = Execute(
    action=Action(facts=FACTS, facts_digest=FACTS.digest(), inputs=()),
    key=Digest("0" * 64),
    why="it has not run before",
)


def needing(**needs: Any) -> Stage:
    @stage("test/needing", needs=Needs(**needs))
    def made(job: StageContext) -> Number:
        return job.save(Number, 1)

    return made


def waits(of: Stage, rank: int) -> QueuedNode:
    node = PlanNode(id=f"n{rank}", stage=of)
    return QueuedNode(name=node.id, node=node, execute=EXECUTE, inputs={}, rank=(rank,), needs=node.needs)


def test_those_with_equal_needs_come_in_the_order_of_the_plan() -> None:
    room, small = NodeQueue(), needing(cpu=1)
    for rank in (5, 2, 9, 1):
        room.enter(waits(small, rank))
    order = []
    while first := room.first_of_each():
        order.append(first[0].rank[0])
        room.leave(first[0])
    assert order == [1, 2, 5, 9]


def test_the_first_of_each_group_stands_in_the_order_of_the_plan() -> None:
    room = NodeQueue()
    small, large = needing(cpu=1), needing(cpu=4)
    for of, rank in ((large, 3), (small, 4), (small, 1), (large, 2)):
        room.enter(waits(of, rank))
    assert [one.rank[0] for one in room.first_of_each()] == [1, 2]


def test_the_room_is_full_one_day_and_empties() -> None:
    room, of = NodeQueue(), needing(cpu=1)
    entered = 0
    while not room.is_full:
        entered += 1
        room.enter(waits(of, entered))
    assert 8 < entered < 10_000
    assert len(room.empty()) == entered
    assert not room.is_full
    assert room.first_of_each() == []


def test_those_that_will_never_run_are_taken_out() -> None:
    room, small, large = NodeQueue(), needing(cpu=1), needing(cpu=4)
    for of, rank in ((small, 1), (small, 2), (large, 3), (small, 4)):
        room.enter(waits(of, rank))
    assert [one.name for one in room.drop({"n2", "n3", "n9"})] == ["n2", "n3"]
    assert [one.name for one in room.first_of_each()] == ["n1"]
    assert room.empty() == ["n1", "n4"]


def test_who_was_refused_often_enough_has_waited_enough() -> None:
    one = waits(needing(cpu=1), 1)
    assert one.is_first_refusal()
    assert not one.is_first_refusal()
    assert not one.has_waited_enough
    for _ in range(1000):
        one.is_first_refusal()
    assert one.has_waited_enough
