from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.authoring import PlanBuilder
from stoker.core.errors import Cancelled, NoSpace, StageFailed, Terminated
from stoker.core.events import Event, Kinds
from stoker.core.frozen import changed
from stoker.core.job import JobState
from stoker.engine.journal import read_status
from stoker.engine.types import RunOptions
from stoker.host.identity import mine
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import Execution, abandon
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import tell
from tests.unit.engine.lab import lines_of
from tests.unit.engine.misbehaving import HowArgs, misbehave_aside
from tests.unit.engine.stages import NumberArgs, number
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import code_of, fork, wait_until
from tests.unit.jobs.conftest import Office


def kinds(folder: JobFolder) -> list[str]:
    return [event["kind"] for event in read_status(folder.status_path)]


def hanging(office: Office, ledger: str) -> JobBuild:
    order = office.order("test/sum")
    plan = PlanBuilder("hang").start(misbehave_aside, HowArgs(how="polite", ledger=ledger)).finish()
    return JobBuild(plan=plan, spec=order.spec)


def test_a_job_leaves_a_folder_that_tells_everything(office: Office) -> None:
    done = office.run("test/sum", values="[1,2]", plus="4")
    assert (done.error, done.state) == (None, JobState.COMPLETED)
    assert sorted(os.listdir(done.folder.path)) == [
        "config.json",
        "end.json",
        "job.json",
        "logs",
        "metrics",
        "out.json",
        "owner.json",
        "receipt.json",
        "stages.json",
        "status.jsonl",
        "trials.jsonl",
    ]
    assert done.folder.owner() == mine()
    assert done.folder.spec().recipe == "test/sum"
    end = done.folder.ended()
    assert end is not None
    assert (end.hits, end.ran, end.failed, end.exit_code, end.error) == (0, 3, 0, 0, None)
    assert set(end.keys) == {"number", "number-2", "add"}
    assert end.parts == ("add", "number")
    assert kinds(done.folder)[0] == "run_begin"
    assert kinds(done.folder)[-1] == "run_end"
    story = tell(read_status(done.folder.status_path))
    assert story.begin["stages"] == 3
    assert (story.end["state"], story.end["ran"]) == ("completed", 3)
    assert "keys" not in story.end


def test_a_second_job_is_all_hits(office: Office) -> None:
    office.run("test/sum")
    again = office.run("test/sum")
    end = again.folder.ended()
    assert end is not None
    assert (end.hits, end.ran) == (3, 0)


def test_results_lie_in_a_plain_folder_with_a_sidecar(office: Office) -> None:
    done = office.run("test/sum", values="[1,2]", plus="4", name="mine")
    out = office.folder / "stoker-out" / "mine"
    assert json.loads((out / "value.json").read_text()) == 7
    assert json.loads((out / "number" / "value.json").read_text()) == 1
    assert os.readlink(office.folder / "stoker-out" / "last") == "mine"
    sidecar = json.loads((out / ".stoker.json").read_text())
    final, kept = sidecar["artifacts"]
    assert (final["folder"], final["node"], final["kind"], final["version"]) == (".", "add", "test-number", 1)
    assert (final["stage"], kept["folder"], kept["node"]) == ("test/add", "number", "number")
    assert final["digest"] == done.result.nodes["add"].products[0].ref.digest  # type: ignore[union-attr]
    assert final["made_at"] > 0
    assert done.laid_out is not None
    assert done.laid_out.folder == str(out)


def test_every_instance_of_a_fan_out_is_laid_out(office: Office) -> None:
    office.run("test/fan")
    out = office.folder / "stoker-out" / "fan"
    values = [json.loads((out / f"double[{index}]" / "value.json").read_text()) for index in range(3)]
    assert values == [0, 2, 4]


def test_a_job_may_do_without_a_plain_folder(office: Office) -> None:
    done = office.execution(office.order("test/sum"), out=None).run()
    assert done.laid_out is None
    assert not (office.folder / "stoker-out").exists()


def test_a_failed_job_says_why_and_lays_out_what_there_is(office: Office) -> None:
    done = office.run("test/go", how="raise")
    assert isinstance(done.error, StageFailed)
    assert done.state is JobState.FAILED
    assert done.laid_out is None
    end = done.folder.ended()
    assert end is not None
    assert (end.state, end.failed, end.exit_code) == (JobState.FAILED, 1, 1)
    assert end.error is not None
    assert end.error["error"] == "stage_failed"
    assert end.keys == {}


@pytest.mark.parametrize(("error", "code"), [(Cancelled("Ctrl-C"), 130), (Terminated("asked to end"), 143)])
def test_a_cancelled_job_is_cancelled_and_not_failed(office: Office, tmp_path: Path, error: Any, code: int) -> None:
    ledger = str(tmp_path / "ledger")
    execution = office.execution(hanging(office, ledger), options=RunOptions(grace_s=0.2))

    def cancel_when_it_runs() -> None:
        wait_until(lambda: bool(lines_of(ledger)))
        execution.cancel(error)

    thread = threading.Thread(target=cancel_when_it_runs)
    thread.start()
    done = execution.run()
    thread.join()
    assert done.state is JobState.CANCELLED
    end = done.folder.ended()
    assert end is not None
    assert (end.state, end.exit_code) == (JobState.CANCELLED, code)


