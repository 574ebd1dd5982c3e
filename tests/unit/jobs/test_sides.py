from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.jobs.job_diff import Fact, compare_sides, side_of
from stoker.jobs.trials import trial_numbered
from tests.unit.jobs.real_jobs import CODE, Made, Shelf, sweep_of_six

ARGS = {"lr": 0.1, "model": {"depth": 3}}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def facts(shelf: Shelf, *names: str) -> dict[tuple[str, str], Fact]:
    sides = [side_of(shelf.gathering(name), None, label=name) for name in names]
    return {(fact.section, fact.name): fact for fact in compare_sides(sides)}


def differing(found: dict[tuple[str, str], Fact]) -> dict[tuple[str, str], tuple[Any, ...]]:
    return {place: fact.values for place, fact in found.items() if not fact.is_same}


def test_two_runs_of_the_same_are_the_same_in_everything(shelf: Shelf) -> None:
    for name in ("one", "two"):
        shelf.add(name, [Made(metrics={"loss": float("nan")})], args=ARGS)
    found = facts(shelf, "one", "two")
    assert differing(found) == {}
    assert found["config", "recipe"].values == ("test/train", "test/train")
    assert found["environment", "host"].is_same


def test_config_code_data_environment_and_metrics_are_compared_each(shelf: Shelf) -> None:
    shelf.add("one", [Made(metrics={"loss": 0.5})], args=ARGS, origins={"lr": "default"})
    other = Made(
        metrics={"loss": 0.4, "acc": 0.9},
        code={**CODE, "train.losses": "c" * 64, "train.more": "e" * 64},
        data="f" * 64,
        env={"numpy": "2.1"},
        seconds=3.0,
    )
    shelf.add("two", [other], args={**ARGS, "lr": 0.05, "new": True}, origins={"lr": "base.yaml:3:5"}, stoker="0.2.0")
    found = facts(shelf, "one", "two")
    assert differing(found) == {
        ("config", "lr"): (0.1, 0.05),
        ("config", "new"): (None, True),
        ("code", "train.losses"): ("b" * 64, "c" * 64),
        ("code", "train.more"): (None, "e" * 64),
        ("data", "test/train: file"): ("d" * 64, "f" * 64),
        ("environment", "numpy"): ("2.0", "2.1"),
        ("environment", "stoker"): ("0.1.0", "0.2.0"),
        ("metrics", "acc"): (None, 0.9),
        ("metrics", "loss"): (0.5, 0.4),
        ("metrics", "seconds"): (1.5, 3.0),
    }
    assert found["config", "lr"].origins == ("default", "base.yaml:3:5")
    assert found["config", "lr"].to_json() == {
        "section": "config",
        "name": "lr",
        "values": [0.1, 0.05],
        "is_same": False,
        "origins": ["default", "base.yaml:3:5"],
    }


def test_what_differs_stands_first_in_its_section(shelf: Shelf) -> None:
    shelf.add("one", [Made()], args={"a": 1, "b": 2, "z": 3})
    shelf.add("two", [Made()], args={"a": 1, "b": 2, "z": 4})
    config = [name for section, name in facts(shelf, "one", "two") if section == "config"]
    assert config == ["z", "recipe", "a", "b"]


def test_one_and_one_point_nought_and_true_are_three_values() -> None:
    assert not Fact(section="config", name="x", values=(1, 1.0)).is_same
    assert not Fact(section="config", name="x", values=(1, True)).is_same
    assert Fact(section="config", name="x", values=([1, (2,)], [1, [2]])).is_same


def test_the_best_trial_speaks_for_a_sweep(shelf: Shelf) -> None:
    shelf.add("sweep", sweep_of_six(), args=ARGS)
    side = side_of(shelf.gathering("sweep"), None, label="sweep", by="loss")
    assert side.row is not None
    assert side.row.n == 4
    assert side.settings["lr"].value == 0.01
    assert side.without_result == ()


def test_the_first_trial_speaks_where_none_is_the_best_with_its_settings_and_its_curve(shelf: Shelf) -> None:
    trials = [
        Made(point={"lr": lr}, metrics={"loss": loss}, curve=[9.0, loss], measured_on={"data": data})
        for lr, loss, data in ((1, 0.9, "a"), (2, 0.5, "a"), (3, 0.1, "b"))
    ]
    shelf.add("apart", trials, args=ARGS)
    side = side_of(shelf.gathering("apart"), None, label="apart")
    assert side.row is not None
    assert (side.row.n, side.settings["lr"].value) == (1, 1)
    (curves,) = side.curves()
    assert [row.n for row, _ in curves.lines] == [1, 3, 2]


def test_two_trials_of_one_job_differ_in_what_the_sweep_set(shelf: Shelf) -> None:
    shelf.add("sweep", sweep_of_six(), args=ARGS)
    gathering = shelf.gathering("sweep")
    sides = [
        side_of(gathering, trial_numbered(gathering.wanted(), number, "job"), label=number) for number in ("3", "4")
    ]
    found = {(fact.section, fact.name): fact for fact in compare_sides(sides)}
    assert [place for place in differing(found) if place[0] != "metrics"] == [("config", "model.depth")]
    assert found["config", "model.depth"].origins == ("sweep", "sweep")


def test_a_side_that_failed_says_what_is_not_known(shelf: Shelf) -> None:
    shelf.add("bad", [Made(state="failed", message="no")], args=ARGS)
    side = side_of(shelf.gathering("bad"), None, label="bad")
    assert (side.state, side.code, side.without_result) == ("failed", {}, ("train",))


def test_a_program_s_own_files_are_code_and_what_it_reads_is_data(shelf: Shelf) -> None:
    # As the recipe `command` declares them.
    args = {"code": {"train.py": {"content": "1" * 64}}, "inputs": [{"content": "2" * 64}, {"content": "3" * 64}]}
    shelf.add("program", [Made()], args=args)
    side = side_of(shelf.gathering("program"), None, label="program")
    assert side.code["train.py"] == "1" * 64
    assert side.data["test/train: inputs[0]"] == "2" * 64
    assert side.data["test/train: inputs[1]"] == "3" * 64
