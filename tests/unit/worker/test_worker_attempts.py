"""A keeper with real children: what becomes of a grant, told from the coordinator's side."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from stoker.core.digests import Digest, Tree, TreeEntry, digest_bytes
from stoker.core.errors import Cancelled, VersionSkew
from stoker.core.leases import Partition
from stoker.host.identity import Liveness, is_alive, of_pid
from stoker.protocol.lease_messages import CheckpointBody, LeaseInstructionKind
from stoker.store.statements import parse_statement
from stoker.worker.preparation.prepare_child import PrepareLine
from stoker.worker.worker_options import Pause, clear_pause, write_pause
from stoker.worker.worker_state import StartRefusal, WorkerPolicy
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.keeping import Keep

SLEEPER = (
    "test -e $0.ends && exit 0; "
    "echo $$ > $0; trap 'echo saved > $0.saved; exit 0' TERM; echo step=3 loss=0.25; while :; do sleep 0.05; done"
)
STUBBORN = "echo $$ > $0; trap '' TERM; while :; do sleep 0.05; done"
WAITER = "echo $$ > $0; while ! test -e $0.go; do sleep 0.02; done"


@pytest.fixture
def fleet() -> FakeCoordinator:
    return FakeCoordinator()


@pytest.fixture
def keep(tmp_path: Path, fleet: FakeCoordinator) -> Keep:
    return Keep(tmp_path, fleet)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keep]:
    """A worker that works all along, for tests that leave it as they found it."""
    keep = Keep(tmp_path_factory.mktemp("busy"), FakeCoordinator(), slots=2)
    keep.environment |= {"WANDB_API_KEY": "secret"}
    with keep:
        yield keep


def shell(keep: Keep, script: str, name: str = "job", **more: Any) -> str:
    """Submit a shell script, which gets the path of a file named after its job."""
    argv = ["/bin/sh", "-c", script, str(keep.folder / name)]
    return keep.fleet.submit(name, argv=argv, folder=str(keep.folder), **more)


def program_of(keep: Keep, name: str = "job") -> int:
    path = keep.folder / name
    keep.fleet.until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def is_gone(pid: int) -> bool:
    found = of_pid(pid)
    return found is None or is_alive(found) is Liveness.GONE


def test_a_job_is_started_and_finished_with_its_bundle_logs_and_metrics(busy: Keep):
    fleet = busy.fleet
    script = (
        "echo step=1 loss=0.5; echo model > $STOKER_OUT/model.txt; env | grep '^STOKER_TOKEN='; env | grep OPERATOR; "
        'test "$WANDB_API_KEY" = secret && echo has it'
    )
    job = shell(busy, script, number=3, label="lr=0.1", point={"lr": 0.1}, secrets=("WANDB_API_KEY",))
    fleet.until(lambda: fleet.jobs[job].state in ("completed", "failed"))
    finish = fleet.jobs[job].last
    assert fleet.words(job) == ["start", "finish"]
    assert finish.metrics == {"loss": 0.5}
    (model,) = (entry for entry in fleet.trees[finish.tree].entries if entry.path == "model.txt")
    assert fleet.objects[model.sha256] == b"model\n"
    log = fleet.files_there[(job, 1, "logs/run.log")].decode()
    assert f"STOKER_TOKEN={job}:1:1:1" in log
    assert "has it" in log
    wanted = json.loads(fleet.files_there[(job, 1, "job.json")])
    assert (wanted["job_id"], wanted["options"]["fleet"]["label"]) == (job, "lr=0.1")
    assert json.loads(fleet.files_there[(job, 1, "end.json")])["state"] == "completed"
    data = bytes(fleet.files_there[(job, 1, "receipt.json")])
    assert finish.facts["receipt"] == digest_bytes(data)
    receipt = parse_statement(data, "receipt.json")
    details = receipt.predicate["runDetails"]
    assert (details["builder"]["id"], details["metadata"]["invocationId"]) == ("desk", f"{job}/1/1")
    assert receipt.predicate["stoker_metrics"] == {"loss": 0.5}
    assert {one.name: dict(one.digest) for one in receipt.subject}["model.txt"] == {"sha256": model.sha256}
    place = busy.home / "state" / "worker" / "desk"
    fleet.until(lambda: not os.listdir(place / "leases"))
    assert not (place / "spool").exists()


def test_what_the_coordinator_closed_is_not_told_back_to_it(busy: Keep):
    fleet = busy.fleet
    fleet.closed = "drained by ann"
    fleet.until(lambda: ("closed", {"by": "coordinator", "why": "drained by ann"}) in busy.told)
    count = len(fleet.renewals)
    fleet.until(lambda: len(fleet.renewals) > count + 1)
    assert fleet.renewals[-1].measured.closed == {}
    fleet.closed = ""
    fleet.until(lambda: ("open", {"by": "coordinator", "why": ""}) in busy.told)


def test_what_was_brought_before_a_job_could_start_is_told_without_waiting_for_a_heartbeat(tmp_path: Path):
    fleet = FakeCoordinator(lease_s=3000.0, heartbeat_s=1000.0)
    keep = Keep(tmp_path, fleet)

    class Brings:
        """Brings something, and then finds that the rest can't be had."""

        def sweep(self) -> None:
            pass

        def prepare(
            self, _grant: object, _stop: object, heed: Callable[[PrepareLine], None], _user: object = None
        ) -> StartRefusal:
            heed(PrepareLine(count=1))
            return StartRefusal(reason="data", message="nobody has DATA", lasts=True)

    keep.preparing = Brings()
    with keep:
        fleet.until(lambda: fleet.renewals)
        fleet.submit("job", argv=["true"], folder=str(tmp_path), code_tree="c" * 64)
        keep.until_told("declined")
        fleet.until(lambda: len(fleet.renewals) == 2)


