"""Commands of the queue, besides workers' messages, which are those of `protocol.lease_messages`; and their answers.

Every command gets exactly one answer or one `StokerError`, after its transaction is durable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

from stoker.coordinator.auth import ApiTokenRecord, Invite, IssuedCertificate
from stoker.core.frozen import fresh, frozen
from stoker.core.leases import AttemptToken, Symptom
from stoker.core.machine import Cluster, SchedulableJob
from stoker.protocol.job_messages import Submission, SubmissionResponse
from stoker.protocol.launch_messages import AllocationMove, LaunchView
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Hello,
    LeaseWrite,
    MachineInventory,
    Renewal,
    RenewalResponse,
    Welcome,
    WriteResponse,
)
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.snapshot import Snapshot

# Members of the fleet. Answered by `QueueCommandResult`.


@frozen
class MakeInvite:
    """Create an invitation. Times of `invite` are set when it is stored; `data` has when it expires."""

    invite: Invite
    life_s: float


@frozen
class FailInvite:
    """Count a wrong code of an invitation."""

    id: str
    address: str = ""


@frozen
class WithdrawInvite:
    """Withdraw an invitation."""

    id: str
    by: str = ""


@frozen
class UseInvite:
    """Redeem an invitation for a certificate or a token, once. `data["answer"]` is the first response to it."""

    id: str
    request: str
    answer: str
    certificate: IssuedCertificate | None = None
    token: ApiTokenRecord | None = None
    address: str = ""


@frozen
class IssueCertificate:
    """Issue a machine's next certificate; the present one must still be valid."""

    certificate: IssuedCertificate
    present: str
    """Serial number of its present certificate."""


@frozen
class RevokeCertificate:
    """Revoke a certificate: requests with it are refused from now on."""

    serial: str
    why: str = ""
    by: str = ""


@frozen
class MakeToken:
    """Create a token; refused while another one of that name is valid."""

    token: ApiTokenRecord
    life_s: float | None = None


@frozen
class RotateToken:
    """Replace a token; the old one ends now."""

    id: str
    new: ApiTokenRecord
    """Name, role and lifetime are those of the old one."""
    by: str = ""


@frozen
class RevokeToken:
    """Revoke a token."""

    id: str
    by: str = ""


@frozen
class NoteTokens:
    """Record that tokens (ids) were used."""

    ids: tuple[str, ...]


TrustCommand: TypeAlias = (
    MakeInvite
    | FailInvite
    | WithdrawInvite
    | UseInvite
    | IssueCertificate
    | RevokeCertificate
    | MakeToken
    | RotateToken
    | RevokeToken
    | NoteTokens
)


# Health of machines, and webhooks. Answered by `QueueCommandResult`.


@frozen
class NoteSymptoms:
    """Set all present symptoms: new ones get an event, missing ones are over."""

    symptoms: tuple[Symptom, ...]


@frozen
class NoteReport:
    """Store the report of a machine's worker, also of another version, and of an old incarnation."""

    machine: str
    report: str
    """JSON, bounded by the route."""


@frozen
class AddHook:
    """Create a webhook for events from now on. `data` has its number."""

    url: str
    secret: str
    kinds: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Ids: a webhook of one submission, which ends with it. For jobs that have ended already the end is sent."""
    is_inner: bool = False
    """Private addresses are allowed: an admin created it."""
    by: str = ""
    format: str = "stoker"

    def __repr__(self) -> str:
        # The secret must not appear in an error message.
        return f"AddHook(for {len(self.jobs)} jobs, by {self.by})"


@frozen
class MoveHook:
    """Store a webhook's progress."""

    id: int
    cursor: int
    """The last event that was delivered or skipped."""
    failures: int = 0
    """In a row."""
    failing_since_s: float | None = None
    not_before_s: float = 0.0
    last_error: str = ""


@frozen
class CloseHook:
    """Close a webhook."""

    id: int
    why: str = ""
    by: str = ""


HealthCommand: TypeAlias = NoteSymptoms | NoteReport | AddHook | MoveHook | CloseHook


# Commands of operators inside jobs. Answered by `QueueCommandResult`.


@frozen
class BeginExec:
    """Begin a command inside a running job. `data` has the job's name, machine and lease."""

    job: str
    session: str
    program: str
    """The command's first word only: arguments may contain secrets."""
    by: str = ""


