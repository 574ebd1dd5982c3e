"""Small questions and answers that are neither an order nor a lease: about jobs, machines, files and uploads.

Bodies of people's requests refuse unknown fields; answers pass over them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from stoker.wire.orders import Bytes, JobId, Priority
from stoker.wire.protocol import Asked, Message
from stoker.wire.views import Count, Guess, Line, MachineView

MOST_FILE_BYTES = 8 * 1024 * 1024
"""In one piece of a mirrored file, and of an upload."""

MOST_NAMED_JOBS = 10_000
"""In one request that names them one by one."""

NOTHING_GIVEN = "nothing is given to read: the coordinator was started without --cluster and --manifest"
"""What reading again says where there is no file."""

By = Annotated[str, Field(max_length=200)]


class JobAsk(Asked):
    """Cancel, requeue, pin or unpin a job; who wants it is recorded."""

    by: By = ""


class PriorityAsk(Asked):
    """Put a job elsewhere in the line."""

    priority: Priority
    by: By = ""


class JobsAsk(JobAsk):
    """Cancel or requeue many jobs in one go: the points of a sweep."""

    jobs: Annotated[tuple[JobId, ...], Field(min_length=1, max_length=MOST_NAMED_JOBS)]
    """Whole ids. One that nobody knows refuses them all."""


class JobsPriorityAsk(PriorityAsk):
    """Put many jobs elsewhere in the line, in one go."""

    jobs: Annotated[tuple[JobId, ...], Field(min_length=1, max_length=MOST_NAMED_JOBS)]


class MachineAsk(Asked):
    """Drain, cordon, pause, open or forget a machine, or some of its devices."""

    devices: Annotated[tuple[str, ...], Field(max_length=1024)] = ()
    """UUIDs; none: the whole machine."""
    why: Annotated[str, Field(max_length=2000)] = ""
    for_s: Annotated[float, Field(gt=0, le=366 * 86400)] | None = None
    is_forced: bool = False
    """Forget it though its worker lives."""
    by: By = ""


class DoneView(Message):
    """What an operator's request did, job by job or machine by machine."""

    changed: tuple[Line, ...] = ()
    notes: tuple[Line, ...] = ()
    data: dict[str, Any] = {}


class MachineList(Message):
    """Every machine that the coordinator knows, by name."""

    machines: tuple[MachineView, ...] = ()


class EventPage(Message):
    """Events of one job, oldest first."""

    events: tuple[dict[str, Any], ...] = ()
    next: int = 0
    """Hand this back as `after` for what follows."""


class FileView(Message):
    """One mirrored file of an attempt."""

    path: str
    size_bytes: int


class FileList(Message):
    """What is mirrored of one attempt's folder."""

    attempt: int
    files: tuple[FileView, ...] = ()
    is_over: bool = False
    """The attempt has ended: nothing will be added."""


class FileOffset(Message):
    """How much of a mirrored file, or of an upload, lies with the coordinator."""

    offset: int


class UploadAsk(Asked):
    """Bytes on their way to the coordinator's store, under their digest."""

    digest: JobId
    """SHA-256 of the bytes."""
    size_bytes: Bytes


class UploadBegun(Message):
    """Where an upload goes on."""

    id: str
    offset: int = 0
    is_known: bool = False
    """The bytes lie there already: there is nothing to send."""


class LeaderRow(Message):
    """One completed job in a leaderboard."""

    place: Count
    job: Line
    """Its id."""
    name: Line
    label: Line = ""
    recipe: Line = ""
    machine: Line = ""
    value: float
    metrics: dict[Line, float] = {}
    seconds: Guess | None = None
    """From its start to its end."""


class Leaderboard(Message):
    """Completed jobs by one of their metrics, best first."""

    metric: Line = ""
    is_lower_better: bool = False
    rows: tuple[LeaderRow, ...] = ()
    metrics: tuple[Line, ...] = ()
    """Which ones could be asked for."""