def test_a_failure_is_told_with_its_cause_and_its_last_line(busy: Keep):
    job = shell(busy, "echo 'ValueError: loss is nan' >&2; exit 3")
    busy.fleet.until(lambda: busy.fleet.jobs[job].state == "failed")
    failed = busy.fleet.jobs[job].last
    assert (failed.cause, failed.exit_code) == ("user", 1)
    assert "loss is nan" in failed.message


def test_what_can_not_start_here_is_declined_with_the_reason(busy: Keep):
    job = busy.fleet.submit("homeless", argv=["true"], folder="/nowhere/at/all")
    busy.fleet.until(lambda: busy.fleet.words(job) == ["decline"])
    declined = busy.fleet.jobs[job].last
    assert (declined.reason, declined.message) == ("folder", "there is no folder /nowhere/at/all here")


def test_a_checkpoint_whose_bytes_are_gone_is_told_and_the_job_begins_anew(busy: Keep):
    gone = CheckpointBody(scratch="b" * 64, tree="c" * 64, size_bytes=10, step=7)
    job = shell(busy, "echo anew", "anew", checkpoint=gone)
    busy.fleet.until(lambda: busy.fleet.jobs[job].state in ("completed", "failed"))
    assert busy.fleet.words(job) == ["start", "finish"]
    assert busy.until_told("checkpoint_missing") == {"job": "anew", "why": "no such tree"}


def test_a_checkpoint_that_takes_longer_than_the_lease_is_told_of_and_the_job_starts(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
):
    fleet = keep.fleet
    fleet.lease_s = 1.0

    files = [bytes([n]) for n in range(10)]
    tree = Tree(tuple(TreeEntry(f"{n}", 1, digest_bytes(data)) for n, data in enumerate(files)))
    fleet.trees[tree.digest()] = tree

    def slowly() -> Iterator[tuple[Digest, bytes]]:
        for data in files:
            seen = len(fleet.renewals)
            fleet.until(lambda: len(fleet.renewals) > seen)  # noqa: B023 - called at once
            yield digest_bytes(data), data

    monkeypatch.setattr(fleet, "fetch_contents", lambda _digests: nullcontext(slowly()))
    slow = CheckpointBody(scratch="b" * 64, tree=tree.digest(), size_bytes=10, step=7)
    with keep:
        job = shell(keep, "echo anew; sleep 0.5", checkpoint=slow)
        fleet.until(lambda: fleet.jobs[job].state in ("completed", "failed"))
    assert fleet.words(job) == ["start", "finish"]
    told = [report.prepared for report in fleet.jobs[job].reports]
    assert told == sorted(told)
    assert {1, 5, 9} <= set(told)


def test_a_cancelled_job_is_confirmed_once_its_program_is_gone(busy: Keep):
    fleet = busy.fleet
    job = shell(busy, SLEEPER, "cancelled")
    pid = program_of(busy, "cancelled")
    fleet.until(lambda: any(report.step == 3 for report in fleet.jobs[job].reports))
    assert all(report.is_alive for report in fleet.jobs[job].reports)
    fleet.wish(job, LeaseInstructionKind.CANCEL, "asked by ann")
    fleet.until(lambda: fleet.jobs[job].state == "cancelled")
    assert is_gone(pid)
    assert fleet.jobs[job].last.why == "asked by ann"
    assert (busy.folder / "cancelled.saved").exists()


