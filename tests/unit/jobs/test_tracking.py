"""Metrics passed on to wandb while a job runs. A stand-in library writes down what the real script told it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.wandb import TrialTracker, WandbRun
from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.events import Event, Kinds
from stoker.core.job import TrialNodes
from stoker.engine.metrics.metrics_file import MetricsWriter
from stoker.engine.runners.stage_runner import RunFolders
from stoker.jobs.trials import Trial
from tests.fakes.jobs import made_trial
from tests.unit.engine.metrics.test_metrics_wandb_sink import LIBRARY, SCRIPT


class Office:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[Event] = []
        self.folders = RunFolders(run_id="r", logs=str(folder), metrics=str(folder), scratch=str(folder / "scratch"))
        (folder / "library").mkdir()

    def tracking(self, *trials: Trial, library: str = LIBRARY) -> TrialTracker:
        (self.folder / "library" / "wandb.py").write_text(library)
        return TrialTracker(trials, self.folders, run_of=self.run_of, script=str(SCRIPT))

    def run_of(self, trial: Trial) -> WandbRun:
        return WandbRun(
            python=sys.executable,
            folder=str(self.folder / "wandb" / trial.spec.label),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder / "library")},
            name=trial.spec.label,
        )

    def measure(self, node: str, **metrics: float) -> None:
        writer = MetricsWriter(self.folders.curves_of(node), clock=FakeClock())
        writer.add(1, metrics)
        writer.close()

    def said(self, trial: Trial) -> list[dict[str, Any]]:
        lines = (self.folder / "wandb" / trial.spec.label / "log").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def trial(number: int) -> Trial:
    nodes = TrialNodes(final=f"{number}.run", keep=(), nodes=("load", f"{number}.run"))
    return made_trial(
        number=number, label=f"x={number}", point={"x": number}, args={}, job_id=Digest("0" * 64), nodes=nodes
    )


def node_event(kind: str, node: str) -> Event:
    return Event(kind, {"node": node})


def test_each_trial_is_a_run_of_its_own_and_what_they_share_begins_none(office: Office) -> None:
    first, second, third = trial(1), trial(2), trial(3)
    tracking = office.tracking(first, second, third)
    tracking.begin(office.told.append)
    for event in (
        node_event(Kinds.STAGE_BEGIN, "load"),
        node_event(Kinds.STAGE_BEGIN, "1.run"),
        node_event(Kinds.STAGE_BEGIN, "2.run"),
    ):
        tracking.hear(event, 0.0, 0)
    office.measure("1.run", loss=0.5)
    office.measure("2.run", loss=0.25)
    tracking.hear(node_event(Kinds.STAGE_END, "1.run"), 0.0, 0)
    tracking.finish()
    assert [one["log"]["loss"] for one in office.said(first) if "log" in one] == [0.5]
    assert [one["log"]["loss"] for one in office.said(second) if "log" in one] == [0.25]
    assert not (office.folder / "wandb" / third.spec.label).exists()
    assert sorted(end.rows for end in tracking.ends) == [1, 1]
    assert office.told == []


def test_a_library_that_fails_is_an_event_and_nothing_else(office: Office) -> None:
    only = trial(1)
    tracking = office.tracking(only, library="raise RuntimeError('no account')")
    tracking.begin(office.told.append)
    tracking.hear(node_event(Kinds.STAGE_BEGIN, "1.run"), 0.0, 0)
    tracking.finish()
    (event,) = office.told
    assert event.kind == Kinds.WARNING
    assert "metrics were not passed on: wandb" in str(event.fields["message"])
    assert "no account" in str(event.fields["message"])
