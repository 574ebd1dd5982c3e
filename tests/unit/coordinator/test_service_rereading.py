from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stoker.coordinator.http.reload import CoordinatorFiles, cluster_changes, lines_of, manifest_changes, trouble_of
from stoker.coordinator.queue.commands import Answer, Command, Declare, QueueCommandResult, Submit
from stoker.core.errors import DatabaseTrouble, Diagnostic, InvalidCluster, InvalidManifest
from stoker.core.machine import Cluster, Node, UserPolicy
from stoker.protocol.job_messages import JobSubmissionResult, Submission, SubmissionOutcome, SubmissionResponse
from stoker.protocol.view_messages import NOTHING_GIVEN

DESK = Node(name="desk", host="desk.local")
LAB = Node(name="lab", host="lab.local")


class Told:
    """A queue that remembers what it was asked."""

    def __init__(self, *outcomes: JobSubmissionResult, vanished: tuple[str, ...] = ()) -> None:
        self.asked: list[Command] = []
        self._outcomes = outcomes
        self._vanished = vanished

    def ask(self, command: Command) -> Answer:
        self.asked.append(command)
        if isinstance(command, Submit):
            return SubmissionResponse(
                jobs=self._outcomes,
                counts={"new": len(self._outcomes)},
                vanished=self._vanished,
                dry_run=command.asked.dry_run,
            )
        return QueueCommandResult(notes=("1 machine is another now",))


def outcome(name: str, number: int, what: SubmissionOutcome, *changes: str) -> JobSubmissionResult:
    return JobSubmissionResult(
        id=f"{name}{number}", name=name, number=number, outcome=what, state="pending", changes=changes
    )


def reading(*answers: Any) -> Callable[[], Any]:
    left = list(answers)

    def read() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return read


def test_what_is_another_in_a_cluster_is_said_machine_by_machine():
    faster = Node(name="desk", host="desk.local", priority=3, max_adapters=2)
    assert cluster_changes(None, Cluster(nodes=(DESK,))) == ("desk: new",)
    assert cluster_changes(Cluster(nodes=(DESK, LAB)), Cluster(nodes=(faster,))) == (
        "lab: no longer declared",
        "desk: max_adapters, priority",
    )
    assert cluster_changes(Cluster(nodes=(DESK,)), Cluster(nodes=(DESK,))) == ()


def test_what_is_another_of_users_is_said_user_by_user():
    before = Cluster(nodes=(DESK,), users={"ada": UserPolicy(weight=2.0), "bob": UserPolicy()})
    after = Cluster(nodes=(DESK,), users={"ada": UserPolicy(most_jobs=3), "*": UserPolicy(most_jobs=1)})
    assert cluster_changes(before, after) == (
        "user *: new",
        "user bob: no longer declared",
        "user ada: weight, most_jobs",
    )


def test_both_files_are_read_before_anything_holds():
    queue = Told()
    faults = InvalidManifest("one fault", faults=(Diagnostic("manifest.toml:3", "no such recipe"),))
    files = CoordinatorFiles(queue, cluster=reading(Cluster(nodes=(DESK,))), manifest=reading(faults))
    with pytest.raises(InvalidManifest):
        files.read_again()
    assert queue.asked == []


def test_a_dry_run_says_the_same_and_changes_nothing():
    queue = Told(outcome("a", 0, SubmissionOutcome.NEW))
    cluster = Cluster(nodes=(DESK,))
    files = CoordinatorFiles(
        queue, cluster=reading(cluster, cluster), manifest=reading(*[Submission(jobs=())] * 2), source="c.yaml"
    )
    tried = files.read_again(dry_run=True)
    assert [type(one) for one in queue.asked] == [Submit]
    assert isinstance(queue.asked[0], Submit)
    assert queue.asked[0].asked.dry_run
    done = files.read_again(False, "ann")
    assert done.changed == tried.changed == ("desk", "a0")
    assert queue.asked[-1] == Declare(cluster=cluster, source="c.yaml", by="ann")


def test_what_a_manifest_changed_is_told_job_by_job():
    queue = Told(
        outcome("a", 1, SubmissionOutcome.NEW),
        outcome("a", 2, SubmissionOutcome.KNOWN),
        outcome("b", 0, SubmissionOutcome.CHANGED, "priority"),
        outcome("c", 0, SubmissionOutcome.KEPT),
        vanished=("d", "e"),
    )
    done = CoordinatorFiles(queue, manifest=reading(Submission(jobs=()))).read_again()
    assert done.changed == ("a1", "b0")
    assert done.notes[:3] == ("a/1: new", "b: changed (priority)", "c: kept")
    assert "2 pending jobs no longer in the manifest" in done.notes[3]
    assert lines_of(done) == list(done.notes)


def test_without_files_there_is_nothing_to_read_again():
    done = CoordinatorFiles(Told()).read_again()
    assert lines_of(done) == [NOTHING_GIVEN]


def test_a_cluster_is_not_declared_if_the_queue_refuses_the_manifest():
    class Refusing(Told):
        def ask(self, command: Command) -> Answer:
            self.asked.append(command)
            raise DatabaseTrouble("the disk is full")

    queue = Refusing()
    files = CoordinatorFiles(queue, cluster=reading(Cluster(nodes=(DESK,))), manifest=reading(Submission(jobs=())))
    with pytest.raises(DatabaseTrouble):
        files.read_again()
    assert [type(one) for one in queue.asked] == [Submit]


def test_trouble_is_told_with_every_fault():
    faults = (Diagnostic("c.yaml:2", "host is missing"), Diagnostic("c.yaml:4", "no such key"))
    lines = trouble_of(InvalidCluster("c.yaml has 2 errors", faults=faults))
    assert lines == [
        "c.yaml has 2 errors — nothing was changed",
        "c.yaml:2: host is missing",
        "c.yaml:4: no such key",
    ]


def test_a_job_that_is_known_under_another_name_is_listed_with_that_name():
    known = outcome("mm", 1, SubmissionOutcome.KNOWN).model_copy(update={"known_as": "s/1", "state": "completed"})
    moved = outcome("mm", 2, SubmissionOutcome.CHANGED, "args").model_copy(update={"known_as": "s/2"})
    renamed = outcome("mm", 3, SubmissionOutcome.CHANGED, "name").model_copy(update={"known_as": "s/3"})
    same = outcome("mm", 4, SubmissionOutcome.KNOWN)
    ids, lines = manifest_changes(SubmissionResponse(jobs=(known, moved, renamed, same), counts={}))
    assert ids == ["mm2", "mm3"]
    assert lines == [
        "mm/2, already in the queue as s/2: changed (args)",
        "mm/3, until now s/3: changed (name)",
        "mm/1, already in the queue as s/1: completed",
    ]