def test_a_job_that_is_no_longer_ours_is_stopped_and_nothing_more_is_said_of_it(busy: Keep):
    fleet = busy.fleet
    job = shell(busy, SLEEPER, "stale")
    pid = program_of(busy, "stale")
    fleet.until(lambda: fleet.words(job) == ["start"])
    (busy.folder / "stale.ends").touch()
    fleet.expire(job)
    fleet.until(lambda: fleet.jobs[job].state == "completed")
    fleet.until(lambda: is_gone(pid))
    assert fleet.words(job) == ["start", "start", "finish"]
    assert fleet.jobs[job].last.attempt == 2


def test_a_job_whose_arguments_were_forged_is_declined_and_never_starts(busy: Keep):
    fleet = busy.fleet
    job = shell(busy, SLEEPER, "forged")
    honest = shell(busy, "true", "honest")
    forged = shell(busy, SLEEPER, "edited", identity={"argv": ["true"]})
    program_of(busy, "forged")
    fleet.until(lambda: fleet.words(forged) == ["decline"])
    assert fleet.jobs[forged].last.reason == "identity"
    assert fleet.jobs[forged].last.lasts
    fleet.wish(job, LeaseInstructionKind.CANCEL)
    fleet.until(lambda: fleet.jobs[honest].state == "completed")
    assert not (busy.folder / "edited").exists()


def test_a_program_does_not_run_with_a_path_in_the_place_of_a_text_of_its_id(keep: Keep, fleet: FakeCoordinator):
    job = fleet.submit("job", argv=["true"], folder=str(keep.folder), args={"note": "org/name"})
    # As an edited database would have it: the id is still that of the text.
    told = fleet.jobs[job].grant
    told["args"] = {**told["args"], "note": "/tmp/evil/org/name"}
    with keep:
        fleet.until(lambda: fleet.jobs[job].state in ("completed", "failed"))
    assert "argument note is not 'org/name', the value in its id" in fleet.jobs[job].last.message


def test_an_attempt_whose_process_is_killed_failed_as_lost_and_leaves_nothing(busy: Keep):
    fleet = busy.fleet
    job = shell(busy, SLEEPER, "killed")
    pid = program_of(busy, "killed")
    owner = json.loads((busy.home / "runs" / _run_of(busy, job) / "owner.json").read_text())
    os.kill(owner["pid"], signal.SIGKILL)
    fleet.until(lambda: fleet.jobs[job].state == "failed")
    assert fleet.jobs[job].last.cause == "lost"
    # The keeper of its box ends what a killed attempt leaves.
    fleet.until(lambda: is_gone(pid))


def test_a_job_is_not_charged_if_a_batch_system_signals_its_process_a_moment_before_the_worker(
    fleet: FakeCoordinator, keep: Keep
):
    with keep:
        job = shell(keep, SLEEPER)
        program_of(keep)
        keep.until_told("started")
        owner = json.loads((keep.home / "runs" / _run_of(keep, job) / "owner.json").read_text())
        os.kill(owner["pid"], signal.SIGTERM)
        fleet.until(lambda: is_gone(owner["pid"]))
        keep.leave()
        assert keep.join() == 143
    assert fleet.words(job) == ["start", "release"]


def test_a_pause_gives_the_machine_to_its_owner_until_it_is_over(busy: Keep):
    fleet, state = busy.fleet, str(busy.home / "state")
    job = shell(busy, SLEEPER, "paused")
    program_of(busy, "paused")
    write_pause(state, Pause(until_s=None, since_s=0.0, by="ann"))
    # A question that was open then may have brought it once more: it goes back unstarted.
    fleet.until(lambda: fleet.words(job)[:2] == ["start", "release"])
    fleet.until(lambda: fleet.renewals[-1].measured.closed == {"": "paused by ann"})
    assert (busy.folder / "paused.saved").exists()
    (busy.folder / "paused.ends").touch()
    clear_pause(state)
    fleet.until(lambda: fleet.jobs[job].state == "completed")


