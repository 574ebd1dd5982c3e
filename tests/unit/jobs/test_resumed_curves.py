"""The curve of work that goes on from a checkpoint has the steps before it, in the folder of every attempt."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.engine.metrics.attempt_metrics import EARLIER, FILES, EarlierCurves, Reports, earlier_curves
from stoker.engine.metrics.curves import curves
from stoker.engine.metrics.metrics_file import MetricSource, read_metrics
from stoker.jobs.comparison import JobFacts
from stoker.jobs.execution import JobResult
from tests.unit.jobs.conftest import Office
from tests.unit.jobs.sweeping import Sweeps

# Writes the number of its run as the value of each step, saves step 3, and fails after step 5 of its first run.
TRAIN = """
import os, sys
import stoker_trainer as t
run = len(open("counted").read()) if os.path.exists("counted") else 0
open("counted", "a").write("x")
start = int(open(t.resume()).read()) if t.resume() else 0
for i in range(start + 1, 9):
    t.step(i, of=8, loss=run)
    if i == 3:
        open("ckpt", "w").write(str(i))
        t.saved("ckpt", step=i)
    if i == 5 and run == 0 or i == 4 and run == 1:
        sys.exit(3)
open(os.path.join(t.out(), "model"), "w").write("done")
t.done()
"""


@pytest.fixture
def sweeps(office: Office) -> Sweeps:
    return Sweeps(office)


def loss_of(job: JobResult, sweeps: Sweeps) -> list[tuple[int, float]]:
    """Return the curve that `compare` and charts draw."""
    (one,) = JobFacts(job.folder, sweeps.office.lab.cache.store).trials()
    return curves(one.curve_files).get("loss", [])


def test_a_run_that_goes_on_after_a_failure_shows_the_steps_before_it(sweeps: Sweeps) -> None:
    (sweeps.folder / "train.py").write_text(TRAIN)
    order = lambda: sweeps.order("n=1", program=(sys.executable, "train.py", "{n}"))  # noqa: E731
    failed = sweeps.run(order())
    assert failed.error is not None
    assert loss_of(failed, sweeps) == [(step, 0.0) for step in range(1, 6)]
    again = sweeps.run(order())
    assert again.error is not None
    # What was run again is its own; what the failed run did after its checkpoint does not count.
    before = [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert loss_of(again, sweeps) == [*before, (4, 1.0)]
    done = sweeps.run(order())
    assert done.error is None, done.error
    assert loss_of(done, sweeps) == [*before, *((step, 2.0) for step in range(4, 9))]
    assert (sweeps.folder / "counted").read_text() == "xxx"


class Attempts:
    """Attempts that share a scratch folder, each with files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.count = 0

    def run(self, *reports: tuple[int, dict[str, float]]) -> tuple[Path, Reports]:
        self.count += 1
        file = self.folder / f"{self.count}.skm"
        earlier = EarlierCurves(str(self.scratch), (str(file), str(self.folder / f"{self.count}.program.skm")))
        kept = Reports(str(file), SystemClock(), earlier)
        for step, metrics in reports:
            kept.take({"step": step, "metrics": metrics, "source": MetricSource.STDOUT})
        kept.close()
        return file, kept


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def test_each_metric_is_cut_where_the_new_attempt_begins_it(attempts: Attempts) -> None:
    attempts.run((100, {"loss": 1.0}), (200, {"loss": 2.0}), (1, {"val": 0.1}), (300, {"loss": 3.0}), (2, {"val": 0.2}))
    file, kept = attempts.run((200, {"loss": 20.0}), (2, {"val": 0.25}))
    assert curves([str(file)]) == {"loss": [(100, 1.0), (200, 20.0)], "val": [(1, 0.1), (2, 0.25)]}
    assert {row.source for row in read_metrics([str(file)])} == {MetricSource.STDOUT}
    assert kept.last == {"loss": 20.0, "val": 0.25}


def test_a_metric_that_only_earlier_attempts_reported_stays_also_as_the_last_value(attempts: Attempts) -> None:
    attempts.run((1, {"warm": 0.5, "loss": 1.0}), (2, {"loss": 2.0}))
    attempts.run((3, {"loss": 3.0}))
    file, kept = attempts.run((4, {"loss": 4.0}))
    assert curves([str(file)]) == {"warm": [(1, 0.5)], "loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]}
    assert kept.last == {"loss": 4.0, "warm": 0.5}


def test_an_attempt_that_begins_anew_takes_nothing(attempts: Attempts) -> None:
    attempts.run((0, {"loss": 1.0}), (1, {"loss": 2.0}))
    file, _ = attempts.run((0, {"loss": 9.0}))
    assert curves([str(file)]) == {"loss": [(0, 9.0)]}


def test_what_is_no_file_of_metrics_is_passed_over(attempts: Attempts) -> None:
    (attempts.scratch / EARLIER).write_bytes(b"no frames here")
    (attempts.scratch / ".curves.skm").symlink_to("/etc/hostname")
    file, _ = attempts.run((5, {"loss": 1.0}))
    assert curves([str(file)]) == {"loss": [(5, 1.0)]}


def test_curves_that_are_too_long_are_not_carried_along(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts.run((1, {"loss": 1.0}))
    assert earlier_curves(str(attempts.scratch))
    monkeypatch.setattr("stoker.engine.metrics.attempt_metrics.LARGEST_BYTES", 10)
    assert earlier_curves(str(attempts.scratch)) == b""
    assert {one.name for one in attempts.scratch.iterdir()} <= FILES


def test_a_scratch_folder_with_curves_alone_is_removed_when_its_work_failed(sweeps: Sweeps) -> None:
    sweeps.run_line("n=1", program=("sh", "-c", 'echo "step=1 loss=0.5"; exit 3'))
    scratch = Path(sweeps.office.tools.scratch)
    assert not scratch.exists() or [one for one in scratch.iterdir() if not one.name.startswith(".")] == []
