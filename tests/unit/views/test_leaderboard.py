from __future__ import annotations

import math

import pytest

from stoker.core.errors import NotFound
from stoker.views.leaderboard import RankedJob, rank_jobs, rank_rows


def job(name: str, state: str = "completed", **metrics: float) -> RankedJob:
    return RankedJob(name=name, id=name, state=state, where="here", metrics=metrics)


def test_larger_is_better_where_the_name_says_so_and_smaller_otherwise() -> None:
    jobs = [job("a", loss=0.1, accuracy=0.5), job("b", loss=0.2, accuracy=0.9), job("c", loss=math.nan)]
    assert [one.name for one in rank_jobs(jobs, "loss")] == ["a", "b"]
    assert [one.name for one in rank_jobs(jobs, "accuracy")] == ["b", "a"]


def test_a_value_that_may_still_change_is_marked() -> None:
    rows = rank_rows(rank_jobs([job("a", loss=0.5), job("b", state="running", loss=0.25)], "loss"))
    assert [(row[1], row[4]) for row in rows] == [("b", "~0.25"), ("a", "0.5")]


def test_an_unknown_metric_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(NotFound) as caught:
        rank_jobs([job("a", val_loss=1.0)], "val_los")
    assert caught.value.hint == "did you mean 'val_loss'?"
