"""Sweeps and comparisons of this machine's jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.api.app_parts import AppSettings
from stoker.api.local_monitor import LocalMonitor
from stoker.app.app import App
from stoker.core.errors import BadInput, NotFound, Refused, TooLarge
from stoker.protocol.screen_messages import SimulateRequest
from stoker.views import parameter_importance
from tests.unit.jobs.real_jobs import Made, Shelf, sweep_of_six


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def monitor(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> LocalMonitor:
    monkeypatch.setattr(parameter_importance, "_has_forest", lambda: False)
    app = App(AppSettings(home=str(tmp_path), folder=str(tmp_path), environment={"FLEET_HOST_ID": "desk"}))
    app.__dict__["store"] = shelf.store
    return LocalMonitor(app)


def test_a_sweep_of_this_machine_is_ranked_like_one_of_a_fleet(shelf: Shelf, monitor: LocalMonitor):
    shelf.add("sweep", sweep_of_six())
    shelf.add("plain", [Made(metrics={"loss": 1.0})])
    view = monitor.sweep("sweep", "loss")
    assert view.jobs == {"failed": 1, "completed": 5}
    assert view.trials[-1].number == 1
    assert view.trials[0].place == 1
    assert view.trials[0].best_step is not None
    assert [one.name for one in view.parameters] == ["lr", "model.depth"]
    assert view.parameters[0].is_log
    (listed,) = monitor.sweeps().sweeps
    assert (listed.name, listed.total, listed.jobs) == ("sweep", 6, view.jobs)
    with pytest.raises(NotFound, match="'plain' is no sweep"):
        monitor.sweep("plain")


def test_jobs_and_trials_of_this_machine_are_compared(shelf: Shelf, monitor: LocalMonitor):
    shelf.add("one", [Made(metrics={"loss": 0.5})], args={"lr": 0.1, "depth": 3})
    shelf.add("two", [Made(metrics={"loss": 0.4}, data="f" * 64)], args={"lr": 0.2, "depth": 3})
    shelf.add("sweep", sweep_of_six())
    view = monitor.compare(["one", "two"])
    facts = {(fact.section, fact.name): fact for fact in view.facts}
    assert [job.name for job in view.jobs] == ["one", "two"]
    assert facts["config", "lr"].values == ("0.1", "0.2")
    assert facts["config", "lr"].differs
    assert not facts["config", "depth"].differs
    assert facts["data", "test/train: file"].differs
    assert [fact.differs for fact in view.facts] == sorted((fact.differs for fact in view.facts), reverse=True)
    trials = monitor.compare(["sweep/3", "sweep/4"])
    assert [job.name for job in trials.jobs] == ["sweep/3", "sweep/4"]
    assert "loss" in trials.metrics
    assert (trials.metric, trials.is_lower_better) == ("val_loss", True)
    curve = monitor.compare(["sweep/3", "sweep/4"], "loss")
    assert [best.step for best in curve.bests] == [49, 49]
    assert curve.bests[0].metrics["loss"] < 0.2, "the best value of the curve, not the last one that was reported"
    assert not monitor.compare(["sweep/3", "sweep/4"], "loss", "larger").is_lower_better
    with pytest.raises(TooLarge):
        monitor.compare(["one"] * 21)


def test_a_trial_of_this_machine_is_a_job_of_its_own(shelf: Shelf, monitor: LocalMonitor):
    attempt = shelf.add("sweep", sweep_of_six())
    failed, done = monitor.job("sweep/1"), monitor.job("sweep/3")
    assert (done.job.id, done.job.name, done.job.label) == (f"{attempt}/3", "sweep/3", "lr=0.01,model.depth=2")
    assert [one.job.state for one in (failed, done)] == ["failed", "completed"]
    assert "loss is nan" in failed.job.why
    assert done.job.why == ""
    assert done.spec.args["lr"] == 0.01
    assert done.job.started_s is not None
    assert done.job.ended_s is not None
    assert monitor.job(done.job.id).job == done.job, "pages ask by id"
    assert monitor.explain("sweep/3").verdict == "completed: 1 stage ran, 0 results known"
    assert monitor.job("sweep").job.state == "failed"


def test_either_direction_of_a_metric_can_be_asked_for(shelf: Shelf, monitor: LocalMonitor):
    shelf.add("sweep", sweep_of_six())
    best, worst = monitor.sweep("sweep", "loss"), monitor.sweep("sweep", "loss", "larger")
    assert (best.is_lower_better, worst.is_lower_better) == (True, False)
    assert best.trials[0].best_step == 49
    assert worst.trials[0].best_step == 0
    with pytest.raises(BadInput, match="neither 'smaller' nor 'larger'"):
        monitor.sweep("sweep", "loss", "better")


def test_a_machine_without_a_queue_has_nothing_to_simulate(monitor: LocalMonitor):
    with pytest.raises(Refused, match="only the queue of a fleet"):
        monitor.simulate(SimulateRequest())


def test_results_of_this_machine_are_listed_with_their_data_and_code(shelf: Shelf, monitor: LocalMonitor):
    shelf.add("one", [Made(metrics={"loss": 0.5})])
    shelf.add("failed", [Made(state="failed")])
    shelf.add("sweep", sweep_of_six())
    page = monitor.models(limit=1)
    assert {model.name.partition("/")[0] for model in page.models} == {"sweep"}
    (model,) = monitor.models(page.next).models
    assert (model.name, model.metrics) == ("one", {"loss": 0.5})
    assert [(one.name, one.digest) for one in model.data] == [("test/train: file", "d" * 64)]
    assert "train.losses" in [one.name for one in model.code]
    assert monitor.adapters().bases == ()


def test_the_model_card_of_a_result_here_is_that_of_one_trial(shelf: Shelf, monitor: LocalMonitor):
    shelf.add("one", [Made(files={"model-card.md": b"# One", "weights.bin": b"0"})])
    shelf.add("failed", [Made(state="failed")])
    shelf.add("sweep", [Made(point={"lr": lr}, files={"README.md": f"lr {lr}".encode()}) for lr in (1, 2)])
    card = monitor.card("one")
    assert (card.path, card.text) == ("model-card.md", "# One")
    assert monitor.card("sweep/2").text == "lr 2"
    assert monitor.card("sweep").note == "each trial has a result of its own, such as sweep/1"
    assert monitor.card("failed").note
    (model,) = monitor.models(digest=card.digest[:10]).models
    assert model.name == "one"
    assert monitor.models(job=model.job).models == (model,)
