"""What may happen to a worker: answers, ends, orders, signals and the passing of time. Only nouns.

Each comes with the moment it became known, on the clock that also counts suspend; `asked_s` is the moment *before* a
question was sent, from which its answer's times count.
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

# What a worker knows at one moment: its leases, where each stands, and what is wished of it. Only nouns.
#
# All times are on the clock that also counts suspend.

COORDINATOR = "coordinator"
"""The key of closings by the coordinator, which are not reported back to it."""


STOP_GRACE_S = 10.0


class AttemptPhase(StrEnum):
    """Where an attempt stands."""

    STARTING = "starting"
    """Looked at once more, and handed to a child."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Its processes are being ended; nothing is said until none is left."""
    SENDING = "sending"
    """Nothing of it runs any more: what it made, and the last word, are on their way."""


class FinalReportKind(StrEnum):
    """The last word about an attempt."""

    FINISH = "finish"
    FAIL = "fail"
    RELEASE = "release"
    CANCELLED = "cancelled"
    DECLINE = "decline"
    NOTHING = "nothing"
    """It is no longer ours to speak of: its result is dropped."""


@frozen
class FinalReport:
    """What will be said of an attempt, and why."""

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
    """Until when it is ours, counted from before the request that gave or renewed it."""
    run: str = ""
    """The attempt's folder in `runs/`."""
    child: ProcessIdentity | None = None
    last: FinalReport | None = None
    end: AttemptEnd | None = None
    is_over: bool = False
    """It expired by this machine's clock: nothing is sent under it, unless it is renewed (`on_partition: keep`)."""
    is_hurried: bool = False
    """It expired, and its processes did not stop in time: they were killed."""
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
    """How a worker ends."""

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
    """When it releases everything and stops, on the boot-time clock; None: when it is stopped."""


@frozen
class WorkerState:
    """The state that decisions are made from."""

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
    """How many jobs the open claim is for, 0 if it only waits for instructions; None: none is open."""
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
    """Why it takes no work, by who says so: its owner, its disk, the coordinator."""
    leaving: WorkerShutdownMode = WorkerShutdownMode.NO
    exit_code: int = 0

    @property
    def free_slots(self) -> int:
        return max(0, self.wishes.slots - len(self.leases))

    @property
    def wanted(self) -> int:
        """How many jobs there is room for and nothing here against; what the coordinator has against it, it knows."""
        is_closed = any(by != COORDINATOR for by in self.closed)
        if is_closed or (self.wishes.is_once and self.taken):
            return 0
        is_shared = any(lease.grant.is_shared for lease in self.leases.values())
        room = self.free_slots + (self.wishes.beside if is_shared else 0)
        return min(1, room) if self.wishes.is_once else room

    @property
    def is_away(self) -> bool:
        """Whether the coordinator did not answer when it was last asked."""
        return self.misses > 0


@frozen
class StartRefusal:
    """Why it is not started here: a word for machines, a line for people."""

    reason: str
    message: str
    lasts: bool = False
    """It stays so until something is done on this machine."""


@frozen
class ClockTick:
    """Time has passed."""

    now_s: float


@frozen
class HelloAnswered:
    """The coordinator knows us."""

    now_s: float
    welcome: Welcome


@frozen
class ClaimAnswered:
    """A claim was answered, perhaps with nothing."""

    now_s: float
    asked_s: float
    answer: ClaimResponse
    others_work: bool = False
    """Jobs wait, and others are at work: something may yet become ours."""


@frozen
class RenewalAnswered:
    """A renewal was answered."""

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
    """Between 0 and 1, so that a fleet does not come back all at once."""


@frozen
class WorkerRejected:
    """The coordinator will never have us as we are: another version, no right to work, another of our name."""

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
    """The machine has something now that it had not: code, data, an environment."""


@frozen
class AttemptNotStarted:
    """A second look found that it can't start here now."""

    now_s: float
    token: AttemptToken
    refusal: StartRefusal
    has_brought: bool = False


@frozen
class AttemptEnded:
    """An attempt's child is gone."""

    now_s: float
    token: AttemptToken
    end: AttemptEnd


