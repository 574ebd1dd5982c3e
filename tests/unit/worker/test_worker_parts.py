"""The small parts of a keeper: ends and their causes, inheritance, hearing, pauses, options, lease files."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.errors import Cancelled, NoSpace, OutOfMemory, StageFailed, StokerError, UnknownRecipe, Usage
from stoker.core.frozen import changed
from stoker.core.job import EnvironmentChoice, InputKind, JobInput, JobSpec, JobState
from stoker.core.jsontext import dumps
from stoker.core.leases import AttemptToken, Partition
from stoker.core.machine import DevicePreference, Requirements
from stoker.host.identity import Liveness, mine, of_pid
from stoker.jobs.job_folder import JobEnd
from stoker.worker.actions import AttemptJournalTail, AttemptProgress, inherit
from stoker.worker.assignment import Assignment, AttemptEnd, LeaseFile, LeaseWatch, end_of
from stoker.worker.worker_options import Pause, clear_pause, read_declared, read_pause, within_allocation, write_pause
from stoker.worker.worker_state import AttemptPhase, HeldLease, Journal, JournaledLease, Predecessor
from tests.fakes.grants import grant_of

URL = "http://127.0.0.1:7717"
GRANT = grant_of(job="a" * 64, attempt=1, epoch=1, generation=1, name="a", recipe="command", lease_s=90.0, start_s=60.0)


def failed(error: StokerError) -> AttemptEnd:
    return AttemptEnd(state=JobState.FAILED, error=error.to_dict(), exit_code=error.exit_code)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StageFailed("run: exit 1", node="run", cause="user"), "user"),
        (StageFailed("run: gone", node="run", cause="lost"), "lost"),
        (StageFailed("run: of an older version", node="run", cause="bad luck"), "user"),
        (OutOfMemory("too much"), "oom_host"),
        (NoSpace("full"), "io"),
        (UnknownRecipe("nobody/knows"), "input"),
        (Cancelled("ended by somebody"), "lost"),
    ],
    ids=["user", "lost", "unknown", "memory", "disk", "input", "cancelled"],
)
def test_a_failure_has_the_cause_that_its_error_tells(error: StokerError, cause: str):
    assert failed(error).cause == cause


def test_who_went_without_a_word_is_lost():
    end = end_of(None, how="signal 9 (SIGKILL)")
    assert (end.cause, end.message) == ("lost", "process exited without writing its result: signal 9 (SIGKILL)")
    assert not end.is_completed


def test_a_written_end_is_taken_at_its_word():
    written = JobEnd.given_up(Cancelled("stopped"), started_s=1.0, ended_s=3.0)
    assert end_of(written) == AttemptEnd(
        state=JobState.CANCELLED, error=Cancelled("stopped").to_dict(), exit_code=130, seconds=2.0
    )


def predecessor(*written: JournaledLease, coordinator: str = URL) -> Predecessor:
    return Predecessor(incarnation="i" * 32, coordinator=coordinator, leases=written)


def left(*, ends_s: float = 100.0, partition: Partition = Partition.STOP) -> JournaledLease:
    grant = GRANT.model_copy(update={"spec": changed(GRANT.spec, on_partition=partition)})
    return JournaledLease(grant=grant, run="run-1", child=mine(), ends_s=ends_s)


@pytest.mark.parametrize("liveness", [Liveness.ALIVE, Liveness.GONE], ids=str)
def test_an_attempt_whose_lease_lasts_is_gone_on_with_under_the_same_incarnation(liveness: Liveness):
    found = inherit(predecessor(left()), coordinator=URL, now_s=99.0, liveness={"run-1": liveness})
    assert found.incarnation == "i" * 32
    assert [(lease.run, lease.phase, lease.ends_s) for lease in found.adopted] == [
        ("run-1", AttemptPhase.RUNNING, 100.0)
    ]
    assert found.ended == ()


@pytest.mark.parametrize(
    ("written", "coordinator", "liveness"),
    [
        (left(ends_s=99.0), URL, Liveness.ALIVE),
        (left(), "http://elsewhere:1", Liveness.ALIVE),
        (left(), URL, Liveness.UNKNOWN),
    ],
    ids=["lease over", "another coordinator", "another host"],
)
def test_what_nobody_may_go_on_with_is_ended_under_a_new_incarnation(
    written: JournaledLease, coordinator: str, liveness: Liveness
):
    found = inherit(predecessor(written), coordinator=coordinator, now_s=99.0, liveness={"run-1": liveness})
    assert (found.incarnation, found.adopted, found.ended) == ("", (), (written,))


def test_a_job_that_keeps_on_is_gone_on_with_after_its_lease():
    kept = left(ends_s=10.0, partition=Partition.KEEP)
    found = inherit(predecessor(kept), coordinator=URL, now_s=99.0, liveness={"run-1": Liveness.ALIVE})
    assert [lease.is_over for lease in found.adopted] == [True]


def test_a_journal_gives_back_what_was_held_and_survives_nonsense(tmp_path: Path):
    journal = Journal(str(tmp_path / "desk"))
    journal.open()
    assert journal.read() is None
    held = HeldLease(grant=GRANT, phase=AttemptPhase.RUNNING, ends_s=100.0, run="run-1", child=mine())
    unborn = HeldLease(grant=GRANT, phase=AttemptPhase.STARTING, ends_s=100.0)
    journal.write(incarnation="i" * 32, coordinator=URL, leases=[held, unborn])
    read = journal.read()
    assert read is not None
    assert read.leases == (JournaledLease(grant=GRANT, run="run-1", child=mine(), ends_s=100.0),)
    (tmp_path / "desk" / "journal.json").write_text('{"boot_id": 7')
    assert journal.read() is None


def test_a_journal_of_another_boot_is_nobodys(tmp_path: Path):
    journal = Journal(str(tmp_path))
    (tmp_path / "journal.json").write_text(
        dumps({"v": 1, "incarnation": "i" * 32, "coordinator": URL, "boot_id": "long ago", "leases": []})
    )
    assert journal.read() is None


def test_a_journal_of_a_run_is_heard_line_by_line_and_across_its_turning_over(tmp_path: Path):
    path = tmp_path / "status.jsonl"
    hearing = AttemptJournalTail(str(path))
    assert hearing.look() == AttemptProgress()
    path.write_text(_line("stage_begin", node="train") + _line("stage_step", node="train", step=3, of=9)[:-5])
    assert (hearing.look().stage, hearing.look().step) == ("train", None)
    path.write_text(
        _line("stage_begin", node="train")
        + _line("stage_step", node="train", step=3, of=9)
        + _line("stage_step", node="train", step=4, of=9, metrics={"loss": 0.5, "note": "odd"})
    )
    heard = hearing.look()
    assert (heard.step, heard.of, heard.metrics) == (4, 9, {"loss": 0.5})
    path.rename(tmp_path / "status.1.jsonl")
    path.write_text(_line("stage_waiting", node="train", why="GPU-1 is taken"))
    assert hearing.look().says == "waits: GPU-1 is taken"
    hearing.close()


def _line(kind: str, **fields: Any) -> str:
    return dumps({"v": 1, "kind": kind, **fields}) + "\n"


def test_a_pause_holds_until_its_time_and_can_be_taken_back(tmp_path: Path):
    state = str(tmp_path)
    assert read_pause(state, now_s=0.0) is None
    pause = Pause(until_s=7200.0, since_s=0.0, by="ann")
    write_pause(state, pause)
    assert read_pause(state, now_s=7199.0) == pause
    assert pause.why() == "paused by ann until 1970-01-01 02:00 UTC"
    assert read_pause(state, now_s=7200.0) is None
    write_pause(state, changed(pause, until_s=None))
    assert read_pause(state, now_s=1e12) is not None
    clear_pause(state)
    clear_pause(state)
    assert read_pause(state, now_s=0.0) is None


def test_what_is_declared_is_read_with_units():
    declared = read_declared(["cores=2,ram=4G", "gpus=0"])
    assert declared == {"cores": 2, "ram_bytes": 4 << 30, "gpus": 0}
    assert read_declared(["gpus=GPU-1+GPU-2"]) == {"gpus": ["GPU-1", "GPU-2"]}
    with pytest.raises(Usage, match="ram=much"):
        read_declared(["ram=much"])


def test_a_lease_file_says_until_when_and_its_absence_ends_whoever_runs(tmp_path: Path):
    clock, lease = FakeClock(), LeaseFile(str(tmp_path / "leases" / "run-1"))
    assert lease.why_over(clock.boottime_s()) == "lease released by its worker"
    lease.write(100.0, Partition.STOP)
    clock.advance(40.0)
    assert lease.why_over(clock.boottime_s()) == ""
    clock.suspend(60.0)
    assert "lease expired" in lease.why_over(clock.boottime_s())
    lease.write(100.0, Partition.KEEP)
    assert lease.why_over(clock.boottime_s()) == ""
    (tmp_path / "leases" / "run-1").write_text("soon")
    assert lease.why_over(0.0)
    lease.remove()
    lease.remove()


def test_an_attempt_that_nothing_continues_ends_with_its_worker(tmp_path: Path):
    heard: Queue[str] = Queue()
    lease = LeaseFile(str(tmp_path / "run-1"))
    lease.write(math.inf, Partition.STOP)
    with subprocess.Popen(["sleep", "60"]) as worker:
        watch = LeaseWatch(
            lease,
            clock=SystemClock(),
            on_over=heard.put,
            worker=of_pid(worker.pid),
            on_gone=lambda: heard.put("gone"),
            every_s=0.01,
        )
        with watch:
            with pytest.raises(Empty):
                heard.get(timeout=0.1)
            worker.kill()
            assert heard.get(timeout=30.0) == "gone"
    assert heard.empty()


def test_an_assignment_comes_back_from_its_line_as_it_was():
    spec = JobSpec(
        id="a" * 64,
        name="net",
        number=3,
        label="lr=0.1",
        point={"lr": 0.1},
        recipe="command",
        args={"argv": ["true", "ü\n"]},
        inputs=(JobInput(where="env:DATA", kind=InputKind.FILE, tree="b" * 64),),
        environment=(EnvironmentChoice(kind="uv.lock", path="uv.lock", extras=("gpu",)),),
        requirements=Requirements(wish=DevicePreference.REQUIRE, cores=2),
        on_partition=Partition.KEEP,
        train_hosts=("desk",),
    )
    token = AttemptToken(job=spec.id, attempt=2, epoch=5, generation=1)
    assignment = Assignment(
        spec=spec, token=token, folder="/x", devices=["GPU-1"], run="run-1", lease_path="/l", environment={"A": "b"}
    )
    line = assignment.to_line()
    assert line.count(b"\n") == 1
    assert Assignment.from_line(line) == assignment


SLURM = {"SLURM_JOB_ID": "12", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "4096"}


@pytest.mark.parametrize(
    ("variables", "declared", "limits"),
    [
        ({}, {}, {}),
        ({"SLURM_CPUS_ON_NODE": "8"}, {}, {}),
        (SLURM, {}, {"cores": 8, "ram_bytes": 4 << 30}),
        ({**SLURM, "SLURM_CPUS_PER_TASK": "2"}, {}, {"cores": 2, "ram_bytes": 4 << 30}),
        (SLURM, {"cores": 4, "ram_bytes": 8 << 30, "gpus": 0}, {"cores": 4, "ram_bytes": 4 << 30, "gpus": 0}),
        (SLURM, {"gpus": ["GPU-1"]}, {"cores": 8, "ram_bytes": 4 << 30, "gpus": ["GPU-1"]}),
        ({**SLURM, "SLURM_MEM_PER_NODE": "0"}, {}, {"cores": 8}),
        (
            {"SLURM_JOB_ID": "12", "SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_CPU": "512"},
            {},
            {"cores": 4, "ram_bytes": 4 << 30},
        ),
        ({"SLURM_JOB_ID": "12", "SLURM_CPUS_ON_NODE": "8(x2)", "SLURM_MEM_PER_NODE": "-1"}, {"cores": 3}, {"cores": 3}),
    ],
    ids=range(9),
)
def test_a_worker_offers_no_more_than_its_allocation(variables, declared, limits):
    assert within_allocation(declared, variables) == limits
