"""Rows as the writer reads them."""

from __future__ import annotations

from typing import NamedTuple

from stoker.model.names import point_name


class JobRow(NamedTuple):
    """What decisions about a job that is not live need; its fields are the columns, in this order."""

    seq: int
    id: str
    class_id: int
    priority: int
    since_s: float
    epoch: int
    attempt: int
    user_failures: int
    lost: int
    declined: int
    spec: str
    checkpoint: str
    name: str
    number: int
    label: str
    recipe: str
    code: str
    state: str
    is_ready: bool
    blockers: int
    not_before_s: float
    is_cancelling: bool
    source: str
    machine: str
    tree: str
    archive_sha256: str
    started_s: float | None
    cause: str
    submitter: str

    @property
    def shown(self) -> str:
        """What people call it."""
        return point_name(self.name, self.number)


class LeaseRow(NamedTuple):
    """A live lease and its job, as they are read at a start."""

    seq: int
    attempt: int
    epoch: int
    generation: int
    machine: str
    incarnation: str
    devices: str
    is_shared: bool
    progress: str
    id: str
    class_id: int
    priority: int
    state: str
    blockers: int
    is_cancelling: bool
    user_failures: int
    lost: int
    declined: int
    started_s: float | None
    message: str
    spec: str
    granted_s: float
    """The attempt's."""


class EndedRow(NamedTuple):
    """An attempt that has ended."""

    class_id: int
    submitter: str
    machine: str
    devices: str
    granted_s: float
    started_s: float | None
    ended_s: float
    ending: str


READY_FIELDS = JobRow._fields[:12]
"""What the line keeps of a job: `waiting.Ready`, in its order."""
LEASE_FIELDS = LeaseRow._fields[:9]
"""Of the lease's own table; the others are the job's."""
