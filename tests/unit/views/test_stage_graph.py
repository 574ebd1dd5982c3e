from __future__ import annotations

import random
import time

from stoker.jobs.job_history import NodeHistory
from stoker.jobs.stage_plan import PlannedStage
from stoker.views.stage_graph import MOST_NODES, lay_out, stage_graph


def test_a_stage_stands_behind_everything_that_it_needs() -> None:
    needs = {"a": (), "b": ("a",), "c": ("a",), "d": ("b",), "e": ("d", "a"), "f": ()}
    placed = lay_out(needs)
    assert {name: one.layer for name, one in placed.items()} == {"a": 0, "b": 1, "c": 1, "d": 2, "e": 3, "f": 0}
    for layer in range(4):
        places = sorted(one.place for one in placed.values() if one.layer == layer)
        assert places == list(range(len(places)))


def test_stages_stand_near_what_they_need_so_that_edges_do_not_cross() -> None:
    needs = {"a": (), "b": (), "c": (), "of c": ("c",), "of b": ("b",), "of a": ("a",)}
    placed = lay_out(needs)
    assert [placed[f"of {name}"].place for name in "abc"] == [placed[name].place for name in "abc"]


def test_the_ending_of_each_stage_and_edges_between_them() -> None:
    planned = [
        PlannedStage(node="prepare", stage="toy/prepare"),
        PlannedStage(node="train", stage="toy/train", needs=("prepare",)),
        PlannedStage(node="report", stage="toy/report", needs=("train", "prepare")),
    ]
    nodes = {
        "prepare": NodeHistory(node="prepare", ending="hit"),
        "train": NodeHistory(node="train", ending="running", step=3, of=9, why="code changed"),
    }
    graph = stage_graph("job", planned, nodes)
    assert [(one.name, one.ending, one.layer) for one in graph.nodes] == [
        ("prepare", "hit", 0),
        ("train", "running", 1),
        ("report", "waiting", 2),
    ]
    assert sorted(graph.edges) == [(0, 1), (0, 2), (1, 2)]
    train = graph.nodes[1]
    assert (train.stage, train.step, train.of, train.why, train.instances) == ("toy/train", 3, 9, "code changed", None)


def test_instances_of_a_fan_out_are_one_node_with_counts() -> None:
    planned = [PlannedStage(node="split"), PlannedStage(node="fit", needs=("split",))]
    nodes = {"split": NodeHistory(node="split", ending="ran"), "fit": NodeHistory(node="fit", instances=3)}
    endings = ("ran", "failed", "ran")
    nodes |= {f"fit[{at}]": NodeHistory(node=f"fit[{at}]", ending=one, seconds=2.0) for at, one in enumerate(endings)}
    graph = stage_graph("job", planned, nodes)
    fit = graph.nodes[1]
    assert (fit.name, fit.ending, fit.instances, fit.endings) == ("fit", "failed", 3, {"ran": 2, "failed": 1})
    assert fit.seconds == 6.0
    assert graph.edges == ((0, 1),)


def test_the_same_stage_of_many_trials_is_one_node() -> None:
    planned = [PlannedStage(node="data")]
    for number in range(1, 51):
        planned.append(PlannedStage(node=f"{number}.train", stage="s", needs=("data",)))
        planned.append(PlannedStage(node=f"{number}.test", needs=(f"{number}.train",)))
    nodes = {f"{number}.train": NodeHistory(node=f"{number}.train", ending="ran") for number in range(1, 11)}
    graph = stage_graph("job", planned, nodes)
    assert [(one.name, one.instances, one.layer) for one in graph.nodes] == [
        ("data", None, 0),
        ("train", 50, 1),
        ("test", 50, 2),
    ]
    assert graph.nodes[1].endings == {"ran": 10, "waiting": 40}
    few = stage_graph("job", planned[:5], {})
    assert [one.name for one in few.nodes] == ["data", "1.train", "1.test", "2.train", "2.test"]


def test_trials_that_are_wired_differently_are_not_folded_to_a_cycle() -> None:
    planned = []
    for number in range(1, 31):
        first, second = ("a", "b") if number % 2 else ("b", "a")
        planned += [
            PlannedStage(node=f"{number}.{first}"),
            PlannedStage(node=f"{number}.{second}", needs=(f"{number}.{first}",)),
        ]
    graph = stage_graph("job", planned, {})
    assert len(graph.nodes) == 60
    assert {one.layer for one in graph.nodes} == {0, 1}


def test_a_run_without_a_plan_shows_what_its_journal_names() -> None:
    nodes = {"b[0]": NodeHistory(node="b[0]", ending="ran"), "a": NodeHistory(node="a", ending="hit", stage="s")}
    graph = stage_graph("job", [], nodes)
    assert [(one.name, one.ending, one.stage) for one in graph.nodes] == [("b", "ran", ""), ("a", "hit", "s")]
    assert graph.edges == ()


def test_a_plan_of_a_liar_with_a_cycle_and_unknown_needs_is_drawn() -> None:
    planned = [PlannedStage(node="a", needs=("b", "gone", "a")), PlannedStage(node="b", needs=("a",))]
    graph = stage_graph("job", planned, {})
    assert {one.name: one.layer for one in graph.nodes} == {"a": 0, "b": 0}


def test_two_thousand_stages_are_laid_out_at_once_and_more_are_left_out() -> None:
    chance = random.Random(1)
    planned = [
        PlannedStage(node=f"n{at}", needs=tuple({f"n{chance.randrange(at)}" for _ in range(2)} if at else ()))
        for at in range(MOST_NODES + 100)
    ]
    began_s = time.process_time()
    graph = stage_graph("job", planned, {})
    took_s = time.process_time() - began_s
    assert len(graph.nodes) == MOST_NODES
    assert graph.left_out == 100
    assert took_s < 0.5
