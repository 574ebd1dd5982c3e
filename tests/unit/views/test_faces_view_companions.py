"""With whom stages shared a process, in words."""

from __future__ import annotations

from stoker.engine.runners.stage_runner import MemberUsage
from stoker.jobs.job_history import NodeHistory
from stoker.views.stage_lines import companions_text, shared_process_lines


def node(name: str, *others: str, count: int = 0, process: int = 7) -> NodeHistory:
    stay = MemberUsage(process=process, members=3, others=count or len(others), named=others)
    return NodeHistory(node=name, member_usage=stay.to_json())


def test_who_sat_beside_a_stage_is_named_and_the_rest_is_counted() -> None:
    assert companions_text(node("train", "b/train")) == "in one process with 1 other, 3 at once: b/train"
    many = companions_text(node("train", "b", "c", "d", "e", "f", count=9))
    assert many == "in one process with 9 others, 3 at once: b, c, d, e and 5 more"


def test_of_a_stage_that_was_alone_nothing_is_said() -> None:
    assert companions_text(NodeHistory(node="train")) == companions_text(node("train")) == ""
    assert shared_process_lines("a", [NodeHistory(node="train"), node("train")]) == []


def test_of_the_trials_of_a_sweep_each_process_has_a_line_with_those_of_other_jobs() -> None:
    nodes = [node("1.train", "a/2.train", "x/train"), node("2.train", "a/1.train", "x/train"), node("report")]
    assert shared_process_lines("a", nodes) == ["2 in one process, 3 at once, with x/train"]
    nodes = [node("1.train", "a/2.train"), node("2.train", "a/1.train"), node("3.train", "x/train", process=8)]
    assert shared_process_lines("a", nodes) == [
        "2 in one process, 3 at once",
        "3.train: in one process with 1 other, 3 at once: x/train",
    ]