def test_a_dead_network_ends_the_job_with_its_lease_and_its_result_is_dropped(fleet: FakeCoordinator, keep: Keep):
    fleet.lease_s = 1.5
    with keep:
        job = shell(keep, SLEEPER)
        pid = program_of(keep)
        fleet.is_away = True
        keep.until_told("dropped")
        assert is_gone(pid)
        fleet.is_away = False
    assert "finish" not in fleet.words(job)


def test_a_job_that_keeps_on_offers_its_result_when_the_network_is_back(fleet: FakeCoordinator, keep: Keep):
    fleet.lease_s = 1.0
    with keep:
        job = shell(keep, WAITER, on_partition=Partition.KEEP)
        program_of(keep)
        fleet.until(lambda: fleet.words(job) == ["start"])
        fleet.is_away = True
        keep.until_told("lease_over")
        (keep.folder / "job.go").touch()
        keep.until_told("ended")
        assert fleet.words(job) == ["start"]
        fleet.is_away = False
        fleet.until(lambda: fleet.jobs[job].state == "completed")


def test_lost_answers_are_asked_again_and_nothing_is_done_twice(fleet: FakeCoordinator, keep: Keep):
    fleet.loses_answers_of = {"hello", "claim", "start", "put_files", "upload", "finish"}
    with keep:
        job = shell(keep, "echo done > $STOKER_OUT/x")
        keep.until_told("settled")
    assert fleet.words(job) == ["start", "finish"]
    assert fleet.jobs[job].attempt == 1
    assert not fleet.loses_answers_of


def test_asked_to_end_it_gives_back_what_runs_after_it_could_save(fleet: FakeCoordinator, keep: Keep):
    with keep:
        job = shell(keep, SLEEPER)
        pid = program_of(keep)
        keep.leave()
        assert keep.join() == 143
        assert is_gone(pid)
    assert [one.is_leaving for one in fleet.renewals[-2:]] == [False, True], "its last word"
    assert fleet.words(job) == ["start", "release"]
    assert fleet.jobs[job].state == "pending"
    assert (keep.folder / "job.saved").exists()


@pytest.mark.slow
def test_told_twice_it_ends_now_and_still_tells_the_coordinator(fleet: FakeCoordinator, keep: Keep):
    keep.wishes = WorkerPolicy(slots=1, stop_grace_s=60.0)
    with keep:
        job = shell(keep, STUBBORN)
        pid = program_of(keep)
        keep.leave()
        keep.until_told("stopping")
        keep.leave(Cancelled)
        assert keep.join() == 130
        assert is_gone(pid)
    assert fleet.words(job) == ["start", "release"]
    assert fleet.jobs[job].last.why == "the worker was stopped at once"


@pytest.mark.timing
def test_told_twice_while_nobody_answers_it_ends_within_a_moment(fleet: FakeCoordinator, keep: Keep):
    with keep:
        job = shell(keep, SLEEPER)
        pid = program_of(keep)
        fleet.is_away = True
        keep.leave()
        keep.until_told("leaving")
        keep.leave(Cancelled)
        began_s = time.monotonic()
        assert keep.join() == 130
        assert time.monotonic() - began_s < 10
        assert is_gone(pid)
    assert "release" not in fleet.words(job)


@pytest.mark.slow
def test_several_jobs_run_at_once_up_to_its_slots_and_it_ends_when_nothing_is_left(fleet: FakeCoordinator, keep: Keep):
    keep.wishes = WorkerPolicy(slots=2, until_idle=True)
    wait = "while ! test -e a -a -e b; do sleep 0.02; done"
    jobs = [shell(keep, f"touch {name}; {wait}", name) for name in ("a", "b")]
    with keep:
        assert keep.join() == 0
    assert [fleet.jobs[job].state for job in jobs] == ["completed", "completed"]


def test_a_full_disk_closes_the_worker_with_the_reason(fleet: FakeCoordinator, keep: Keep):
    keep.look_as(disk=lambda _path: 1 << 20)
    with keep:
        keep.until_told("closed")
        fleet.until(lambda: any("disk is full" in one.measured.closed.get("", "") for one in fleet.renewals))


def test_another_version_ends_it_with_its_code(fleet: FakeCoordinator, keep: Keep):
    fleet.fails_with = VersionSkew("the coordinator speaks 9")
    with keep:
        assert keep.join() == 35
        assert keep.until_told("refused")["why"] == "the coordinator speaks 9"


def _run_of(keep: Keep, job: str) -> str:
    return str(next(fields["run"] for kind, fields in keep.told if kind == "started" and fields["id"] == job))
