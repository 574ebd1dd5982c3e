"""What may be asked of the queue. Workers' words are the wire's own messages; these are the others, and the envelopes.

Every command is answered by exactly one answer or one `StokerError`, after its transaction is durable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

from stoker.coordinator.auth import ApiTokenRecord, Invite, IssuedCertificate
from stoker.core.frozen import fresh, frozen
from stoker.core.leases import AttemptToken, Symptom
from stoker.core.machine import Cluster, SchedulableJob
from stoker.protocol.job_messages import Submission, SubmissionResponse
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    Claim,
    ClaimResponse,
    Decline,
    Fail,
    Finish,
    Hello,
    MachineInventory,
    PointCheckpoint,
    Release,
    Renewal,
    RenewalResponse,
    Start,
    Welcome,
    WriteResponse,
)
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.snapshot import Snapshot

# What may be asked of the queue about who belongs to the fleet. All of them are answered by `Done`.


@frozen
class MakeInvite:
    """Somebody may join. Times of `invite` are set when it is stored; `data` has when it is over."""

    invite: Invite
    life_s: float


@frozen
class FailInvite:
    """Somebody tried an invitation with a wrong code."""

    id: str
    address: str = ""


@frozen
class WithdrawInvite:
    """Nobody is to join with this one any more."""

    id: str
    by: str = ""


@frozen
class UseInvite:
    """Somebody joins: they get a certificate or a token, once. `data["answer"]` is what the first who asked so got."""

    id: str
    request: str
    answer: str
    certificate: IssuedCertificate | None = None
    token: ApiTokenRecord | None = None
    address: str = ""


@frozen
class IssueCertificate:
    """A machine gets its next certificate; the present one must still be good."""

    certificate: IssuedCertificate
    present: str
    """The number of the one that it shows."""


@frozen
class RevokeCertificate:
    """Take a certificate back: no request counts that is made with it from now on."""

    serial: str
    why: str = ""
    by: str = ""


@frozen
class MakeToken:
    """Somebody gets a token; refused while another one of that name is live."""

    token: ApiTokenRecord
    life_s: float | None = None


@frozen
class RotateToken:
    """Put a new token in the place of one; the old one ends now."""

    id: str
    new: ApiTokenRecord
    """Name, role and end are the old one's, and so is how long it lasts."""
    by: str = ""


@frozen
class RevokeToken:
    """Take a token back."""

    id: str
    by: str = ""


@frozen
class NoteTokens:
    """Tokens were used of late (ids)."""

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


# What may be asked of the queue about machines' health and about who is told of events. Answered by `Done`.


@frozen
class NoteSymptoms:
    """All that is wrong now: what is new is told, what is gone is over."""

    symptoms: tuple[Symptom, ...]


@frozen
class NoteReport:
    """What a machine's worker found out about it. Also from a worker of another version, and from an old start."""

    machine: str
    report: str
    """JSON, bounded by whoever read it."""


@frozen
class AddHook:
    """Tell somebody elsewhere of events from now on. `data` has its number."""

    url: str
    secret: str
    kinds: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Ids: a hook of one submission, which ends with it. Of those that have ended already the end is told."""
    is_inner: bool = False
    """It may be a private address: an admin made it."""
    by: str = ""

    def __repr__(self) -> str:
        # A secret must not come into a message by way of an error.
        return f"AddHook(for {len(self.jobs)} jobs, by {self.by})"


@frozen
class MoveHook:
    """How far a hook has come."""

    id: int
    cursor: int
    """The last event that was delivered, or that is not for it."""
    failures: int = 0
    """In a row."""
    failing_since_s: float | None = None
    not_before_s: float = 0.0
    last_error: str = ""


@frozen
class CloseHook:
    """Tell it nothing more."""

    id: int
    why: str = ""
    by: str = ""


HealthCommand: TypeAlias = NoteSymptoms | NoteReport | AddHook | MoveHook | CloseHook


# What may be asked of the queue about commands that operators run inside jobs. Answered by `Done`.


@frozen
class BeginExec:
    """Somebody is about to run a command inside a running job. `data` has where: name, machine, and its lease."""

    job: str
    session: str
    program: str
    """The command's first word, and nothing else of it: arguments may hold what nobody else should see."""
    by: str = ""


@frozen
class EndExec:
    """That is over. The job may be, too."""

    token: AttemptToken
    session: str
    machine: str
    program: str
    exit_code: int | None = None
    """Nothing: it did not end by itself."""
    why: str = ""
    by: str = ""


ExecCommand: TypeAlias = BeginExec | EndExec


Said: TypeAlias = Start | Decline | Release | Finish | Fail | CancelConfirmed | PointCheckpoint


@frozen
class Write:
    """An attempt's own word about its job."""

    job: str
    said: Said
    machine: str = ""
    """Who says it, as its certificate has it: only of its own leases. Empty: whoever has the lease's token."""