@frozen
class EndExec:
    """Record the end of a command. The job may have ended, too."""

    token: AttemptToken
    session: str
    machine: str
    program: str
    exit_code: int | None = None
    """None: it was ended from outside."""
    why: str = ""
    by: str = ""


ExecCommand: TypeAlias = BeginExec | EndExec


# Pools and allocations. Answered by `QueueCommandResult`, and `InspectLaunch` by `LaunchView`.


@frozen
class WatchPools:
    """Let a launcher watch pools, or for longer; refused while another one does. `data` has the epoch of each."""

    watcher: str
    pools: tuple[str, ...]
    for_s: float
    problem: str = ""
    """Why the launcher can't work with their backend now."""
    replaces: str = ""
    """Launchers whose names begin so are replaced, also while they have the lease; empty: none."""
    by: str = ""


@frozen
class PlannedTicket:
    """An allocation to be planned, with the key of its ticket."""

    id: str
    wanted: tuple[str, ...]
    key: str

    def __repr__(self) -> str:
        # The key must not appear in an error message.
        return f"PlannedTicket({self.id})"


@frozen
class PlanAllocations:
    """Plan allocations of a pool, before its backend gets them. `data` has the key of each ticket."""

    pool: str
    epoch: int
    plans: tuple[PlannedTicket, ...]
    request: str = ""
    """The request that they carry out: it is closed with them. Empty: none."""
    by: str = ""


@frozen
class MoveAllocations:
    """Record what a launcher found out. `data["refused"]` has the reason for each move that is not allowed."""

    pool: str
    epoch: int
    moves: tuple[AllocationMove, ...]
    by: str = ""


@frozen
class RequestMachines:
    """Store a request for machines of a pool, which its launcher carries out."""

    pool: str
    id: str
    count: int = 0
    """0: as many as waiting jobs need."""
    by: str = ""


@frozen
class CloseRequest:
    """Withdraw a request for machines, or record why its launcher starts none for it."""

    pool: str
    id: str
    epoch: int | None = None
    """The launcher's; None: its requester withdraws it."""
    message: str = ""
    code: str = ""
    by: str = ""


@frozen
class PausePool:
    """Start no more allocations of a pool."""

    pool: str
    why: str = ""
    by: str = ""


@frozen
class ResumePool:
    """Start allocations of a pool again."""

    pool: str
    by: str = ""


@frozen
class StopAllocations:
    """Drain allocations of a pool; its launcher cancels them."""

    pool: str
    ids: tuple[str, ...] = ()
    """Empty: all."""
    by: str = ""


@frozen
class InspectLaunch:
    """Return pools, allocations and demand. Changes nothing."""


LaunchCommand: TypeAlias = (
    WatchPools
    | PlanAllocations
    | MoveAllocations
    | RequestMachines
    | CloseRequest
    | PausePool
    | ResumePool
    | StopAllocations
    | InspectLaunch
)


@frozen
class Write:
    """A report of an attempt about its job."""

    job: str
    said: LeaseWrite
    machine: str = ""
    """The machine in the sender's certificate; accepted for its own leases only. Empty: the lease token is enough."""


@frozen
class Submit:
    """Submit jobs."""

    asked: Submission
    only_of: str | None = None
    """Existing jobs change only if this user submitted them. None: all may change."""


@frozen
class CancelJobs:
    """Cancel jobs (ids): a durable request; pending ones end at once."""

    jobs: tuple[str, ...]
    by: str = ""
    only_of: str | None = None
    """Refused for jobs that this user did not submit; None: allowed for all."""


@frozen
class RequeueJobs:
    """Requeue terminal jobs under higher epochs. A pending one stays; a live one is refused."""

    jobs: tuple[str, ...]
    by: str = ""
    only_of: str | None = None


@frozen
class SetPriority:
    """Change the priority of jobs."""

    jobs: tuple[str, ...]
    priority: int
    by: str = ""
    only_of: str | None = None


@frozen
class PinJobs:
    """Pin the results of jobs (all their rows in `bundles`) against pruning, or unpin them."""

    jobs: tuple[str, ...]
    is_pinned: bool = True
    by: str = ""


@frozen
class PruneBundles:
    """Mark rows of `bundles` (ids) as pruned, before their bytes are deleted, except pinned and marked ones.

    `changed` are the ids that were marked.
    """

    bundles: tuple[int, ...]
    by: str = ""


