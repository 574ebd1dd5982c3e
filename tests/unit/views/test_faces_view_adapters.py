"""Adapters that train together as lines, and adapters by their best checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.cli.run_report import best_text
from stoker.core.device import GIB
from stoker.core.digests import digest_value
from stoker.core.frozen import changed
from stoker.core.job import TrialNodes
from stoker.jobs.adapter_jobs import SharedProcessEstimate
from stoker.jobs.trial_watch import rank_trials
from stoker.jobs.trials import Trial, TrialEnd
from stoker.views.text_tables import ASCII, UNICODE
from stoker.views.trial_lines import (
    AdapterLeaderboardEntry,
    SharedProcessRunView,
    Speed,
    Titles,
    board_lines,
    end_text,
    forecast_lines,
    forecast_text,
    ranked,
    ranking_lines,
    row_as_json,
    shared_speed_text,
    trial_text,
)
from tests.fakes.jobs import made_trial


def end(number: int, state: str = "completed", measured_on: dict[str, Any] | None = None, **said: Any) -> TrialEnd:
    trial = made_trial(
        number=number,
        label=f"lr={number}",
        point={},
        args={},
        job_id=digest_value("t", number),
        nodes=TrialNodes(final="run", keep=(), nodes=("run",)),
        measured_on=measured_on or {},
    )
    return TrialEnd(trial=trial, state=state, **said)


def forecast(members: int, at_once: int, free: int | None = 23) -> SharedProcessEstimate:
    return SharedProcessEstimate(
        members=members,
        at_once=at_once,
        base_bytes=GIB,
        predicted_bytes=6 * GIB,
        free_bytes=None if free is None else free * GIB,
        is_on_device=True,
    )


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (forecast(8, 8), "8 adapters, one base, one process: predicted 6.0 GiB, 23.0 GiB free, all 8 at once"),
        (forecast(2, 2, None), "2 adapters, one base, one process: predicted 6.0 GiB, both at once"),
        (
            forecast(8, 3),
            (
                "8 adapters, one base, one process: predicted 6.0 GiB, 23.0 GiB free, 3 at once, "
                "the rest as memory is freed"
            ),
        ),
        (
            changed(forecast(8, 8), in_pass=3),
            "8 adapters, one base, one process: predicted 6.0 GiB, 23.0 GiB free, all 8 at once, 3 in a pass",
        ),
        (
            changed(forecast(2, 2), in_pass=1),
            "2 adapters, one base, one process: predicted 6.0 GiB, 23.0 GiB free, both at once, 1 in a pass",
        ),
        (
            changed(forecast(8, 4), in_pass=1),
            (
                "8 adapters, one base, one process: predicted 6.0 GiB, 23.0 GiB free, 4 at once, 1 in a pass, "
                "the rest as memory is freed"
            ),
        ),
        (forecast(1, 1), "1 adapter: predicted 6.0 GiB, 23.0 GiB free"),
        (forecast(1, 1, 2), "1 adapter: predicted 6.0 GiB, 2.0 GiB free: more than is free"),
    ],
)
def test_what_is_foreseen_is_one_line(one: SharedProcessEstimate, text: str) -> None:
    assert forecast_text(one) == text


def test_the_base_is_told_before_what_is_foreseen_over_it() -> None:
    one = changed(forecast(2, 2), about="base org/name, 1.0 GiB, sha256 ✓")
    assert forecast_lines(one, UNICODE) == ("base org/name, 1.0 GiB, sha256 ✓", forecast_text(one))
    assert forecast_lines(one, ASCII)[0] == "base org/name, 1.0 GiB, sha256 +"
    assert forecast_lines(forecast(2, 2), UNICODE) == (forecast_text(one),)


def test_the_speed_of_a_shared_process_is_that_of_its_members_together_over_the_time_they_went() -> None:
    speed = Speed()
    speed.hear("a", {"tokens_per_s": 1000.0}, 10.0)
    speed.hear("b", {"tokens_per_s": 3000.0}, 11.0)
    assert shared_speed_text(speed, 12) == "2 together    4,000 tokens/s"
    speed.hear("a", {"loss": 1.0}, 11.5)
    speed.leave("b", 12.0)
    speed.leave("nobody", 12.0)
    speed.leave("a", 13.0)
    assert speed.members == 0
    # 1,000 in the first second, 4,000 in the second, 1,000 in the third; what comes after a pause counts anew.
    speed.hear("c", {"tokens_per_s": 2000.0}, 100.0)
    speed.leave("c", 101.0)
    assert speed.mean == 2000.0
    assert SharedProcessRunView().speed is not SharedProcessRunView().speed


def test_those_that_ended_well_are_ranked_by_evaluation() -> None:
    ends = [
        end(1, metrics={"loss": 1.0, "eval_loss": 2.0, "cost_s": 0.1}),
        end(2, "failed"),
        end(3, metrics={"eval_loss": 1.5}),
    ]
    found = rank_trials(ends, {})
    assert found is not None
    assert ranking_lines(found, "/f") == ["1 lr=3  eval_loss 1.5", "2 lr=1  eval_loss 2"]
    assert found.best is not None
    assert found.best.end is ends[2]


def test_those_on_different_data_are_ranked_apart_and_nobody_is_the_best_of_all() -> None:
    on = [{"data": "/f/b.jsonl", "seed": 1}, {"data": "/f/a.jsonl", "seed": 1}, {"data": "/f/b.jsonl", "seed": 1}]
    ends = [end(n, measured_on=on[n - 1], metrics={"eval_loss": loss}) for n, loss in ((1, 3.0), (2, 1.0), (3, 2.0))]
    assert Trial.from_json(ends[0].trial.to_json(), ends[0].trial.spec) == ends[0].trial
    found = rank_trials(ends, {})
    assert found is not None
    assert found.best is None
    assert ranking_lines(found, "/f") == [
        "data=b.jsonl:",
        "1 lr=3  eval_loss 2",
        "2 lr=1  eval_loss 3",
        "data=a.jsonl:",
        "1 lr=2  eval_loss 1",
    ]
    assert best_text(ends, {}) == "No overall best: eval_loss on different data is not compared."
    alone = rank_trials(ends[:2], {})
    assert alone is not None
    assert ranking_lines(alone, "/f") == [], "each has data of its own, so there is nothing to rank"
    mute = rank_trials([ends[0], end(2, measured_on=on[1]), ends[2]], {})
    assert mute is not None
    assert mute.best is not None, "one without the metric sets nobody apart"
    same = rank_trials([ends[0], ends[2]], {})
    assert same is not None
    assert same.best is not None
    assert same.best.n == 3


def test_the_end_says_how_many_how_long_how_quickly_and_how_much() -> None:
    ends = [end(1, peak_gpu_bytes=5 * GIB), end(2, "failed"), end(3, peak_bytes=9 * GIB)]
    assert end_text(ends, 3, 91.0, 31_000.0) == "2 of 3 in 1m31s, 31 k tokens/s, peak 5.0 GiB GPU"
    assert end_text([end(1)], 1, 2.0, 0.0) == "1 of 1 in 2.0s"


def test_one_that_diverged_says_that_the_others_go_on() -> None:
    fields = {"label": "lr=1", "state": "failed", "cause": "diverged", "message": "loss is nan at step 3", "trial": 1}
    titles = Titles(job="lora", together=frozenset({"train"}), trials=8)
    assert "loss is nan at step 3, the other 7 unaffected  hint" in trial_text(fields, titles, "/", others=7)
    assert "unaffected" not in trial_text({**fields, "cause": "user"}, titles, "/", others=7)


def entry(
    label: str, val: float | None = None, avg: float | None = None, **measured_on: Any
) -> AdapterLeaderboardEntry:
    return AdapterLeaderboardEntry(
        n=ord(label),
        label=label,
        file="a.toml",
        checkpoint=f"/c/{label}/best",
        measured_on={"data": "sums", "max_seq_len": None, **measured_on},
        epoch=2,
        train_loss=1.0,
        val_loss=val,
        avg_loss=avg,
        rank=8,
        alpha=16.0,
        global_step=1200,
    )


def test_a_board_is_ascending_by_validation_loss_else_average_loss_from_one() -> None:
    rows = ranked([entry("c"), entry("b", 1.4), entry("d", float("nan")), entry("a", avg=1.2), entry("e", 1.5, 0.1)])
    assert [(one.place, one.entry.label) for one in rows] == [(1, "a"), (2, "b"), (3, "e"), (4, "c"), (5, "d")]
    lines = board_lines(rows[:2], 120, names_files=False, near="/f")
    assert lines[1].split() == ["1", "a", "1.2", "(average)", "1", "2", "8", "16", "1,200"]
    assert row_as_json(rows[1])["place"] == 1 + 1
    assert row_as_json(rows[1])["rank"] == 8


def test_a_board_of_different_data_says_which_and_counts_places_on_each() -> None:
    rows = ranked([entry("a", 1.0), entry("b", 2.0, data="/f/legal.jsonl"), entry("c", 3.0)])
    lines = board_lines(rows, 120, names_files=False, near="/f")
    assert [line.split()[:4] for line in lines[1:]] == [
        ["1", "a", "sums", "1"],
        ["1", "b", "legal.jsonl", "2"],
        ["2", "c", "sums", "3"],
    ]
    assert [(row_as_json(one)["place"], row_as_json(one)["place_on_data"]) for one in rows] == [(1, 1), (2, 1), (3, 2)]
    assert [row_as_json(one)["data"] for one in rows] == ["sums", "/f/legal.jsonl", "sums"]


def test_a_board_sets_apart_by_everything_that_losses_are_measured_on() -> None:
    rows = ranked([entry("a", 1.0), entry("b", 2.0, max_seq_len=64), entry("c", data="chats")])
    lines = board_lines(rows, 120, names_files=False, near="/f")
    assert lines[0].split()[:2] == ["adapter", "max_seq_len"]
    assert [line.split()[:3] for line in lines[1:3]] == [["1", "a", "null"], ["1", "b", "64"]]
    assert rows[2].place_on_data == 2, "one without a loss sets nobody apart"
