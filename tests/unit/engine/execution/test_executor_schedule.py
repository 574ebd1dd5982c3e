from __future__ import annotations

import pytest

from stoker.engine.execution.schedule import NodeState, Schedule


@pytest.fixture
def diamond() -> Schedule:
    """A above B and C, both above D."""
    schedule = Schedule()
    schedule.add("a", rank=(0,), needs=())
    schedule.add("b", rank=(1,), needs=("a",))
    schedule.add("c", rank=(2,), needs=("a",))
    schedule.add("d", rank=(3,), needs=("b", "c"))
    return schedule


def take(schedule: Schedule) -> list[str]:
    taken = []
    while (name := schedule.next_ready()) is not None:
        taken.append(name)
    return taken


def test_a_node_is_ready_when_everything_it_needs_is_done(diamond: Schedule) -> None:
    assert take(diamond) == ["a"]
    assert diamond.done("a") == ["b", "c"]
    assert take(diamond) == ["b", "c"]
    assert diamond.done("c") == []
    assert diamond.done("b") == ["d"]
    assert take(diamond) == ["d"]
    diamond.done("d")
    assert diamond.is_over


def test_ready_nodes_come_in_the_order_of_the_plan() -> None:
    schedule = Schedule()
    for rank in (3, 1, 2, 0):
        schedule.add(f"n{rank}", rank=(rank,), needs=())
    assert take(schedule) == ["n0", "n1", "n2", "n3"]


def test_a_node_that_was_put_aside_comes_back_in_its_place(diamond: Schedule) -> None:
    take(diamond)
    diamond.done("a")
    assert diamond.next_ready() == "b"
    diamond.park("b")
    assert diamond.state("b") is NodeState.PARKED
    diamond.unpark("b")
    assert take(diamond) == ["b", "c"]
    diamond.unpark("c")
    assert take(diamond) == []


def test_what_is_below_a_failure_is_pruned(diamond: Schedule) -> None:
    take(diamond)
    diamond.done("a")
    take(diamond)
    assert diamond.end("b", NodeState.FAILED) == ["d"]
    assert not diamond.is_over
    diamond.done("c")
    assert diamond.is_over
    assert (diamond.state("b"), diamond.state("d")) == (NodeState.FAILED, NodeState.PRUNED)


def test_pruning_goes_all_the_way_down_in_the_order_of_the_plan() -> None:
    schedule = Schedule()
    schedule.add("a", rank=(0,), needs=())
    for index in range(1, 6):
        schedule.add(f"n{index}", rank=(index,), needs=("a",) if index % 2 else (f"n{index - 1}",))
    take(schedule)
    assert schedule.end("a", NodeState.DIVERGED) == ["n1", "n2", "n3", "n4", "n5"]
    assert schedule.is_over


def test_a_rewound_node_runs_again_and_only_who_asked_waits_for_it(diamond: Schedule) -> None:
    take(diamond)
    diamond.done("a")
    take(diamond)
    diamond.done("b")
    diamond.rewind("a", then="c")
    assert diamond.state("a") is NodeState.READY
    assert (diamond.state("c"), diamond.state("b")) == (NodeState.WAITING, NodeState.DONE)
    assert take(diamond) == ["a"]
    assert diamond.done("a") == ["c"]
    assert take(diamond) == ["c"]
    diamond.done("c")
    assert take(diamond) == ["d"]
    diamond.done("d")
    assert diamond.is_over


def test_two_nodes_may_wait_for_one_rewound_node(diamond: Schedule) -> None:
    take(diamond)
    diamond.done("a")
    take(diamond)
    diamond.rewind("a", then="b")
    diamond.rewind("a", then="c")
    assert take(diamond) == ["a"]
    assert diamond.done("a") == ["b", "c"]


def test_a_rewound_node_that_fails_takes_who_waits_with_it(diamond: Schedule) -> None:
    take(diamond)
    diamond.done("a")
    take(diamond)
    diamond.rewind("a", then="b")
    take(diamond)
    diamond.done("c")
    assert diamond.end("a", NodeState.FAILED) == ["b", "d"]
    assert diamond.is_over


def test_a_fan_out_waits_for_its_instances() -> None:
    schedule = Schedule()
    schedule.add("list", rank=(0,), needs=())
    schedule.add("fan", rank=(1,), needs=("list",))
    schedule.add("last", rank=(2,), needs=("fan",))
    take(schedule)
    schedule.done("list")
    assert take(schedule) == ["fan"]
    schedule.fan_out("fan", [f"fan[{index}]" for index in range(3)], needs=("list",))
    assert take(schedule) == ["fan[0]", "fan[1]", "fan[2]"]
    for index in (2, 0, 1):
        assert schedule.state("fan") is NodeState.WAITING
        schedule.done(f"fan[{index}]")
    assert take(schedule) == ["fan"]
    schedule.done("fan")
    assert take(schedule) == ["last"]
