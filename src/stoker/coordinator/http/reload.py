"""Reload of a coordinator's cluster file and manifest: which machines and jobs changed.

An error in either file leaves everything unchanged, and is returned with its line and key. A dry run returns the same
changes and applies none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from stoker.coordinator.queue.commands import Answer, Command, Declare, QueueCommandResult, Submit
from stoker.core.errors import StokerError
from stoker.core.frozen import fields_of
from stoker.core.machine import Cluster, Node, UserPolicy
from stoker.core.pool import Pool
from stoker.core.text import counted, point_name
from stoker.protocol.job_messages import JobSubmissionResult, Submission, SubmissionOutcome, SubmissionResponse
from stoker.protocol.view_messages import NOTHING_GIVEN, DoneView

ReadCluster = Callable[[], Cluster]
ManifestReader = Callable[[], Submission]
_LISTED = 100
_SHORT = 12


class ReloadQueue(Protocol):
    """The part of the queue that is needed here."""

    def ask(self, command: Command) -> Answer:
        """Return the answer, or raise the error."""


class CoordinatorFiles:
    """The cluster file and the manifest of one coordinator; either may be missing. One thread at a time."""

    def __init__(
        self,
        queue: ReloadQueue,
        *,
        cluster: ReadCluster | None = None,
        manifest: ManifestReader | None = None,
        source: str = "",
    ) -> None:
        self._queue = queue
        self._read_cluster = cluster
        self._read_manifest = manifest
        self._source = source
        self._cluster: Cluster | None = None
        self._turn = threading.Lock()

    def read_again(self, dry_run: bool = False, by: str = "") -> DoneView:  # noqa: FBT001, FBT002 - handed on as a plain callable
        """Read both files, then apply both, on behalf of `by`. Raises if either is invalid, with nothing changed."""
        with self._turn:
            cluster = self._read_cluster() if self._read_cluster is not None else None
            submission = self._read_manifest() if self._read_manifest is not None else None
            notes = list(cluster_changes(self._cluster, cluster))
            changed: list[str] = [note.split(":")[0] for note in notes]
            data: dict[str, object] = {"files": (cluster is not None) + (submission is not None)}
            if cluster is not None:
                data["cluster"] = len(notes)
            if submission is not None:
                # Before the cluster: if the queue refuses it, the cluster must stay unchanged, too.
                submitted = self._submit(
                    submission.model_copy(update={"dry_run": dry_run, "submitter": by or submission.submitter})
                )
                names, lines = manifest_changes(submitted)
                changed += names
                notes += lines
                data |= {"jobs": submitted.counts, "vanished": len(submitted.vanished)}
            if cluster is not None and not dry_run:
                done = self._queue.ask(Declare(cluster=cluster, source=self._source, by=by))
                notes += done.notes if isinstance(done, QueueCommandResult) else ()
                self._cluster = cluster
            return DoneView(changed=tuple(changed), notes=tuple(notes), data={**data, "dry_run": dry_run})

    def _submit(self, submission: Submission) -> SubmissionResponse:
        answer = self._queue.ask(Submit(asked=submission))
        if not isinstance(answer, SubmissionResponse):
            message = f"the queue answered a submission with {type(answer).__name__}"
            raise TypeError(message)
        return answer


def cluster_changes(before: Cluster | None, after: Cluster | None) -> tuple[str, ...]:
    """Return what changed in a cluster file, a line per machine, user and pool."""
    if after is None:
        return ()
    before = before or Cluster(nodes=())
    old, new = ({node.name: node for node in cluster.nodes} for cluster in (before, after))
    old_users, new_users = ({f"user {name}": one for name, one in cluster.users.items()} for cluster in (before, after))
    old_pools, new_pools = ({f"pool {pool.name}": pool for pool in cluster.pools} for cluster in (before, after))
    return (*_changes(old, new), *_changes(old_users, new_users), *_changes(old_pools, new_pools))


def _changes(old: Mapping[str, Node | UserPolicy | Pool], new: Mapping[str, Node | UserPolicy | Pool]) -> list[str]:
    lines = [f"{name}: new" for name in new if name not in old]
    lines += [f"{name}: no longer declared" for name in old if name not in new]
    lines += [
        f"{name}: {', '.join(fields)}" for name in new if name in old and (fields := _differing(old[name], new[name]))
    ]
    return lines


def manifest_changes(submitted: SubmissionResponse) -> tuple[list[str], list[str]]:
    """Return what a manifest changed: the jobs' ids, and lines for users.

    A job that exists under another name is listed although unchanged: it is not found by the manifest's name.
    """
    moved = [job for job in submitted.jobs if job.outcome not in (SubmissionOutcome.KNOWN, SubmissionOutcome.KEPT)]
    kept = [job for job in submitted.jobs if job.outcome is SubmissionOutcome.KEPT]
    renamed = [job for job in submitted.jobs if job.outcome is SubmissionOutcome.KNOWN and job.known_as]
    listed = [*moved, *kept, *renamed]
    lines = [_line(job) for job in listed[:_LISTED]]
    if len(listed) > _LISTED:
        lines.append(f"and {len(listed) - _LISTED} more")
    if submitted.vanished:
        count = len(submitted.vanished)
        lines.append(f"{counted(count, 'pending job')} no longer in the manifest: they stay until cancelled")
    return [job.id for job in moved], lines


def lines_of(done: DoneView) -> list[str]:
    """Return the result of a reload as lines for a log."""
    return list(done.notes) or ["nothing has changed" if done.data.get("files", 1) else NOTHING_GIVEN]


def trouble_of(error: StokerError) -> list[str]:
    """Return the error of a reload as lines for a log."""
    faults = [str(fault) for fault in getattr(error, "faults", ())]
    return [f"{error} — nothing was changed", *(faults if len(faults) > 1 else [])]


def _line(job: JobSubmissionResult) -> str:
    name = point_name(job.name, job.number)
    if not job.known_as:
        called = ""
    elif job.shown == name:
        called = f", until now {job.known_as}"
    else:
        called = f", already in the queue as {job.known_as}"
    what = str(job.state) if job.outcome is SubmissionOutcome.KNOWN else f"{job.shown_outcome}{_of(job.changes)}"
    return f"{name}{called}: {what}{_earlier(job)}"


def _of(changes: tuple[str, ...]) -> str:
    return f" ({', '.join(changes)})" if changes else ""


def _earlier(job: JobSubmissionResult) -> str:
    return f"; the one before, {job.instead_of[:_SHORT]}, stays until cancelled" if job.instead_of else ""


def _differing(one: Node | UserPolicy | Pool, other: Node | UserPolicy | Pool) -> list[str]:
    mine, theirs = fields_of(one), fields_of(other)
    return [name for name in mine if mine[name] != theirs[name]]
