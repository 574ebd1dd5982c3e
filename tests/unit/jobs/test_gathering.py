from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import NotFound
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps
from stoker.engine.metrics.curves import curves
from stoker.jobs.job_diff import side_of
from stoker.jobs.program import flat
from stoker.jobs.trial_settings import JobSetting
from stoker.jobs.trials import trial_numbered
from tests.unit.host.waiting import at_once
from tests.unit.jobs.real_jobs import Made, Shelf, falling


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_what_was_known_before_has_the_metrics_the_cost_and_the_curves_of_the_job_that_made_it(shelf: Shelf) -> None:
    made = Made(point={"lr": 0.1}, metrics={"loss": 0.5}, curve=falling(0.1), seconds=7.0)
    first = shelf.add("sweep", [made, Made(point={"lr": 0.2})])
    known = Made(point={"lr": 0.1}, is_hit=True)
    shelf.add("wider", [known, Made(point={"lr": 0.3}, metrics={"loss": 0.4})])
    gathered = shelf.gathering("wider").trials()
    assert [one.end.is_kept for one in gathered] == [True, False]
    kept = gathered[0]
    assert (kept.end.state, dict(kept.end.metrics), kept.end.seconds) == ("completed", {"loss": 0.5}, 7.0)
    assert kept.end.peak_bytes == 3 << 30
    assert kept.curve_files == (os.path.join(shelf.runs, first, "metrics", "1.train.skm"),)


def test_a_known_result_whose_record_is_gone_has_no_metrics_and_breaks_nothing(shelf: Shelf) -> None:
    shelf.add("sweep", [Made(point={"lr": 0.1}, is_hit=True), Made(point={"lr": 0.2})])
    first = shelf.gathering("sweep").trials()[0]
    assert (first.end.state, dict(first.end.metrics), first.curve_files) == ("completed", {}, ())


def test_a_record_can_t_send_us_to_files_elsewhere(shelf: Shelf, tmp_path: Path) -> None:
    attempt = shelf.add("sweep", [Made(point={"lr": 0.1}, metrics={"loss": 1.0}, curve=falling(0.1))])
    outside = tmp_path / "outside" / "metrics"
    outside.mkdir(parents=True)
    (outside / "1.train.skm").write_bytes(b"x")
    gathering = shelf.gathering("sweep")
    assert gathering._curve_files("../../outside", "1.train") == []
    assert gathering._curve_files(attempt, "../1.train") == []
    assert len(gathering._curve_files(attempt, "1.train")) == 1


def test_an_unfinished_trial_runs_while_its_job_does_and_was_left_when_it_has_ended(shelf: Shelf) -> None:
    trials = [
        Made(point={"lr": 0.1}, metrics={"loss": 1.0}),
        Made(point={"lr": 0.2}, state="running", metrics={"loss": 2.0}),
        Made(point={"lr": 0.3}, state="pending"),
    ]
    shelf.add("going", trials, is_ended=False)
    shelf.add("over", trials)
    going = shelf.gathering("going").trials()
    assert [one.end.state for one in going] == ["completed", "running", "pending"]
    assert going[1].end.metrics == {"loss": 2.0}
    assert [one.end.state for one in shelf.gathering("over").trials()] == ["completed", "stopped", "not run"]


def test_a_journal_that_lost_its_beginning_is_made_whole_by_the_end(shelf: Shelf) -> None:
    attempt = shelf.add("sweep", [Made(point={"lr": 0.1}, metrics={"loss": 1.0}), Made(point={"lr": 0.2})])
    status = Path(shelf.runs, attempt, "status.jsonl")
    status.write_text("".join(line for line in status.read_text().splitlines(True) if "1.train" not in line))
    first = shelf.gathering("sweep").trials()[0]
    assert (first.end.state, first.end.metrics) == ("completed", {"loss": 1.0})


def test_a_parameter_knows_where_it_came_from_and_a_trial_has_its_own(shelf: Shelf) -> None:
    shelf.add(
        "sweep",
        [Made(point={"model.depth": 4}), Made(point={"model.depth": 5})],
        args={"lr": 0.5, "model": {"depth": 3}},
        origins={"lr": "base.yaml:3:5", "model.depth": "default"},
    )
    gathering = shelf.gathering("sweep")
    assert gathering.settings() == {
        "lr": JobSetting(value=0.5, origin="base.yaml:3:5"),
        "model.depth": JobSetting(value=3, origin="default"),
    }
    assert gathering.settings(gathering.wanted()[1])["model.depth"] == JobSetting(value=5, origin="sweep")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"values": 3, "origins": []}', '{"origins": {"lr": 7}}'])
