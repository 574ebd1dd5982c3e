from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import SystemClock
from stoker.core.digests import Tree, digest_value
from stoker.core.errors import NotFound
from stoker.core.job import TrialNodes
from stoker.host.identity import mine
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import RunHistory, tell
from stoker.jobs.trials import (
    TRIALS,
    KnownMetrics,
    Trial,
    end_of,
    is_sweep,
    read_trials,
    shared_nodes,
    trial_numbered,
    write_trials,
)
from stoker.store.local_store import LocalStore
from stoker.store.records import Record
from tests.fakes.jobs import made_attempt, made_trial

KEY = digest_value("key", 1)


def trial(number: int = 1, label: str = "lr=0.1", *, keep: tuple[str, ...] = ()) -> Trial:
    own = (f"{number}.train", f"{number}.test", *keep)
    nodes = TrialNodes(final=f"{number}.test", keep=keep, nodes=("load", *own))
    return made_trial(number=number, label=label, point={"lr": 0.1}, args={"lr": 0.1}, job_id=KEY, nodes=nodes)


def event(kind: str, node: str, **fields: Any) -> dict[str, Any]:
    return {"kind": f"stage_{kind}", "node": node, "stage": "x", "ts": 1.0, **fields}


def begin(node: str) -> dict[str, Any]:
    return event("begin", node, key=KEY, attempt=1)


def ended(node: str, **fields: Any) -> list[dict[str, Any]]:
    return [begin(node), event("end", node, **{"seconds": 2.0, "digest": "d" * 64, **fields})]


def told(*events: dict[str, Any]) -> RunHistory:
    return tell(events)


SHARED = frozenset({"load"})
TWO = [*ended("load", seconds=9.0), *ended("1.train", peak_rss_bytes=7, metrics={"loss": 0.5})]


def test_a_trial_is_completed_when_its_result_and_all_that_it_keeps_are_there() -> None:
    kept = trial(keep=("1.page",))
    story = told(*TWO, *ended("1.test", metrics={"accuracy": 0.9}))
    assert end_of(kept, story, SHARED).state == "running"
    story = told(*TWO, *ended("1.test", metrics={"accuracy": 0.9}), *ended("1.page"))
    end = end_of(kept, story, SHARED)
    assert (end.state, end.is_kept, end.digest) == ("completed", False, "d" * 64)
    assert set(end.keys) == {"1.test", "1.page"}
    assert end.metrics == {"loss": 0.5, "accuracy": 0.9}


def test_what_trials_share_costs_none_of_them_time() -> None:
    end = end_of(trial(), told(*TWO, *ended("1.test")), SHARED)
    assert (end.seconds, end.peak_bytes) == (4.0, 7)


def test_a_trial_whose_own_stages_were_known_is_kept_even_if_shared_ones_ran() -> None:
    hits = [event("skipped", node, key=KEY, digest="d" * 64) for node in ("1.train", "1.test")]
    end = end_of(trial(), told(*ended("load"), *hits), SHARED)
    assert (end.state, end.is_kept, end.seconds) == ("completed", True, None)
    assert end.known == (KEY, KEY)


def test_a_failure_anywhere_in_a_trial_is_its_own() -> None:
    bad = event("failed", "load", cause="user", message="no data", hint="look", seconds=1.0)
    pruned = event("pruned", "1.train", because="load")
    end = end_of(trial(), told(begin("load"), bad, pruned), SHARED)
    assert (end.state, end.cause, end.message, end.hint) == ("failed", "user", "no data", "look")
    assert end.keys == {}


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "pending"),
        (ended("load"), "pending"),
        ([*ended("load"), begin("1.train")], "running"),
        ([*ended("load"), begin("1.train"), event("retrying", "1.train", attempt=1)], "running"),
        ([*ended("load"), begin("1.train"), event("cancelled", "1.train")], "cancelled"),
        # It was never reached, whatever became of what it would have read.
        ([begin("load"), event("cancelled", "load"), event("cancelled", "1.train")], "pending"),
        ([*ended("load"), event("cancelled", "1.train")], "pending"),
        ([*TWO, begin("1.test"), event("failed", "1.test", cause="diverged")], "failed"),
    ],
)
def test_a_trial_without_a_result_says_how_far_it_got(events: list[dict[str, Any]], state: str) -> None:
    assert end_of(trial(), told(*events), SHARED).state == state


