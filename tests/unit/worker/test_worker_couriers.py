"""What is said of an attempt when saying it goes wrong: loudly if it is our own fault, not at all if it is not ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import CorruptBytes, Forbidden, StaleLease
from stoker.core.job import JobState
from stoker.core.leases import AttemptToken
from stoker.jobs.job_folder import JobFolder
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import Claim, Grant
from stoker.store.local_store import LocalStore
from stoker.transfer.mirror import AttemptFolderSync
from stoker.worker.assignment import AttemptEnd
from stoker.worker.attempt_process import WorkerRuntime
from stoker.worker.uploader import AttemptReporter
from stoker.worker.worker_state import FinalReport, FinalReportKind, Happening, LeaseLost, WorkerRejected
from tests.fakes.coordinator import FakeCoordinator

COMPLETED = AttemptEnd(state=JobState.COMPLETED, seconds=2.0)


@pytest.fixture
def fleet() -> FakeCoordinator:
    return FakeCoordinator()


def granted(fleet: FakeCoordinator) -> Grant:
    fleet.submit("job", argv=["true"], folder="")
    answer = fleet.claim(Claim(request_id="request-1", worker="desk", incarnation="incarnation-1"))
    return answer.grants[0]


def finishing(
    fleet: FakeCoordinator, folder: Path, grant: Grant, store: Callable[[], LocalStore]
) -> tuple[AttemptReporter, list[Happening]]:
    """A courier that is to bring a result, and what it reports."""
    reported: list[Happening] = []
    worker = SimpleNamespace(
        lines=SimpleNamespace(words=fleet, bytes=fleet),
        store=store,
        scratch=str(folder / "scratch"),
        clock=SystemClock(),
        tell=lambda _kind, _fields: None,
        name="desk",
    )
    runtime = SimpleNamespace(
        worker=worker,
        journal=SimpleNamespace(spool_folder=str(folder / "spool")),
        may_speak=lambda _: True,
        check_lease=lambda _: None,
        report=reported.append,
    )
    run = folder / "run-1"
    run.mkdir()
    (run / "job.json").write_text("{}")
    courier = AttemptReporter(cast(WorkerRuntime, runtime), grant)
    courier.follow(JobFolder(str(run)))
    courier.send(FinalReport(word=FinalReportKind.FINISH), COMPLETED)
    return courier, reported


def broken(error: Exception) -> Callable[[], LocalStore]:
    def store() -> LocalStore:
        raise error

    return store


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), CorruptBytes("gone")], ids=["bug", "bytes"])
def test_a_result_that_can_not_be_brought_is_told_as_failed_and_not_kept_silent(
    fleet: FakeCoordinator, tmp_path: Path, error: Exception
):
    grant = granted(fleet)
    courier, reported = finishing(fleet, tmp_path, grant, broken(error))
    fleet.until(lambda: reported)
    courier.close()
    assert fleet.jobs[grant.job].state == "failed"
    failed = fleet.jobs[grant.job].last
    assert failed.cause == "io"
    assert str(error) in failed.message


def test_what_is_not_ours_any_more_is_not_spoken_of(fleet: FakeCoordinator, tmp_path: Path):
    grant = granted(fleet)
    fleet.expire(grant.job)
    courier, reported = finishing(fleet, tmp_path, grant, broken(StaleLease("late")))
    fleet.until(lambda: reported)
    courier.close()
    assert isinstance(reported[0], LeaseLost)
    assert fleet.words(grant.job) == []


def test_who_may_not_speak_at_all_ends(fleet: FakeCoordinator, tmp_path: Path):
    grant = granted(fleet)
    fleet.fails_with = Forbidden("no token")
    courier, reported = finishing(fleet, tmp_path, grant, broken(ZeroDivisionError()))
    fleet.until(lambda: reported)
    courier.close()
    assert isinstance(reported[0], WorkerRejected)


@pytest.mark.parametrize("is_ours", [True, False])
def test_nothing_is_written_under_a_lease_that_is_over_by_our_clock(
    fleet: FakeCoordinator, tmp_path: Path, is_ours: bool
):
    token = granted(fleet).token()
    asked: list[AttemptToken] = []

    def may_speak(one: AttemptToken) -> bool:
        asked.append(one)
        return is_ours

    runtime = cast(WorkerRuntime, SimpleNamespace(may_speak=may_speak))
    (tmp_path / "a.log").write_bytes(b"x")
    mirror = AttemptFolderSync(
        str(tmp_path),
        token,
        cast(FleetClient, fleet),
        clock=SystemClock(),
        check_lease=lambda: WorkerRuntime.check_lease(runtime, token),
    )
    mirror.ship()
    assert set(asked) == {token}
    assert bool(fleet.files_there) is is_ours
