"""Events of a worker: responses, ends, instructions, signals and the passing of time. Data only.

Each has the time at which it became known, on the boot-time clock; `asked_s` is the time *before* a request was sent,
from which the times of its response count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from stoker.core.errors import StokerError
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import AttemptToken, Partition
from stoker.host.durable import read_regular, remove_tree, translated
from stoker.host.identity import ProcessIdentity, mine
from stoker.protocol.lease_messages import ClaimResponse, ExecCall, Grant, RenewalResponse, Welcome
from stoker.worker.assignment import AttemptEnd, LeaseFile
from stoker.worker.worker_options import LOCK_FILE

COORDINATOR = "coordinator"
"""The key of closings by the coordinator, which are not reported back to it."""


STOP_GRACE_S = 10.0
SPARE_DRAIN_S = 30.0
"""Before the end of a worker's time, besides saving and sending checkpoints."""


class AttemptPhase(StrEnum):
    """The phase of an attempt."""

    STARTING = "starting"
    """It is checked once more, and given to a child."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Its processes are being stopped; nothing is reported until none is left."""
    SENDING = "sending"
    """None of its processes runs: its result and final report are being sent."""


class FinalReportKind(StrEnum):
    """The kind of a final report."""

    FINISH = "finish"
    FAIL = "fail"
    RELEASE = "release"
    CANCELLED = "cancelled"
    DECLINE = "decline"
    NOTHING = "nothing"
    """It is no longer ours: its result is dropped."""


@frozen
class FinalReport:
    """The final report of an attempt, and why."""

    word: FinalReportKind
    why: str = ""
    reason: str = ""
    """Of a decline: which check failed."""
    lasts: bool = False
    """Of a decline: it would fail again."""


@frozen
class HeldLease:
    """One lease of this worker, and the attempt under it."""

    grant: Grant
    phase: AttemptPhase
    ends_s: float
    """The end of the lease, counted from before the request that granted or renewed it."""
    run: str = ""
    """The attempt's folder in `runs/`."""
    child: ProcessIdentity | None = None
    last: FinalReport | None = None
    end: AttemptEnd | None = None
    is_over: bool = False
    """It expired by this machine's clock: nothing is sent under it, unless it is renewed (`on_partition: keep`)."""
    is_hurried: bool = False
    """It expired, and its processes did not stop in time: they were killed."""
    sent_in_s: float = 0.0
    """How long it took to send its last checkpoint."""
    say_until_s: float | None = None
    """When a worker that stops at once stops waiting for a response to its final report."""

    @property
    def token(self) -> AttemptToken:
        return self.grant.token()

    @property
    def keeps_on(self) -> bool:
        """Return True if its attempt continues without the coordinator; one that has not started does not."""
        return self.grant.spec.on_partition is Partition.KEEP and self.phase is not AttemptPhase.STARTING

    @property
    def is_harmless(self) -> bool:
        """Return True if nothing of it ran and it is being released: that may be sent at any time."""
        return not self.run and self.phase is AttemptPhase.SENDING


class WorkerShutdownMode(StrEnum):
    """How a worker stops."""

    NO = "no"
    SOFTLY = "softly"
    """Everything is released first."""
    NOW = "now"
    """Everything is killed; final reports are sent once, with a short wait."""


@frozen
class WorkerPolicy:
    """Options of the worker, from its command line."""

    slots: int = 1
    beside: int = 0
    """How many more jobs it claims at a time while a job of its own shares a device; the coordinator decides whether
    there is room. 0 if the number of slots was given."""
    is_once: bool = False
    """Run one job, then stop."""
    until_idle: bool = False
    """Stop when no work is left."""
    stop_grace_s: float = STOP_GRACE_S
    """Between SIGTERM and SIGKILL of a program."""
    ends_s: float | None = None
    """When it has to be gone, on the boot-time clock; None: when it is stopped."""
    drain_s: float = 0.0
    """It releases everything and stops so long before `ends_s`, or longer if checkpoints need it."""
    most_drain_s: float = 0.0
    """And at most so long before."""
    idle_s: float | None = None
    """It stops after so long without a lease; None: never."""


