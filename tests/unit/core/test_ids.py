from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.core.digests import digest_value, is_digest
from stoker.core.job import JobIds, attempt_id, job_id

GBT: dict[str, Any] = {"recipe": "tabular/gbt", "schema_version": 1, "args": {"depth": 6, "lr": 0.1, "data": "ab" * 32}}


def test_the_id_of_a_job_never_changes():
    assert job_id(**GBT) == "61d4b03656e89f4aee679ff2325b7c811c6d0e6492ae18593fbf560359568b09"
    assert job_id(**GBT, mode="fast", seed=7) == "e8723d18861d43352c1c5859383a781c1e4cf3870ae7d1cda4fd0d6cbe3b92e9"


def test_the_order_of_arguments_is_nothing_to_a_job():
    assert job_id(**{**GBT, "args": dict(reversed(GBT["args"].items()))}) == job_id(**GBT)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "tabular/knn"},
        {"schema_version": 2},
        {"mode": "fast"},
        {"seed": 0},
        {"split_recipe": "by_day"},
        {"split_recipe": {"by": "day"}},
        {"train_hosts": ["desk"]},
        {"args": {**GBT["args"], "depth": 7}},
        {"args": {**GBT["args"], "depth": 6.0}},
        {"args": {**GBT["args"], "depth": None}},
        {"args": {}},
    ],
    ids=str,
)
def test_everything_that_a_job_is_made_of_changes_its_id(change):
    changed = job_id(**{**GBT, **change})
    assert is_digest(changed)
    assert changed != job_id(**GBT)


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, 0, False, None, "", [], {}, 1, True, 1.0, "1", {"a": 1}, {"a": True}, {"a": 1.0}, {"a": [0.0, -0.0]}],
    ids=repr,
)
def test_the_id_is_the_digest_of_all_of_it_however_often_its_parts_were_met(value):
    plain: dict[str, Any] = {
        "schema": 1,
        "recipe": "r",
        "recipe_schema": 1,
        "mode": "",
        "args": {"x": value, "é": 1},
        "seed": None,
        "split_recipe": None,
        "train_hosts": ["a", "b"],
    }
    for _ in range(2):
        made = job_id(recipe="r", schema_version=1, args=plain["args"], train_hosts=("b", "a"))
        assert made == digest_value("job", plain)


def test_ids_of_many_jobs_are_those_of_each():
    shared: dict[str, Any] = {"depth": 6, "lr": 0.1, "model": {"b": [1], "a": None}}
    about: dict[str, Any] = {"recipe": "r", "schema_version": 2, "mode": "m", "train_hosts": ("b", "a")}
    owns: list[dict[str, Any]] = [
        {},
        {"lr": 0.0},
        {"lr": -0.0},
        {"lr": 0},
        {"lr": False},
        {"aa": 1, "é": "é"},
        {"model": {}},
    ]
    for split_recipe in (None, "by_day", {"by": 1}):
        ids = JobIds(args=shared, split_recipe=split_recipe, **about)
        for own in owns:
            assert ids.of(own) == job_id(args={**shared, **own}, split_recipe=split_recipe, **about)


def test_an_attempt_is_called_by_its_time_and_four_digits():
    started = datetime(2026, 11, 15, 3, 15, 2, tzinfo=UTC)
    assert attempt_id(started, 0x7F3A) == "20261115-031502-00007f3a"
    assert attempt_id(started, 0x5_0000_0001) == "20261115-031502-00000001"


def test_a_later_attempt_sorts_after_an_earlier_one():
    first = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)
    ids = [attempt_id(first + timedelta(seconds=passed), 0xFFFF - passed) for passed in (0, 1, 2, 70, 90_000, 10**8)]
    assert ids == sorted(ids)
