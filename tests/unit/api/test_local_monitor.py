"""The jobs of this machine as a screen shows them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.api.app_parts import AppSettings
from stoker.api.local_monitor import LocalMonitor
from stoker.api.monitor import JobQuery, SeriesQuery
from stoker.app.app import App
from stoker.core.capability import Capability
from stoker.core.device import Backend, Device
from stoker.core.errors import BadInput, InvalidTransition, NotFound, Refused
from stoker.core.events import Event, Kinds
from stoker.core.jsontext import dumps
from stoker.engine.journal import StatusWriter
from stoker.jobs.job_folder import JobFolder
from stoker.protocol.screen_messages import LogRequest
from stoker.protocol.sent_messages import ManifestRequest, RepeatJobRequest
from stoker.views.placement_lines import explanation_lines
from tests.unit.jobs.real_jobs import Made, Shelf, falling


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path / "home")
    yield made
    made.store.close()


@pytest.fixture
def monitor(tmp_path: Path, shelf: Shelf) -> LocalMonitor:
    app = App(AppSettings(home=str(tmp_path / "home"), folder=str(tmp_path), environment={"FLEET_HOST_ID": "desk"}))
    device = Device(uuid="GPU-1", backend=Backend.CUDA, name="Card")
    app.__dict__["capability"] = Capability(hostname="desk", cpu_cores=8, ram_total_bytes=1 << 36, devices=(device,))
    app.__dict__["store"] = shelf.store
    return LocalMonitor(app)


def names(monitor: LocalMonitor, query: JobQuery) -> list[str]:
    return [job.name for job in monitor.jobs(query).jobs]


def test_an_empty_home_is_a_state(monitor: LocalMonitor) -> None:
    seen = monitor.overview()
    assert (seen.name, seen.is_fleet, seen.jobs, seen.running, seen.failed) == ("desk", False, {}, (), ())
    assert (seen.devices, seen.idle_devices, seen.machines) == (1, 1, {"ready": 1})
    assert monitor.jobs(JobQuery()).jobs == ()
    assert monitor.changes(seen.seq, 0.0).jobs == ()
    with pytest.raises(NotFound):
        monitor.job("last")


def test_jobs_by_filter_order_and_page(monitor: LocalMonitor, shelf: Shelf) -> None:
    shelf.add("b", [Made(metrics={"loss": 0.5})])
    shelf.add("a", [Made(state="failed", message="ValueError: nan")])
    shelf.add("c", [Made(state="running", metrics={"loss": 0.7})], is_ended=False)
    page = monitor.jobs(JobQuery())
    assert [(job.name, job.state) for job in page.jobs] == [("c", "running"), ("a", "failed"), ("b", "completed")]
    assert page.counts == {"running": 1, "failed": 1, "completed": 1}
    running, _, done = page.jobs
    assert (running.step, running.of, running.metrics, running.machine) == (3, 9, {"loss": 0.7}, "desk")
    assert done.metrics == {"loss": 0.5}
    assert names(monitor, JobQuery(sort="name")) == ["a", "b", "c"]
    assert names(monitor, JobQuery(sort="-name")) == ["c", "b", "a"]
    assert names(monitor, JobQuery(sort="-submitted")) == ["b", "a", "c"]
    assert names(monitor, JobQuery(sort="-ended"))[-1] == "c"
    assert names(monitor, JobQuery(state="failed,running")) == ["c", "a"]
    assert names(monitor, JobQuery(name="B")) == ["b"]
    assert names(monitor, JobQuery(machine="elsewhere")) == []
    first = monitor.jobs(JobQuery(limit=2))
    assert (len(first.jobs), first.total) == (2, 3)
    assert names(monitor, JobQuery(limit=2, after=first.next)) == ["b"]
    for wrong in (JobQuery(sort="size"), JobQuery(after="x")):
        with pytest.raises(BadInput):
            monitor.jobs(wrong)


def test_one_job_with_curves_stages_and_log(monitor: LocalMonitor, shelf: Shelf) -> None:
    attempt = shelf.add(
        "train", [Made(metrics={"loss": 0.1}, curve=falling(0.1))], origins={"lr": "train.toml:3"}, args={"lr": 3}
    )
    Path(shelf.runs, attempt, "logs", "train.log").write_text("hello\nworld\n")
    for ref in ("train", attempt, "last"):
        details = monitor.job(ref)
        assert (details.job.name, details.job.id, details.attempts[0].ending) == ("train", attempt, "completed")
    (loss,) = monitor.series("train", SeriesQuery()).series
    assert (loss.name, len(loss.steps), loss.best_step, loss.is_lower_better) == ("loss", 50, 49, True)
    (node,) = monitor.stages("train").nodes
    assert (node.name, node.ending, node.why) == ("train", "ran", "it has not run before")
    log = monitor.log("train", LogRequest(limit=1))
    assert ([line.text for line in log.lines], log.total, log.is_over) == (["world"], 2, True)
    (setting,) = monitor.config("train").settings
    assert (setting.path, setting.value, setting.origin) == ("lr", 0, "train.toml:3")
    assert "1 stage ran" in monitor.explain("train").verdict
    assert "job.json" in {file.path for file in monitor.files("train").files}
    with monitor.open_file("train", "logs/train.log") as file:
        assert file.read() == b"hello\nworld\n"
    Path(shelf.runs, attempt, "logs", "out").symlink_to("/etc/hostname")
    for path in ("logs/out", "../x", "logs/../job.json", "/etc/hostname", "logs", "", "logs//train.log", "a\0b", ".x"):
        with pytest.raises(NotFound, match="has no file"):
            monitor.open_file("train", path)
    with pytest.raises(NotFound, match="no attempt 2"):
        monitor.series("train", SeriesQuery(attempt=2))
    # A run that found the result known shows the curves of the run that made it.
    again = shelf.add("again", [Made(is_hit=True)], args={"lr": 3})
    assert monitor.series(again, SeriesQuery()).names == ("loss",)


def test_a_trial_of_a_sweep_is_shown_alone(monitor: LocalMonitor, shelf: Shelf) -> None:
    trials = [Made(point={"lr": lr}, metrics={"loss": lr}, curve=falling(lr, 5)) for lr in (0.1, 0.2)]
    shelf.add("sweep", trials, args={"lr": 1.0})
    assert monitor.series("sweep", SeriesQuery()).names == ("1.train: loss", "2.train: loss")
    assert monitor.series("sweep/2", SeriesQuery()).names == ("loss",)
    assert [(one.name, one.title) for one in monitor.stages("sweep/2").nodes] == [("2.train", "lr=0.2")]
    assert {one.path: one.value for one in monitor.config("sweep/2").settings}["lr"] == 0.2


def test_the_steps_of_a_sweep_are_its_trials(monitor: LocalMonitor, shelf: Shelf) -> None:
    trials = [
        Made(point={"lr": 0.1}),
        Made(point={"lr": 0.2}, state="failed"),
        Made(point={"lr": 0.3}, state="running"),
    ]
    shelf.add("sweep", trials, is_ended=False)
    (row,) = monitor.jobs(JobQuery()).jobs
    assert (row.label, row.step, row.of) == ("2 of 3 trials", 2, 3)


def test_a_failed_job_is_explained_with_the_command_that_continues_it(monitor: LocalMonitor, shelf: Shelf) -> None:
    shelf.add("train", [Made(state="failed", message="ValueError: nan")])
    lines = list(explanation_lines(monitor.explain("train"), now_s=0.0, columns=80))
    assert lines[1] == "possible: what did not complete runs again by `stoker run --failed train`"


def test_the_machine_has_telemetry_of_its_host_and_no_other_machine_has(monitor: LocalMonitor) -> None:
    view = monitor.telemetry("desk")
    assert view.machine == "desk"
    assert view.devices[0].device == ""
    assert view.devices[0].now is not None
    assert view.devices[0].now.memory_total_bytes
    with pytest.raises(NotFound, match="no machine 'lab'"):
        monitor.telemetry("lab")


def test_code_of_two_runs_of_a_name(monitor: LocalMonitor, shelf: Shelf) -> None:
    for digest in ("1" * 64, "2" * 64):
        attempt = shelf.add("train", [Made()])
        code = dumps({"v": 1, "program": ["python", "x.py"], "code": {"x.py": f"sha256:{digest}", "y.py": "3" * 64}})
        Path(shelf.runs, attempt, "config.json").write_text(code)
    diff = monitor.code_diff("train")
    assert diff.files == ("x.py",)
    assert "111111111111 → 222222222222" in diff.text
    for attempt, text in ((diff.parent, "lr = 1\n"), (monitor.job("train").job.id, "lr = 2\n")):
        digest = {"lr = 1\n": "1" * 64, "lr = 2\n": "2" * 64}[text]
        Path(shelf.runs, attempt, "code.json").write_text(dumps({"v": 1, "texts": {digest: text}}))
    assert "-lr = 1\n+lr = 2\n" in monitor.code_diff("train").text
    assert monitor.code_diff("train", diff.parent).parent == diff.parent
    assert monitor.code_diff(diff.parent).note == "no earlier run has this name"


def test_very_many_changes_are_not_read_one_by_one(
    monitor: LocalMonitor, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.api.local_jobs.MOST_CHANGED", 2)
    for name in ("a", "b", "c"):
        shelf.add(name, [Made()])
    monkeypatch.setattr("stoker.api.local_jobs._progress", lambda _story: pytest.fail("a journal was read"))
    assert monitor.changes(0, 0.0).resync


def test_changes_are_rows_that_changed_since_a_number(monitor: LocalMonitor, shelf: Shelf) -> None:
    attempt = shelf.add("live", [Made(state="running", metrics={"loss": 1.0})], is_ended=False)
    old = shelf.add("old", [Made()])
    seq = monitor.overview().seq
    assert monitor.changes(seq, 0.0).jobs == ()
    folder = JobFolder(os.path.join(shelf.runs, attempt))
    status = StatusWriter(folder.status_path, source="x", clock=monitor._parts.clock)
    status.emit(Event(Kinds.STAGE_STEP, {"node": "train", "step": 4, "of": 9, "metrics": {"loss": 0.5}}))
    status.close()
    changed = monitor.changes(seq, 0.0)
    assert [(job.name, job.step, job.metrics) for job in changed.jobs] == [("live", 4, {"loss": 0.5})]
    assert changed.counts == {"running": 1, "completed": 1}
    shutil.rmtree(os.path.join(shelf.runs, old))
    later = monitor.changes(changed.seq, 0.0)
    assert (later.jobs, later.gone) == ((), (old,))
    # A number of another process means nothing here.
    assert monitor.changes(10_000, 0.0).resync
    # A job whose process is gone has failed, though nothing in its folder changes.
    gone = {**(owner.to_dict() if (owner := folder.owner()) else {}), "pid": 2**22 - 1, "start_ticks": 1}
    Path(folder.path, "owner.json").write_text(dumps(gone))
    assert [(job.name, job.state) for job in monitor.changes(later.seq, 0.0).jobs] == [("live", "failed")]


def test_what_a_machine_without_a_queue_cannot_do_says_what_to_type(monitor: LocalMonitor, shelf: Shelf) -> None:
    shelf.add("train", [Made(state="failed", message="no")])
    with pytest.raises(InvalidTransition) as refused:
        monitor.requeue("train")
    assert "stoker run --failed train" in refused.value.hint
    with pytest.raises(InvalidTransition, match="has no queue"):
        monitor.set_priority("train", 3)
    with pytest.raises(Refused, match="can't be changed here"):
        monitor.set_machine("desk", "drain")
    with pytest.raises(InvalidTransition):
        monitor.cancel("train")


def test_a_job_of_this_machine_again_is_a_line_to_copy(monitor: LocalMonitor, shelf: Shelf) -> None:
    shelf.add("sweep", [Made(point={"lr": lr}) for lr in (0.1, 0.2)], args={"lr": 1.0, "note": "x"})
    form = monitor.repeat_form("sweep/2")
    assert not form.can_submit
    assert "lr=0.2" in form.command
    view = monitor.repeat("sweep/2", RepeatJobRequest(changes=("lr=0.3",), name="other", dry_run=True))
    assert (view.answer, view.faults) == (None, ())
    assert "lr=0.3" in view.command
    assert "lr=0.2" not in view.command
    assert view.command.endswith("--name other")
    (fault,) = monitor.repeat("sweep/2", RepeatJobRequest(changes=("=",), dry_run=True)).faults
    assert fault.message
    with pytest.raises(Refused, match="starts no jobs"):
        monitor.repeat("sweep/2", RepeatJobRequest(changes=("lr=0.3",)))
    with pytest.raises(Refused, match="a manifest is for a fleet"):
        monitor.submit_manifest(ManifestRequest(text=""))


def test_hundreds_of_jobs_that_did_not_change_cost_little(monitor: LocalMonitor, shelf: Shelf) -> None:
    first = shelf.add("train", [Made()])
    for number in range(300):
        target = Path(shelf.runs, f"20261116-{number:06d}-0000")
        target.mkdir()
        for name in ("job.json", "end.json"):
            os.link(Path(shelf.runs, first, name), target / name)
    seq = monitor.overview().seq
    began_s = time.process_time()
    for _ in range(5):
        assert monitor.changes(seq, 0.0).jobs == ()
    assert (time.process_time() - began_s) / 5 < 0.02