@frozen
class WorkerState:
    """The state of a worker: its leases, their phases, and its options.

    All times are on the boot-time clock.
    """

    wishes: WorkerPolicy
    leases: Mapping[AttemptToken, HeldLease] = fresh(factory=dict)
    is_known: bool = False
    """True after the coordinator's response to hello; no other request is sent before."""
    heartbeat_s: float = 30.0
    lease_s: float = 90.0
    renew_at_s: float = 0.0
    is_renewing: bool = False
    has_news: bool = False
    """The inventory changed since it was last sent: a heartbeat is due now."""
    asking: int | None = None
    """How many jobs the open claim is for; None: none is open."""
    is_listening: bool = False
    """A claim for no job is open beside it, which waits for instructions."""
    is_called_back: bool = False
    """That claim is being cut short."""
    ask_at_s: float = 0.0
    misses: int = 0
    """How many requests in a row had no response."""
    is_barred: bool = False
    """The last error needs an operator: the fleet has another CA."""
    taken: int = 0
    """How many jobs it was given since it started."""
    closed: Mapping[str, str] = fresh(factory=dict)
    """Why it claims no jobs, by source: its owner, its disk, the coordinator."""
    idle_since_s: float | None = None
    """Since when it has no lease; None: it has one, or has just started."""
    stays_until_s: float = 0.0
    """Until when it does not leave because it is idle: the coordinator said that it belongs to its pool's minimum."""
    leaving: WorkerShutdownMode = WorkerShutdownMode.NO
    exit_code: int = 0

    @property
    def free_slots(self) -> int:
        return max(0, self.wishes.slots - len(self.leases))

    @property
    def wanted(self) -> int:
        """How many jobs it may claim; the coordinator itself checks its own reasons against it."""
        is_closed = any(by != COORDINATOR for by in self.closed)
        if is_closed or (self.wishes.is_once and self.taken):
            return 0
        is_shared = any(lease.grant.is_shared for lease in self.leases.values())
        room = self.free_slots + (self.wishes.beside if is_shared else 0)
        return min(1, room) if self.wishes.is_once else room

    @property
    def is_away(self) -> bool:
        """True if the coordinator did not respond to the last request."""
        return self.misses > 0

    @property
    def stops_s(self) -> float | None:
        """When it begins to stop: early enough to save and send checkpoints before its end; None: it has no end."""
        wishes = self.wishes
        sending_s = sum(lease.sent_in_s for lease in self.leases.values())
        if wishes.ends_s is None or not sending_s:
            return None if wishes.ends_s is None else wishes.ends_s - wishes.drain_s
        needed_s = min(wishes.stop_grace_s + sending_s + SPARE_DRAIN_S, wishes.most_drain_s)
        return wishes.ends_s - max(wishes.drain_s, needed_s)


@frozen
class StartRefusal:
    """Why it is not started here: a reason code, and a line for people."""

    reason: str
    message: str
    lasts: bool = False
    """True: it stays so until this machine is changed."""


@frozen
class ClockTick:
    """Time has passed."""

    now_s: float


@frozen
class HelloAnswered:
    """The coordinator responded to hello."""

    now_s: float
    welcome: Welcome


@frozen
class ClaimAnswered:
    """A response to a claim, perhaps empty."""

    now_s: float
    asked_s: float
    answer: ClaimResponse
    others_work: bool = False
    """Jobs are pending, and other workers have jobs: more may come."""
    was_listening: bool = False
    """It was for no job."""


@frozen
class RenewalAnswered:
    """A response to a renewal."""

    now_s: float
    asked_s: float
    tokens: tuple[AttemptToken, ...]
    """The leases that it listed."""
    answer: RenewalResponse


@frozen
class RequestUnanswered:
    """A claim or a renewal had no response, or an invalid one."""

    now_s: float
    error: StokerError
    was_claim: bool
    jitter: float
    """Between 0 and 1, so that the workers of a fleet do not return all at once."""
    was_listening: bool = False
    """The claim was for no job."""


@frozen
class WorkerRejected:
    """The coordinator rejects this worker: version skew, no permission, duplicate name."""

    now_s: float
    error: StokerError


@frozen
class AttemptStarted:
    """An attempt's child has its assignment."""

    now_s: float
    token: AttemptToken
    child: ProcessIdentity
    run: str
    has_brought: bool = False
    """True if something was fetched for it: code, data, an environment."""


@frozen
class AttemptNotStarted:
    """A check before the start found that it can't start here now."""

    now_s: float
    token: AttemptToken
    refusal: StartRefusal
    has_brought: bool = False


@frozen
class CheckpointSent:
    """A checkpoint of an attempt is stored by the coordinator."""

    now_s: float
    token: AttemptToken
    took_s: float


@frozen
class AttemptEnded:
    """An attempt's child has exited."""

    now_s: float
    token: AttemptToken
    end: AttemptEnd


@frozen
class AttemptStopped:
    """An attempt was stopped, and none of its processes runs."""

    now_s: float
    token: AttemptToken
    end: AttemptEnd


@frozen
class FinalReportAccepted:
    """The final report of an attempt was accepted."""

    now_s: float
    token: AttemptToken


@frozen
class LeaseLost:
    """The coordinator reports that an attempt is no longer ours."""

    now_s: float
    token: AttemptToken
    message: str


@frozen
class MachineClosed:
    """The owner or a full disk closed this machine for new work; an empty reason opens it again."""

    now_s: float
    by: str
    why: str
    gives_back: bool = False
    """Running jobs are released, too."""


@frozen
class DevicesChanged:
    """Devices of this machine vanished or returned; the machine's offer is already changed."""

    now_s: float
    gone: tuple[str, ...]
    back: tuple[str, ...]
    slots: int | None
    """How many jobs at once there are devices for; None: the number was given."""


@frozen
class WorkerStopRequested:
    """A signal: at the first everything is released, at the second the worker exits at once."""

    now_s: float
    exit_code: int
    why: str