def test_a_job_that_is_cancelled_before_it_begins_runs_nothing(office: Office, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger")
    execution = office.execution(office.order("test/sum", ledger=ledger))
    execution.cancel(Cancelled("never mind"))
    assert execution.run().state is JobState.CANCELLED
    assert lines_of(ledger) == []


def test_listeners_hear_every_event(office: Office) -> None:
    heard: list[str] = []

    def listen(event: Event, _at_s: float, _seq: int) -> None:
        heard.append(event.kind)

    done = office.execution(office.order("test/sum"), listeners=(listen,)).run()
    assert heard == kinds(done.folder)


def test_work_that_was_left_behind_is_a_warning_in_the_journal(office: Office, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    order = hanging(office, "")
    late = HowArgs(how="finish_late", gate=str(gate))
    plan = PlanBuilder("late").start(misbehave_aside, late, timeout_s=0.02).finish()
    execution = office.execution(JobBuild(plan=plan, spec=order.spec), options=RunOptions(grace_s=0.02))
    done = execution.run()
    gate.touch()
    told = [event["message"] for event in read_status(done.folder.status_path) if event["kind"] == Kinds.WARNING]
    assert told == ["misbehave-aside did not stop and was left running"]
    wait_until(lambda: office.lab.staged() == [])


def test_a_folder_for_results_that_cant_be_written_fails_the_job_and_keeps_the_results(office: Office) -> None:
    (office.folder / "stoker-out").write_text("in the way")
    done = office.run("test/sum")
    assert done.state is JobState.FAILED
    end = done.folder.ended()
    assert end is not None
    assert end.exit_code == 16
    assert set(end.keys) == {"number", "number-2", "add"}


def test_a_failure_of_the_work_is_told_before_one_of_its_folder(office: Office) -> None:
    (office.folder / "stoker-out").write_text("in the way")
    order = office.order("test/sum")
    builder = PlanBuilder("both")
    bad = builder.start(misbehave_aside, HowArgs(how="raise"), id="bad")
    good = builder.start(number, NumberArgs(value=1), id="good")
    execution = office.execution(
        JobBuild(plan=builder.finish(good, keep=(bad,)), spec=order.spec), options=RunOptions(keep_going=True)
    )
    done = execution.run()
    assert isinstance(done.error, StageFailed)


def test_a_bug_of_ours_ends_the_job_as_failed_and_is_not_hidden(office: Office) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        office.execution(office.order("test/sum"), listeners=(stumble,)).run()
    folder = office.only_job()
    end = folder.ended()
    assert end is not None
    assert (end.state, end.exit_code) == (JobState.FAILED, 70)


def test_a_full_disk_ends_the_job_with_its_own_code(office: Office, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=256k") as disk:
        tools = office.tools
        order = office.order("test/sum")
        execution = Execution(
            build=order,
            attempt=office.builder.new_attempt(order.spec, {}),
            tools=changed(tools, runs=str(disk / "runs")),
            out=None,
            listeners=(lambda event, _at_s, _seq: _fill(disk) if event.kind == "run_begin" else None,),
        )
        with pytest.raises(NoSpace) as raised:
            execution.run()
        assert raised.value.exit_code == 10


def _fill(disk: Path) -> None:
    with open(disk / "ballast", "ab", buffering=0) as ballast:
        block = b"x" * 4096
        while block:
            try:
                ballast.write(block)
            except OSError:
                block = block[: len(block) // 2]
    # The last bytes of the journal's own page.
    for path in disk.rglob("status.jsonl"):
        with open(path, "ab", buffering=0) as journal:
            room = -os.path.getsize(path) % 4096
            journal.write(b"\n" * room)


def test_a_job_that_is_given_up_is_written_down(office: Office) -> None:
    attempt = office.builder.new_attempt(office.order("test/sum").spec, {})
    folder = JobFolder.begin(office.runs, attempt, mine())
    office.lab.store.new_staging("left.behind")
    abandon(office.tools, attempt, Terminated("asked twice"))
    end = folder.ended()
    assert end is not None
    assert (end.state, end.exit_code) == (JobState.CANCELLED, 143)
    assert office.lab.staged() == []
    abandon(office.tools, attempt, Cancelled("again"))
    assert folder.ended() == end


def test_staging_of_a_killed_run_is_cleared_by_the_next(office: Office) -> None:
    assert code_of(fork(lambda: office.lab.store.new_staging("dead.one"))) == 0
    assert office.lab.staged()
    office.run("test/sum")
    assert office.lab.staged() == []
