"""What may be asked of the queue. Workers' words are the wire's own messages; these are the others, and the envelopes.

Every command is answered by exactly one answer or one `StokerError`, after its transaction is durable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

from stoker.coordinator.queue.exec_commands import ExecCommand
from stoker.coordinator.queue.health_commands import HealthCommand
from stoker.coordinator.queue.trust_commands import TrustCommand
from stoker.model.frozen import fresh, frozen
from stoker.model.nodes import Cluster
from stoker.model.requirements import WantedJob
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.snapshot import Snapshot
from stoker.wire.leasing import (
    CancelConfirmed,
    Claim,
    Decline,
    Fail,
    Finish,
    Granted,
    Hello,
    Holdings,
    PointCheckpoint,
    Release,
    Renewal,
    Renewed,
    Settled,
    Start,
    Welcome,
)
from stoker.wire.orders import Submission, Submitted

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


class Closing(StrEnum):
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
    how: Closing
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
class Look:
    """Show the machines as the scheduler sees them at this moment, for explanations. Changes nothing."""

    schedule: bool = False
    """Show also everything else that the scheduler knows, for forecasts."""


@frozen
class Looked:
    """What was seen."""

    offers: tuple[NodeOffer, ...] = ()
    """Machines that are counted on, as they stand."""
    away: tuple[NodeOffer, ...] = ()
    """What the others would offer, were they back."""
    wanted: dict[int, WantedJob] = fresh(factory=dict)
    """What jobs of each class want."""
    stated_s: dict[int, float] = fresh(factory=dict)
    """Class → the duration that its submitter states (`JobKind.stated_s`), of those that state one."""
    drift: dict[str, tuple[str, ...]] = fresh(factory=dict)
    """Machine → where its declaration and detection disagree."""
    holdings: dict[str, Holdings] = fresh(factory=dict)
    """Machine → what its worker said that it has."""
    disk_free_bytes: dict[str, int] = fresh(factory=dict)
    """Machine → what its last heartbeat said."""
    accepts: dict[str, tuple[str, ...]] = fresh(factory=dict)
    """Machine → trees and commits whose code alone it runs, of those that run only some."""
    schedule: Snapshot | None = None
    """The scheduler's state, if that was asked for; of the ready jobs only the first of each class is numbered."""


@frozen
class SweepDone:
    """What it found."""

    expired: tuple[str, ...] = ()
    readied: int = 0
    opened: tuple[str, ...] = ()


@frozen
class Done:
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
    | Look
    | TrustCommand
    | HealthCommand
    | ExecCommand
)
Answer: TypeAlias = Submitted | Welcome | Granted | Renewed | Settled | Done | SweepDone | Looked