Happening = (
    ClockTick
    | HelloAnswered
    | ClaimAnswered
    | RenewalAnswered
    | RequestUnanswered
    | WorkerRejected
    | AttemptStarted
    | AttemptNotStarted
    | CheckpointSent
    | AttemptEnded
    | AttemptStopped
    | FinalReportAccepted
    | LeaseLost
    | MachineClosed
    | DevicesChanged
    | WorkerStopRequested
)


# Instructions of a decision. Data only; `actions` performs them.


@frozen
class SendHello:
    """Send hello again: the coordinator does not know this worker, or not what this machine has now."""


@frozen
class ClaimJobs:
    """Claim up to so many jobs; with 0, only wait for instructions."""

    most: int


@frozen
class WithdrawClaim:
    """Withdraw the open claim for jobs; those that it was granted meanwhile come as a response."""


@frozen
class Renew:
    """Send a heartbeat for all leases."""


@frozen
class StartAttempt:
    """Check again, and give the attempt to a child."""

    token: AttemptToken


@frozen
class ReportStart:
    """Report that it runs."""

    token: AttemptToken


@frozen
class StopAttempt:
    """Stop an attempt's processes: SIGTERM, after `grace_s` SIGKILL, and check that none is left."""

    token: AttemptToken
    grace_s: float


@frozen
class SendResult:
    """Send an attempt's result, as far as its final report needs it, and then that report."""

    token: AttemptToken
    last: FinalReport
    end: AttemptEnd | None


@frozen
class SendFinalReport:
    """Send the final report at once and once; orders before it are obsolete."""

    token: AttemptToken
    last: FinalReport
    end: AttemptEnd | None


@frozen
class OpenExec:
    """Run an operator's command beside an attempt."""

    call: ExecCall


@frozen
class Forget:
    """Forget a lease: nothing is left to do."""

    token: AttemptToken


@frozen
class LogLine:
    """Log one line."""

    kind: str
    fields: dict[str, Any] = fresh(factory=dict)


@frozen
class ExitWorker:
    """Exit with this code: nothing is held any more."""

    code: int


Instruction = (
    SendHello
    | ClaimJobs
    | WithdrawClaim
    | Renew
    | StartAttempt
    | ReportStart
    | StopAttempt
    | SendResult
    | SendFinalReport
    | OpenExec
    | Forget
    | LogLine
    | ExitWorker
)


_LARGEST_BYTES = 1 << 28


@frozen
class JournaledLease:
    """One lease as an earlier worker left it."""

    grant: Grant
    run: str
    child: ProcessIdentity
    ends_s: float


@frozen
class Predecessor:
    """The leases of the previous worker process."""

    incarnation: str
    coordinator: str
    leases: tuple[JournaledLease, ...]


class Journal:
    """The files of one worker for its successor: leases, their children, and the worker's incarnation.

    A successor identifies a child by pid, start time and boot, never by the pid alone. Nothing here has to survive a
    power cut: no process does.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock_path = os.path.join(folder, LOCK_FILE)
        self.said_folder = os.path.join(folder, "said")
        self.spool_folder = os.path.join(folder, "spool")
        self._path = os.path.join(folder, "journal.json")

    def open(self) -> None:
        """Make the folders, and delete what an earlier worker left when it was killed."""
        remove_tree(self.spool_folder)
        # A child of that worker may still write there: into a file that is deleted with it.
        remove_tree(self.said_folder)
        with translated(self.folder):
            for folder in (self.folder, self.said_folder, os.path.join(self.folder, "leases")):
                os.makedirs(folder, mode=0o700, exist_ok=True)

    def lease_file(self, run: str) -> LeaseFile:
        """Return the lease file of an attempt."""
        return LeaseFile(os.path.join(self.folder, "leases", run))

    def write(self, *, incarnation: str, coordinator: str, leases: Iterable[HeldLease]) -> None:
        """Write the leases. Atomic: readers see the old or the new state."""
        held = [
            {
                "grant": lease.grant.model_dump(mode="json"),
                "run": lease.run,
                "child": lease.child.to_dict(),
                "ends_s": lease.ends_s,
            }
            for lease in leases
            if lease.child is not None and (lease.phase is not AttemptPhase.SENDING or lease.end is not None)
        ]
        body = {
            "v": 1,
            "incarnation": incarnation,
            "coordinator": coordinator,
            "boot_id": mine().boot_id,
            "leases": held,
        }
        with translated(self._path):
            fresh_path = f"{self._path}.new"
            with open(fresh_path, "wb") as file:
                file.write(dumps(body).encode())
            os.replace(fresh_path, self._path)

    def read(self) -> Predecessor | None:
        """Return what an earlier worker of this boot held; None if nothing is readable."""
        try:
            raw = loads(read_regular(self._path, _LARGEST_BYTES))
            if raw["boot_id"] != mine().boot_id:
                return None
            return Predecessor(
                incarnation=str(raw["incarnation"]),
                coordinator=str(raw["coordinator"]),
                leases=tuple(_read_lease(one) for one in raw["leases"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _read_lease(raw: Mapping[str, Any]) -> JournaledLease:
    return JournaledLease(
        grant=Grant.model_validate(raw["grant"]),
        run=str(raw["run"]),
        child=ProcessIdentity.from_dict(raw["child"]),
        ends_s=float(raw["ends_s"]),
    )