@frozen
class AttemptStopped:
    """An attempt was stopped, and nothing of it runs any more."""

    now_s: float
    token: AttemptToken
    end: AttemptEnd


@frozen
class FinalReportAccepted:
    """The last word about an attempt was heard."""

    now_s: float
    token: AttemptToken


@frozen
class LeaseLost:
    """The coordinator says that an attempt is no longer ours."""

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
    """What runs has to go, too."""


@frozen
class DevicesChanged:
    """Devices of this machine are gone, or there again; the machine's offer says so already."""

    now_s: float
    gone: tuple[str, ...]
    back: tuple[str, ...]
    slots: int | None
    """How many jobs at once there are devices for; nothing: that was asked for."""


@frozen
class WorkerStopRequested:
    """A signal: the first time everything is given back, the second time it ends now."""

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
    | AttemptEnded
    | AttemptStopped
    | FinalReportAccepted
    | LeaseLost
    | MachineClosed
    | DevicesChanged
    | WorkerStopRequested
)


# What a decision wants done. Only nouns; `acting` does them.


@frozen
class SendHello:
    """Say hello again: the coordinator does not know us, or not what this machine has now."""


@frozen
class ClaimJobs:
    """Claim up to so many jobs; of none, only listen for orders."""

    most: int


@frozen
class WithdrawClaim:
    """Take an open claim back; whatever it was given meanwhile comes as an answer."""


@frozen
class Renew:
    """Send a heartbeat for all leases."""


@frozen
class StartAttempt:
    """Look again, and hand the attempt to a child."""

    token: AttemptToken


@frozen
class ReportStart:
    """Say that it runs."""

    token: AttemptToken


@frozen
class StopAttempt:
    """End an attempt's processes: politely, after `grace_s` firmly, and see that none is left."""

    token: AttemptToken
    grace_s: float


@frozen
class SendResult:
    """Send what an attempt made, as far as its last word needs it, and then that word."""

    token: AttemptToken
    last: FinalReport
    end: AttemptEnd | None


@frozen
class SendFinalReport:
    """Say the last word at once and once; what is on its way is no longer wanted."""

    token: AttemptToken
    last: FinalReport
    end: AttemptEnd | None


@frozen
class OpenExec:
    """Run an operator's command beside an attempt."""

    call: ExecCall


@frozen
class Forget:
    """Nothing of this lease is left to do."""

    token: AttemptToken


@frozen
class LogLine:
    """Tell people: one line."""

    kind: str
    fields: dict[str, Any] = fresh(factory=dict)


@frozen
class ExitWorker:
    """Nothing is held any more: end with this code."""

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


# What a worker holds, written down for the one after it: leases, the children under them, and under which name.
#
# A successor finds a child by number, start and boot, never by the number alone. Nothing here has to survive a power
# cut: no process does.

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
    """What the worker before this one held."""

    incarnation: str
    coordinator: str
    leases: tuple[JournaledLease, ...]


class Journal:
    """The files of one worker."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock_path = os.path.join(folder, LOCK_FILE)
        self.said_folder = os.path.join(folder, "said")
        self.spool_folder = os.path.join(folder, "spool")
        self._path = os.path.join(folder, "journal.json")

    def open(self) -> None:
        """Make the folders, and clear what an earlier worker was packing or hearing when it was killed."""
        remove_tree(self.spool_folder)
        # A child of that worker may still write there: into a file that is deleted with it.
        remove_tree(self.said_folder)
        with translated(self.folder):
            for folder in (self.folder, self.said_folder, os.path.join(self.folder, "leases")):
                os.makedirs(folder, mode=0o700, exist_ok=True)

    def lease_file(self, run: str) -> LeaseFile:
        """Return the file that says until when an attempt may run."""
        return LeaseFile(os.path.join(self.folder, "leases", run))

    def write(self, *, incarnation: str, coordinator: str, leases: Iterable[HeldLease]) -> None:
        """Write down what is held now. Readers see what was written before, or this."""
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
        """Return what an earlier worker of this boot held; nothing if there is nothing to be read."""
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