def test_a_fan_out_at_the_end_of_a_trial_gives_all_its_instances() -> None:
    nodes = TrialNodes(final="1.each", keep=(), nodes=("1.each",))
    one = made_trial(number=1, label="a=1", point={}, args={}, job_id=KEY, nodes=nodes)
    expanded = event("expanded", "1.each", count=2)
    half = told(expanded, *ended("1.each[0]"))
    assert end_of(one, half, frozenset()).state != "completed"
    whole = told(expanded, *ended("1.each[0]"), *ended("1.each[1]"))
    end = end_of(one, whole, frozenset())
    assert (end.state, set(end.keys)) == ("completed", {"1.each[0]", "1.each[1]"})


def test_trials_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    odd = made_trial(
        number=2,
        label="x=nan",
        point={"x": math.inf, "y": None},
        args={"x": math.inf, "t": [1, "zwei"]},
        job_id=KEY,
        nodes=TrialNodes(final="a", keep=("b",), nodes=("a", "b")),
    )
    lines = write_trials([trial(), odd])
    assert read_trials(_folder(tmp_path, lines)) == [trial(), odd]


def _folder(runs: Path, lines: bytes) -> JobFolder:
    attempt = made_attempt(
        attempt="a", job_id=KEY, name="job", recipe="test/job", args={}, folder="", started_s=0.0, stoker="1"
    )
    return JobFolder.begin(str(runs), attempt, mine(), {TRIALS: lines})


def test_lines_that_are_no_trials_are_passed_over(tmp_path: Path) -> None:
    whole = write_trials([trial(1), trial(2)])
    torn = whole[:-20] + b"\n{\n[1]\nnull\n\xff\n" + write_trials([trial(3)])
    assert [one.spec.number for one in read_trials(_folder(tmp_path, torn))] == [1, 3]


def test_shared_nodes_are_those_of_more_than_one_trial() -> None:
    assert shared_nodes([trial(1), trial(2)]) == {"load"}
    assert shared_nodes([trial(1)]) == frozenset()


def test_a_sweep_of_one_point_is_a_sweep() -> None:
    assert is_sweep([trial()])
    assert not is_sweep([trial(label="")])
    assert not is_sweep([])


def test_a_trial_is_found_by_its_number_or_its_label() -> None:
    trials = [trial(1, "lr=0.1"), trial(2, "lr=0.2")]
    assert trial_numbered(trials, "2", "job") is trials[1]
    assert trial_numbered(trials, "lr=0.1", "job") is trials[0]
    with pytest.raises(NotFound, match="job job has no trial '3'") as raised:
        trial_numbered(trials, "3", "job")
    assert raised.value.hint == "it has 2; such as job/1"
    with pytest.raises(NotFound) as raised:
        trial_numbered([trial(label="")], "1", "job")
    assert raised.value.hint == "it is no sweep"


def test_metrics_of_known_results_come_from_the_records_of_all_its_nodes(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path), clock=SystemClock())
    store.open()
    keys = [digest_value("key", number) for number in range(3)]
    bodies: list[dict[str, Any]] = [
        {"metrics": {"loss": 0.5, "step": 1}},
        {"metrics": {"accuracy": 0.9, "step": 2}},
        {"metrics": "odd"},
    ]
    for key, body in zip(keys, bodies, strict=True):
        store.publish(Record.of(key=key, tree=Tree(()), inline={}, body=body))
    hits = [
        event("skipped", node, key=key)
        for node, key in zip(("load", "1.train", "1.test"), (keys[2], *keys[:2]), strict=True)
    ]
    end = end_of(trial(), told(*hits), SHARED)
    assert KnownMetrics(store).added_to(end).metrics == {"loss": 0.5, "accuracy": 0.9, "step": 2}
    # What ran now goes before what was known then.
    ran = end_of(trial(), told(*hits[:2], *ended("1.test", metrics={"loss": 0.25})), SHARED)
    assert KnownMetrics(store).added_to(ran).metrics == {"loss": 0.25, "step": 1}
    store.close()
