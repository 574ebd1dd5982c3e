from __future__ import annotations

import pytest

from stoker.api.job import nodes_named, trial_ends
from stoker.core.digests import digest_value
from stoker.core.errors import NotFound
from stoker.core.job import TrialNodes
from stoker.jobs.job_history import RunHistory, tell
from stoker.jobs.trials import Trial
from tests.fakes.jobs import made_trial


def trial(number: int, label: str) -> Trial:
    nodes = TrialNodes(final=f"{number}.train", keep=(), nodes=("load", f"{number}.train"))
    return made_trial(number=number, label=label, point={}, args={}, job_id=digest_value("t", number), nodes=nodes)


TRIALS = [trial(1, "x=1"), trial(2, "x=2"), trial(3, "x=3")]


def story() -> RunHistory:
    events = [
        {"kind": "stage_begin", "node": node, "stage": f"toy/{node.rpartition('.')[2].partition('[')[0]}", "attempt": 1}
        for node in ("load", "1.train", "2.train", "2.train[0]", "2.train[1]")
    ]
    return tell([*events, {"kind": "stage_end", "node": "1.train", "stage": "toy/train"}])


def names(target: str) -> list[str]:
    return [node.node for node in nodes_named(story().nodes, target, "job", TRIALS)]


def test_a_trial_is_all_its_stages_those_that_it_shares_too() -> None:
    assert names("1") == names("x=1") == ["load", "1.train"]
    assert names("2") == ["load", "2.train", "2.train[0]", "2.train[1]"]


def test_a_stage_of_a_trial_is_named_behind_it() -> None:
    assert names("1/train") == ["1.train"]
    assert names("1/load") == ["load"]
    assert names("x=2/train") == ["2.train", "2.train[0]", "2.train[1]"]


def test_a_node_or_a_stage_is_named_as_ever() -> None:
    assert names("2.train") == ["2.train", "2.train[0]", "2.train[1]"]
    assert names("toy/train") == ["1.train", "2.train", "2.train[0]", "2.train[1]"]


def test_a_trial_that_never_began_is_told_as_that() -> None:
    sharing_nothing = made_trial(
        number=4,
        label="x=4",
        point={},
        args={},
        job_id=digest_value("t", 4),
        nodes=TrialNodes(final="4.train", keep=(), nodes=("4.train",)),
    )
    with pytest.raises(NotFound, match=r"trial 4 of job \(x=4\) has not run"):
        nodes_named(story().nodes, "4", "job", [*TRIALS, sharing_nothing])


def test_what_is_not_there_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(NotFound) as raised:
        names("laod")
    assert raised.value.hint == "did you mean 'load'?"
    with pytest.raises(NotFound, match="has no stage '1/tset'"):
        names("1/tset")


def test_a_number_is_a_trial_only_in_a_sweep() -> None:
    with pytest.raises(NotFound, match="has no stage '1'"):
        nodes_named(story().nodes, "1", "job", [])


def test_what_did_not_end_in_a_job_that_is_over_was_stopped_or_never_run() -> None:
    told = story()
    assert [end.state for end in trial_ends(TRIALS, told, is_running=True)] == ["completed", "running", "pending"]
    assert [end.state for end in trial_ends(TRIALS, told, is_running=False)] == ["completed", "stopped", "not run"]