@frozen
class KeepTree:
    """List a completely stored tree of code or data; `listing` is the object with its file list."""

    tree: str
    listing: str
    files: int
    size_bytes: int


@frozen
class WantTree:
    """Record that a submission is about to need a tree. `changed` names it if it is stored."""

    tree: str


@frozen
class DropTrees:
    """Unlist trees (with the time of their last request), before their bytes are deleted. `changed` are those."""

    trees: tuple[tuple[str, float], ...]


class MachineCloseMode(StrEnum):
    """Ways to close a machine for new jobs."""

    DRAIN = "drained"
    """Running jobs finish."""
    CORDON = "cordoned"
    """The same for a suspect machine, or for some of its devices."""
    PAUSE = "paused"
    """For its owner: running jobs checkpoint and return to the queue."""


@frozen
class CloseMachine:
    """Close a machine, or some of its devices, perhaps until a time."""

    machine: str
    how: MachineCloseMode
    devices: tuple[str, ...] = ()
    """UUIDs; none: the whole machine."""
    why: str = ""
    for_s: float | None = None
    by: str = ""


@frozen
class OpenMachine:
    """Open a machine, or some of its devices, again."""

    machine: str
    devices: tuple[str, ...] = ()
    by: str = ""


@frozen
class ForgetMachine:
    """Remove a machine. One with certificates is refused from now on, and its leases end at once.

    For one without certificates, which may come back, the command is refused while it holds a lease, and while its
    worker lives unless forced.
    """

    machine: str
    is_forced: bool = False
    by: str = ""


@frozen
class Declare:
    """Apply the coordinator's cluster file. Policies of submitted manifests overlay it by name."""

    cluster: Cluster | None
    source: str = ""
    by: str = ""
    """Who requested the reload; empty: the coordinator itself, at its start or by a signal."""


@frozen
class Sweep:
    """Apply what time has changed: expired leases, missed starts, ended delays."""


@frozen
class InspectMachines:
    """Return the machines as the scheduler sees them now, for explanations. Changes nothing."""

    schedule: bool = False
    """Return the scheduler's whole state as well, for forecasts."""


@frozen
class MachineInspection:
    """The machines as the scheduler sees them."""

    offers: tuple[NodeOffer, ...] = ()
    """Present machines, with their load."""
    away: tuple[NodeOffer, ...] = ()
    """What the others would offer if they were back."""
    wanted: dict[int, SchedulableJob] = fresh(factory=dict)
    """The requirements of each class."""
    stated_s: dict[int, float] = fresh(factory=dict)
    """Class → the duration that its submitter states (`JobKind.stated_s`), of those that state one."""
    drift: dict[str, tuple[str, ...]] = fresh(factory=dict)
    """Machine → differences between declaration and detection."""
    holdings: dict[str, MachineInventory] = fresh(factory=dict)
    """Machine → its inventory."""
    disk_free_bytes: dict[str, int] = fresh(factory=dict)
    """Machine → free disk space in its last heartbeat."""
    accepts: dict[str, tuple[str, ...]] = fresh(factory=dict)
    """Machine → trees and commits, of machines that run only their code."""
    schedule: Snapshot | None = None
    """The scheduler's state, if requested; only the first ready job of each class is numbered."""


@frozen
class LeaseSweepResult:
    """What a sweep changed."""

    expired: tuple[str, ...] = ()
    readied: int = 0
    opened: tuple[str, ...] = ()


@frozen
class QueueCommandResult:
    """What an operator's command changed, job by job or machine by machine."""

    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    data: dict[str, Any] = fresh(factory=dict)


Command: TypeAlias = (
    Submit
    | Hello
    | Claim
    | Renewal
    | Write
    | CancelJobs
    | RequeueJobs
    | SetPriority
    | PinJobs
    | PruneBundles
    | KeepTree
    | WantTree
    | DropTrees
    | CloseMachine
    | OpenMachine
    | ForgetMachine
    | Declare
    | Sweep
    | InspectMachines
    | TrustCommand
    | HealthCommand
    | ExecCommand
    | LaunchCommand
)
Answer: TypeAlias = (
    SubmissionResponse
    | Welcome
    | ClaimResponse
    | RenewalResponse
    | WriteResponse
    | QueueCommandResult
    | LeaseSweepResult
    | MachineInspection
    | LaunchView
)
