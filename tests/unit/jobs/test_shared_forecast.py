"""How many trials are foreseen to share a process, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stoker.authoring import JsonKind, ProcessSharing, stage
from stoker.core.device import GIB, Needs
from stoker.core.digests import digest_value
from stoker.core.frozen import changed
from stoker.core.job import TrialNodes
from stoker.engine.plan import Plan, PlanNode
from stoker.engine.stage import SharedBase
from stoker.jobs.adapter_jobs import (
    SharedProcessCapacity,
    SharedProcessEstimate,
    estimate_shared_processes,
    with_needs_of,
)
from stoker.jobs.trials import Trial
from tests.fakes.jobs import made_trial


class Made(JsonKind):
    name = "forecast/made"
    version = 1


@stage("forecast/train", version=1, together=ProcessSharing(run="x:y", key=lambda _args, _digests: "w"))
def train() -> Made:
    raise NotImplementedError


def node(number: int, needs: Needs) -> PlanNode:
    return PlanNode(id=f"{number}.train", stage=train, args={}, inputs={}, asks=needs)


def trial(number: int, word: str) -> Trial:
    nodes = TrialNodes(final=f"{number}.train", keep=(), nodes=(f"{number}.train",))
    return made_trial(
        number=number, label=f"n={number}", point={}, args={"w": word}, job_id=digest_value("t", number), nodes=nodes
    )


def foretell(words: str, needs: Needs, room: SharedProcessCapacity, known: int = 0) -> list[tuple[int, int, float]]:
    nodes = tuple(node(number, needs) for number in range(1, len(words) + 1))
    trials = [trial(number, word) for number, word in enumerate(words, 1)]

    def shared(one: Trial) -> SharedBase:
        word = "" if one.spec.args["w"] == "-" else one.spec.args["w"]
        return SharedBase(share_key=word, base_bytes=0, member_bytes=0, base_ram_bytes=0, member_ram_bytes=0)

    told = estimate_shared_processes(nodes[known:], trials, shared, room)
    return [(one.members, one.at_once, one.predicted_bytes / GIB) for one in told]


ON_GPU = Needs(gpu=1, vram_gib=3.0, base_gib=2.0, shares=True)


@pytest.mark.parametrize(
    ("words", "needs", "room", "told"),
    [
        ("aaaa", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), [(4, 4, 6.0)]),
        ("aaaa", ON_GPU, SharedProcessCapacity(device_bytes=5 * GIB), [(4, 3, 5.0)]),
        # One begins whatever is free at the moment: the ledger lets it wait.
        ("aaaa", ON_GPU, SharedProcessCapacity(device_bytes=GIB), [(4, 1, 3.0)]),
        ("aaaa", ON_GPU, SharedProcessCapacity(), [(4, 4, 6.0)]),
        (
            "aaaa",
            Needs(gpu=1, vram_gib=3.0, base_gib=2.0, most=2),
            SharedProcessCapacity(device_bytes=20 * GIB),
            [(4, 2, 4.0)],
        ),
        ("aabb", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), [(2, 2, 4.0), (2, 2, 4.0)]),
        ("--", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), []),
        ("aaa", Needs(memory_gib=1.5, base_memory_gib=1.0), SharedProcessCapacity(memory_bytes=2 * GIB), [(3, 2, 2.0)]),
    ],
)
def test_as_many_go_together_as_have_room(
    words: str, needs: Needs, room: SharedProcessCapacity, told: list[tuple[int, int, float]]
) -> None:
    assert foretell(words, needs, room) == told


def test_trials_whose_result_is_known_take_no_part() -> None:
    assert foretell("aaa", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), known=2) == [(1, 1, 3.0)]
    assert foretell("aaa", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), known=3) == []


DIVISIBLE = changed(ON_GPU, vram_gib=6.0, state_gib=1.0, pass_gib=3.0, peaks=("kind",))
"""Of 4 GiB beside the base one is its state; a pass of some members takes 3."""
IN_RAM = Needs(memory_gib=6.0, base_memory_gib=2.0, state_gib=1.0, pass_gib=3.0)


def foreseen(needs: Sequence[Needs], room: SharedProcessCapacity) -> tuple[Plan, SharedProcessEstimate]:
    nodes = tuple(node(number, one) for number, one in enumerate(needs, 1))
    base = SharedBase(share_key="a", base_bytes=0, member_bytes=0, base_ram_bytes=0, member_ram_bytes=0)
    trials = [trial(number, "a") for number in range(1, len(nodes) + 1)]
    (one,) = estimate_shared_processes(nodes, trials, lambda _trial: base, room)
    return Plan(name="p", nodes=nodes, final=nodes[-1].id), one


def on_device(gib: float) -> SharedProcessCapacity:
    return SharedProcessCapacity(device_bytes=int(gib * GIB), memory_bytes=0)


@pytest.mark.parametrize(
    ("free_gib", "at_once", "in_pass", "predicted_gib"),
    [(18, 4, 0, 18.0), (17.9, 4, 3, 15.0), (14.9, 4, 2, 12.0), (9.3, 4, 1, 9.0), (9.2, 1, 0, 6.0), (1, 1, 0, 6.0)],
)
def test_if_not_all_have_room_passes_have_fewer_of_them(
    free_gib: float, at_once: int, in_pass: int, predicted_gib: float
) -> None:
    _, one = foreseen([DIVISIBLE] * 4, on_device(free_gib))
    assert (one.at_once, one.in_pass, one.predicted_bytes / GIB) == (at_once, in_pass, predicted_gib)
    assert (one.members, one.base_bytes) == (4, 2 * GIB)
    told = one.to_json()
    assert told["in_pass"] == (in_pass or at_once)
    assert "needs" not in told


def test_members_of_smaller_passes_reserve_the_memory_of_a_pass_once_and_their_state_each() -> None:
    plan, one = foreseen([DIVISIBLE] * 4, on_device(14.9))
    for node_ in with_needs_of(plan, [one]).nodes:
        # Base and two in a pass, 2 + 2 * 3, and the state.
        assert node_.needs == changed(DIVISIBLE, vram_gib=9.0, base_gib=8.0, in_pass=2, peaks=())
    plan, one = foreseen([IN_RAM] * 4, SharedProcessCapacity(device_bytes=0, memory_bytes=int(9.3 * GIB)))
    assert (one.at_once, one.in_pass) == (4, 1)
    assert {one.needs for one in with_needs_of(plan, [one]).nodes} == {
        changed(IN_RAM, memory_gib=6.0, base_memory_gib=5.0, in_pass=1)
    }


def test_a_plan_whose_members_all_fit_stays_as_it_is_and_so_do_nodes_of_others() -> None:
    plan, one = foreseen([DIVISIBLE] * 4, on_device(18))
    assert with_needs_of(plan, [one]) is plan
    plan, one = foreseen([DIVISIBLE] * 4, on_device(9.3))
    other = changed(plan.nodes[0], id="other")
    divided = with_needs_of(changed(plan, nodes=(other, *plan.nodes)), [one])
    assert divided.nodes[0] == other
    assert [one.needs.in_pass for one in divided.nodes] == [0, 1, 1, 1, 1]


def test_the_most_at_once_are_those_that_have_to_have_room() -> None:
    limited = changed(DIVISIBLE, most=2)
    _, one = foreseen([limited] * 4, on_device(10))
    assert (one.at_once, one.in_pass, one.predicted_bytes) == (2, 0, 10 * GIB)
    plan, one = foreseen([limited] * 4, on_device(9.9))
    assert (one.at_once, one.in_pass, one.predicted_bytes) == (2, 1, 7 * GIB)
    # Those that come after the first two take their places.
    assert [one.needs.in_pass for one in with_needs_of(plan, [one]).nodes] == [1, 1, 1, 1]


def test_of_members_that_differ_each_reserves_what_the_largest_needs() -> None:
    small = changed(DIVISIBLE, vram_gib=4.0, state_gib=0.5, pass_gib=2.0)
    plan, one = foreseen([small, DIVISIBLE, small], on_device(9))
    assert (one.at_once, one.in_pass, one.predicted_bytes) == (3, 1, 8 * GIB)
    assert {(one.needs.vram_gib, one.needs.base_gib) for one in with_needs_of(plan, [one]).nodes} == {(6.0, 5.0)}


def test_what_other_devices_have_room_for_is_not_put_into_smaller_passes() -> None:
    two = SharedProcessCapacity(device_bytes=int(10.5 * GIB), elsewhere_bytes=(int(10.5 * GIB),))
    _, one = foreseen([DIVISIBLE] * 4, two)
    assert (one.at_once, one.in_pass) == (2, 0)
    _, one = foreseen([DIVISIBLE] * 5, two)
    assert (one.at_once, one.in_pass) == (5, 1)


def test_while_a_shared_process_runs_each_member_reserves_all_that_it_needs() -> None:
    room = changed(on_device(14.9), has_process=True)
    plan, one = foreseen([DIVISIBLE] * 4, room)
    assert (one.at_once, one.in_pass) == (3, 0)
    assert with_needs_of(plan, [one]) is plan