def test_a_config_that_can_t_be_read_leaves_what_the_job_says(shelf: Shelf, text: str) -> None:
    attempt = shelf.add("one", [Made()], args={"lr": 0.5})
    Path(shelf.runs, attempt, "config.json").write_text(text)
    assert shelf.gathering("one").settings() == {"lr": JobSetting(value=0.5)}


def test_a_trial_is_named_by_its_number_or_its_label(shelf: Shelf) -> None:
    shelf.add("sweep", [Made(point={"lr": 0.1}), Made(point={"lr": 0.2})])
    gathering = shelf.gathering("sweep")
    assert (
        trial_numbered(gathering.wanted(), "2", "sweep").spec.point
        == trial_numbered(gathering.wanted(), "lr=0.2", "sweep").spec.point
        == {"lr": 0.2}
    )
    with pytest.raises(NotFound, match="job sweep has no trial '3'") as raised:
        trial_numbered(gathering.wanted(), "3", "sweep")
    assert raised.value.hint == "it has 2; such as sweep/1"


def test_nested_values_are_flattened_and_an_empty_map_is_a_value() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_torn_and_damaged_files_are_passed_over(shelf: Shelf) -> None:
    made = Made(point={"lr": 0.1}, metrics={"loss": 0.5}, curve=falling(0.1))
    attempt = shelf.add("sweep", [made, Made(point={"lr": 0.2}, metrics={"loss": 0.4}, curve=falling(0.1))])
    folder = Path(shelf.runs, attempt)
    trials = folder / "trials.jsonl"
    trials.write_bytes(b"\xff{not json}\n[1]\n" + trials.read_bytes()[:-40])
    with (folder / "status.jsonl").open("a") as status:
        status.write('{"v":1,"kind":"stage_end","node":"1.tr')
    curve = folder / "metrics" / "1.train.skm"
    curve.write_bytes(curve.read_bytes()[:-9])
    (only,) = shelf.gathering("sweep").trials()
    assert (only.end.trial.spec.number, only.end.state, only.end.metrics) == (1, "completed", {"loss": 0.5})
    assert curves(only.curve_files) == {}


def test_a_program_is_known_by_its_words_and_its_files(shelf: Shelf) -> None:
    attempt = shelf.add("one", [Made()], args={"lr": 0.5})
    body = {"v": 1, "values": {"lr": 0.5}, "program": ["python", "train.py", "{lr}"], "code": {"train.py": "a" * 64}}
    Path(shelf.runs, attempt, "config.json").write_text(dumps(body))
    gathering = shelf.gathering("one")
    assert list(gathering.settings()) == ["program", "lr"]
    assert gathering.settings()["program"].value == "python train.py {lr}"
    assert gathering.program_files(gathering.wanted()[0]) == {"train.py": "a" * 64}
    assert side_of(gathering, None, label="one").code["train.py"] == "a" * 64


def test_pipes_in_the_place_of_what_a_job_wanted_keep_nobody_waiting(shelf: Shelf) -> None:
    attempt = shelf.add("sweep", [Made(point={"lr": 0.1})])
    for name in ("trials.jsonl", "config.json", "status.jsonl"):
        path = Path(shelf.runs, attempt, name)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    with at_once():
        gathering = shelf.gathering("sweep")
        (trial,) = gathering.wanted()
        assert trial.spec.number == 1
        assert gathering.program_files(trial) == {}


def test_a_trial_s_value_that_no_point_names_is_its_own_and_not_the_job_s(shelf: Shelf) -> None:
    shelf.add(
        "sweep",
        [Made(point={"model": "small", "model.width": 3}), Made(point={"model": "large", "model.width": 9})],
        args={"data": "iris", "model": {"width": 3}},
        origins={"data": "base.yaml:1:1", "model.width": "model/small.yaml:1:1"},
    )
    gathering = shelf.gathering("sweep")
    for trial in gathering.wanted():
        width = trial.spec.args["model.width"]
        args = {"data": "iris", "model": {"width": width}}
        chosen = changed(trial, spec=changed(trial.spec, point={"model": trial.spec.point["model"]}, args=args))
        origin = "model/small.yaml:1:1" if width == 3 else "model=large"
        settings = gathering.settings(chosen)
        assert settings["model.width"] == JobSetting(value=width, origin=origin)
        assert settings["data"] == JobSetting(value="iris", origin="base.yaml:1:1")
