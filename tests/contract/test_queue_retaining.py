"""Pins and prunes, through the queue and with real bytes: no record without bytes that is not marked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.coordinator.queue.commands import PinJobs, PruneBundles, QueueCommandResult
from stoker.coordinator.storage.models import ModelView, ModelViewUpdater
from stoker.coordinator.storage.retention import CoordinatorPruner, QueueRecords, RetentionPolicy
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import CoordinatorTrees, QueueTrees
from stoker.core.clock import SystemClock
from stoker.core.errors import NotFound
from stoker.protocol.lease_messages import CancelConfirmed, CheckpointBody, Grant, PointCheckpoint
from tests.contract.queue_driving import Driven
from tests.contract.queue_words import TREE, finish, say, started

EVERYTHING = RetentionPolicy(older_than_s=0.0, keep_last=0)


@pytest.fixture
def keeping(tmp_path: Path, fleet: Driven) -> Iterator[CoordinatorStorage]:
    """What is kept beside that queue. What is checked in the end is asked of it, too."""
    fleet.clock.jump(SystemClock().wall_s() - fleet.clock.wall_s() + 60.0)
    keeping = CoordinatorStorage(str(tmp_path / "fleet"), fleet.clock)
    fleet.objects.clear()
    yield keeping
    fleet.objects.update({one.digest: one.size_bytes for one in keeping.objects.list()})
    keeping.close()


def bring(fleet: Driven, keeping: CoordinatorStorage, data: bytes) -> str:
    sha = hashlib.sha256(data).hexdigest()
    upload = keeping.bundles.begin(sha, len(data))
    keeping.bundles.append(upload.id, 0, data)
    keeping.bundles.finish(upload.id)
    fleet.objects[sha] = len(data)
    return sha


def completed(fleet: Driven, keeping: CoordinatorStorage, name: str) -> tuple[Grant, str]:
    grant = started(fleet, name)
    sha = bring(fleet, keeping, name.encode())
    fleet.ask(finish(grant, archive_sha256=sha, size_bytes=len(name)))
    return grant, sha


def pruning(fleet: Driven, keeping: CoordinatorStorage) -> CoordinatorPruner:
    contents = CoordinatorTrees(keeping, QueueTrees(fleet.queue, fleet.database))
    return CoordinatorPruner(keeping, QueueRecords(fleet.queue, fleet.database), contents)


def pin(fleet: Driven, job: str, *, is_pinned: bool = True) -> QueueCommandResult:
    done = fleet.ask(PinJobs(jobs=(job,), is_pinned=is_pinned, by="me"))
    assert isinstance(done, QueueCommandResult)
    return done


def test_a_pruned_result_is_marked_and_its_bytes_are_gone(fleet: Driven, keeping: CoordinatorStorage) -> None:
    _, sha = completed(fleet, keeping, "one")
    fleet.clock.advance(10.0)
    prune = pruning(fleet, keeping)
    done = prune.carry_out(prune.look(EVERYTHING), by="ann@desk")
    assert (len(done.marked), done.objects) == (1, 1)
    assert keeping.has_archive(sha) is None
    assert fleet.reader.story("one").bundle["pruned_s"] is not None
    assert prune.look(EVERYTHING).results.removals == ()
    assert [event["by"] for event in fleet.reader.story("one").events if event.get("pruned")] == ["ann@desk"]


def test_a_job_that_is_requeued_goes_on_from_no_checkpoint_whose_bytes_were_pruned(
    fleet: Driven, keeping: CoordinatorStorage
) -> None:
    grant = started(fleet)
    sha = bring(fleet, keeping, b"a checkpoint")
    body = CheckpointBody(scratch=TREE, tree=TREE, archive_sha256=sha, size_bytes=12)
    say(fleet, grant, PointCheckpoint, checkpoint=body)
    for is_here in (True, False):
        fleet.cancel(grant.job)
        say(fleet, grant, CancelConfirmed)
        if not is_here:
            fleet.objects.pop(sha)
        fleet.requeue(grant.job)
        (grant,) = fleet.claim()
        assert grant.checkpoint == (body if is_here else None)
    assert fleet.reader.story("one").job.ended_s is None


def test_a_completed_job_that_is_requeued_begins_anew(fleet: Driven, keeping: CoordinatorStorage) -> None:
    grant = started(fleet)
    sha = bring(fleet, keeping, b"a checkpoint")
    body = CheckpointBody(scratch=TREE, tree=TREE, archive_sha256=sha, size_bytes=12)
    say(fleet, grant, PointCheckpoint, checkpoint=body)
    fleet.ask(finish(grant, archive_sha256=sha, size_bytes=12))
    fleet.requeue(grant.job)
    (again,) = fleet.claim()
    assert again.checkpoint is None


def test_a_pinned_result_stays_until_the_pin_is_taken_away(fleet: Driven, keeping: CoordinatorStorage) -> None:
    grant, sha = completed(fleet, keeping, "one")
    fleet.clock.advance(10.0)
    assert pin(fleet, grant.job).changed == (grant.job,)
    prune = pruning(fleet, keeping)
    outlook = prune.look(EVERYTHING)
    assert outlook.results.kept_by_reason == {"pinned": 1}
    assert prune.carry_out(outlook).objects == 0
    assert keeping.has_archive(sha) == 3
    pin(fleet, grant.job, is_pinned=False)
    assert prune.carry_out(prune.look(EVERYTHING)).objects == 1


def test_a_pin_that_comes_between_looking_and_acting_counts(fleet: Driven, keeping: CoordinatorStorage) -> None:
    grant, sha = completed(fleet, keeping, "one")
    fleet.clock.advance(10.0)
    prune = pruning(fleet, keeping)
    outlook = prune.look(EVERYTHING)
    pin(fleet, grant.job)
    assert prune.carry_out(outlook).marked == ()
    assert keeping.has_archive(sha) == 3


def test_only_what_is_there_can_be_pinned(fleet: Driven, keeping: CoordinatorStorage) -> None:
    grant = started(fleet, "runs")
    assert pin(fleet, grant.job).notes == ("runs has no result to keep",)
    with pytest.raises(NotFound):
        pin(fleet, "f" * 64)


def test_marking_twice_marks_once_and_says_so(fleet: Driven, keeping: CoordinatorStorage) -> None:
    completed(fleet, keeping, "one")
    completed(fleet, keeping, "two")
    ids = tuple(row["id"] for row in fleet.reader.bundles())
    assert fleet.ask(PruneBundles(bundles=(ids[0],))) == QueueCommandResult(changed=(str(ids[0]),))
    assert fleet.ask(PruneBundles(bundles=ids)) == QueueCommandResult(changed=(str(ids[1]),))
    assert fleet.ask(PruneBundles(bundles=())) == QueueCommandResult()
    pruned = [event for event in fleet.reader.events(0, 100) if event.get("pruned")]
    assert len(pruned) == 2
    # The bytes are still there: what is marked may only be less than what is kept.
    assert len(list(keeping.objects.list())) == 2


def test_a_checkpoint_keeps_its_archive_while_its_job_may_be_tried_again(
    fleet: Driven, keeping: CoordinatorStorage
) -> None:
    grant = started(fleet, "trains")
    sha = bring(fleet, keeping, b"checkpoint")
    body = CheckpointBody(scratch="c" * 64, tree=TREE, archive_sha256=sha, size_bytes=10, step=7)
    say(fleet, grant, PointCheckpoint, checkpoint=body)
    overtaken = bring(fleet, keeping, b"overtaken")
    fleet.clock.jump(30 * 86400.0)
    prune = pruning(fleet, keeping)
    assert [digest for digest, _ in prune.look(RetentionPolicy()).orphans] == [overtaken]
    prune.carry_out(prune.look(RetentionPolicy()))
    assert keeping.has_archive(sha) == 10
    result = bring(fleet, keeping, b"result")
    fleet.clock.jump(-30 * 86400.0)
    fleet.ask(finish(grant, archive_sha256=result, size_bytes=6))
    fleet.clock.jump(30 * 86400.0)
    assert [digest for digest, _ in prune.look(RetentionPolicy()).orphans] == [sha]


def test_results_are_shown_by_model_once_also_by_a_coordinator_that_starts_anew(
    fleet: Driven, keeping: CoordinatorStorage
) -> None:
    _, sha = completed(fleet, keeping, "one")
    ingesting = ModelViewUpdater(keeping.models, fleet.database)
    assert ingesting.catch_up() == 1
    completed(fleet, keeping, "two")
    assert ingesting.catch_up() == 1
    again = ModelViewUpdater(ModelView(keeping.models.folder, keeping.models._place_of), fleet.database)
    assert again.catch_up() == 0
    completed(fleet, keeping, "three")
    with again:
        again.changed(0, False)
    assert [row["name"] for row in keeping.models.rows()] == ["one", "two", "three"]
    with open(Path(keeping.models.folder) / "tabular_gbt" / sha / "bundle", "rb") as file:
        assert file.read() == b"one"