@frozen
class Submit:
    """Take a submission in."""

    asked: Submission
    only_of: str | None = None
    """Known jobs change only if this principal submitted them; another's stay as they are. None: all may change."""


@frozen
class CancelJobs:
    """Somebody no longer wants these jobs (ids): a durable intent; pending ones end at once."""

    jobs: tuple[str, ...]
    by: str = ""
    only_of: str | None = None
    """Refused for jobs that this principal did not submit; None: allowed for all."""


@frozen
class RequeueJobs:
    """Start terminal jobs again, under higher epochs. A pending one stays; a live one is refused with its story."""

    jobs: tuple[str, ...]
    by: str = ""
    only_of: str | None = None


@frozen
class SetPriority:
    """Put jobs elsewhere in the line."""

    jobs: tuple[str, ...]
    priority: int
    by: str = ""
    only_of: str | None = None


@frozen
class PinJobs:
    """Keep the results of jobs (every row of theirs in `bundles`) whatever is pruned, or let go of them again."""

    jobs: tuple[str, ...]
    is_pinned: bool = True
    by: str = ""


@frozen
class PruneBundles:
    """Mark rows of `bundles` (ids) as pruned, before their bytes go. Pinned ones, and those that are marked, stay.

    Answered by `Done`: `changed` are the ids that were marked.
    """

    bundles: tuple[int, ...]
    by: str = ""


@frozen
class KeepTree:
    """A tree of code or data lies with the coordinator, whole; `listing` is the object that lists its files."""

    tree: str
    listing: str
    files: int
    size_bytes: int


@frozen
class WantTree:
    """Somebody is about to hand in jobs that need a tree. Answered by `Done`: `changed` names it if it is here."""

    tree: str


@frozen
class DropTrees:
    """Forget trees (with when they had last been wanted), before their bytes go. `changed` are those that went."""

    trees: tuple[tuple[str, float], ...]


class MachineCloseMode(StrEnum):
    """Ways in which a machine takes no more work."""

    DRAIN = "drained"
    """What runs there finishes."""
    CORDON = "cordoned"
    """The same for a machine, or for some of its devices, that somebody mistrusts."""
    PAUSE = "paused"
    """Its owner needs it: what runs there checkpoints and goes back to the queue."""


@frozen
class CloseMachine:
    """Give a machine, or some of its devices, nothing more, perhaps until a time."""

    machine: str
    how: MachineCloseMode
    devices: tuple[str, ...] = ()
    """UUIDs; none: the whole machine."""
    why: str = ""
    for_s: float | None = None
    by: str = ""


@frozen
class OpenMachine:
    """Take that back."""

    machine: str
    devices: tuple[str, ...] = ()
    by: str = ""


@frozen
class ForgetMachine:
    """Remove a machine. One that has certificates is refused from now on, and what it holds is lost at once.

    One without, which may come back as it likes, is refused while it holds a lease, and while its worker lives unless
    that is forced.
    """

    machine: str
    is_forced: bool = False
    by: str = ""


@frozen
class Declare:
    """The coordinator's own cluster file, read again. Policies of submitted manifests overlay it by name."""

    cluster: Cluster | None
    source: str = ""
    by: str = ""
    """Who asked to read it again; empty: the coordinator itself, at its start or by a signal."""


@frozen
class Sweep:
    """Look once for what time alone has changed: leases that ended, starts that did not come, delays that are over."""


@frozen
class InspectMachines:
    """Show the machines as the scheduler sees them at this moment, for explanations. Changes nothing."""

    schedule: bool = False
    """Show also everything else that the scheduler knows, for forecasts."""


@frozen
class MachineInspection:
    """What was seen."""

    offers: tuple[NodeOffer, ...] = ()
    """Machines that are counted on, as they stand."""
    away: tuple[NodeOffer, ...] = ()
    """What the others would offer, were they back."""
    wanted: dict[int, SchedulableJob] = fresh(factory=dict)
    """What jobs of each class want."""
    stated_s: dict[int, float] = fresh(factory=dict)
    """Class → the duration that its submitter states (`JobKind.stated_s`), of those that state one."""
    drift: dict[str, tuple[str, ...]] = fresh(factory=dict)
    """Machine → where its declaration and detection disagree."""
    holdings: dict[str, MachineInventory] = fresh(factory=dict)
    """Machine → what its worker said that it has."""
    disk_free_bytes: dict[str, int] = fresh(factory=dict)
    """Machine → what its last heartbeat said."""
    accepts: dict[str, tuple[str, ...]] = fresh(factory=dict)
    """Machine → trees and commits whose code alone it runs, of those that run only some."""
    schedule: Snapshot | None = None
    """The scheduler's state, if that was asked for; of the ready jobs only the first of each class is numbered."""


@frozen
class LeaseSweepResult:
    """What it found."""

    expired: tuple[str, ...] = ()
    readied: int = 0
    opened: tuple[str, ...] = ()


@frozen
class QueueCommandResult:
    """What an operator's command did, job by job or machine by machine."""

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
)
