"""Every error of Stoker, in one tree sorted by who must act.

    StokerError
    ├── BadInput      you change something          usage, files, recipes, arguments, plans
    ├── Refused       wrong moment                  conflict, held, stale, not found
    ├── Unavailable   try later or elsewhere        disk, permission, a process that went away
    ├── Damaged       bytes are not what their name says
    └── WorkFailed    our machinery worked, the work did not

A leaf carries data; its one-line message says what happened to what, its hint says what to do.
Each leaf has exactly one `code` (for machines) and one `exit_code` (for shells); `MEANINGS` is the table of
the latter and a test checks that every class uses a code of it. Nothing here formats for a terminal.
"""

from __future__ import annotations

from typing import Any, ClassVar

from stoker.core.frozen import frozen, frozen_by_position

# One thing wrong with what a person wrote, and what may be fetched to mend it.


@frozen_by_position
class Diagnostic:
    """One thing wrong: where it is, what it is, what would be right; `shown` is the line itself, carets under it."""

    where: str
    message: str
    hint: str = ""
    shown: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __repr__(self) -> str:
        return f"Diagnostic({str(self)!r})"

    def to_dict(self) -> dict[str, str]:
        more = {"hint": self.hint, "shown": self.shown}
        return {"where": self.where, "message": self.message, **{name: text for name, text in more.items() if text}}


@frozen
class MissingRepoFiles:
    """Files of one repository, without which nobody can say whether work is right."""

    argument: str
    """Of the recipe, which names the repository."""
    repo: str
    """As it was typed: `org/name`, or `org/name@revision`."""
    names: tuple[str, ...]
    """What is wanted next, by name or pattern: the small files that may still refuse it come before the large ones."""
    whole: tuple[str, ...]
    """All that will be wanted, by name or pattern."""


class StokerError(Exception):
    """Anything that Stoker reports on purpose."""

    code: ClassVar[str] = "stoker"
    exit_code: ClassVar[int] = 70

    def __init_subclass__(cls, *, code: str, exit_code: int) -> None:
        super().__init_subclass__()
        cls.code = code
        cls.exit_code = exit_code

    def __init__(self, message: str, *, hint: str = "", **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data

    def __str__(self) -> str:
        return self.message

    def add_hint(self, more: str) -> None:
        """Add a second thing to do to the hint."""
        join = " " if self.hint.endswith("?") else "; "
        self.hint = f"{self.hint}{join}{more}" if self.hint else more

    def to_dict(self) -> dict[str, object]:
        """Return the error as the plain object that every `--json` output uses."""
        body: dict[str, object] = {"error": self.code, "exit_code": self.exit_code, "message": self.message}
        if self.hint:
            body["hint"] = self.hint
        if self.data:
            body["data"] = self.data
        return body


class BadInput(StokerError, code="bad_input", exit_code=2):
    """Something that a person wrote has to change."""


class Refused(StokerError, code="refused", exit_code=1):
    """Right request, wrong moment."""


class Unavailable(StokerError, code="unavailable", exit_code=16):
    """Something outside is missing for now."""


class Damaged(StokerError, code="damaged", exit_code=13):
    """Bytes are not what their name says."""


class WorkFailed(StokerError, code="work_failed", exit_code=1):
    """The machinery worked; the work it was given did not."""


class Usage(BadInput, code="usage", exit_code=2):
    """The command line itself is wrong."""


class LocalFile(BadInput, code="local_file", exit_code=16):
    """A file of the user's is missing, unreadable or of the wrong sort."""


class ProgramNotFound(BadInput, code="program_not_found", exit_code=16):
    """What was to be run is not a program."""


class InvalidInput(BadInput, code="faults", exit_code=20):
    """Several things wrong with one file or command, reported together."""

    def __init__(
        self,
        message: str,
        *,
        faults: tuple[Diagnostic, ...],
        hint: str = "",
        count: int = 0,
        lacks: tuple[MissingRepoFiles, ...] = (),
        **data: object,
    ) -> None:
        if count:
            data["count"] = count
        super().__init__(message, hint=hint, faults=[fault.to_dict() for fault in faults], **data)
        self.faults = faults
        self.count = count or len(faults)
        """How many there are. Of very many, only the first are kept in `faults`."""
        self.lacks = lacks
        """What the hub may have, and all of these faults are about. Empty if more is wrong than that."""


class InvalidFile(InvalidInput, code="file_faults", exit_code=16):
    """Files that the work is to read are missing or may not be read."""


class InvalidConfig(InvalidInput, code="config_faults", exit_code=21):
    """A configuration, an override or a sweep says something that can't be."""


class InvalidArchive(InvalidInput, code="archive_faults", exit_code=20):
    """An archive holds what must not be unpacked."""


class InvalidCluster(InvalidInput, code="cluster_faults", exit_code=23):
    """A cluster file says something that can't be."""


class InvalidManifest(InvalidInput, code="manifest_faults", exit_code=24):
    """A manifest says something that can't be."""


class InvalidAdapters(InvalidInput, code="adapters_faults", exit_code=25):
    """An adapters file says something that can't be."""


class FakeForbidden(BadInput, code="fake_forbidden", exit_code=21):
    """Invented hardware was asked for where only real hardware may be (STOKER_STRICT)."""


class UnknownRecipe(BadInput, code="unknown_recipe", exit_code=27):
    """No cookbook has a recipe of that name."""


class BadCookbook(BadInput, code="bad_cookbook", exit_code=29):
    """A cookbook can't be loaded or contradicts another one."""


class InvalidArgs(InvalidInput, code="args_faults", exit_code=28):
    """Arguments of a recipe or a stage do not fit their declaration."""


class TooManyTrials(BadInput, code="too_many_trials", exit_code=22):
    """A sweep is larger than anybody confirmed."""


class InvalidProgram(InvalidInput, code="program_faults", exit_code=28):
    """A program's words and its parameters do not fit together."""


class InvalidPlan(InvalidInput, code="plan_faults", exit_code=40):
    """A plan is wired wrongly; nothing has run."""


class StageInputError(BadInput, code="stage_input", exit_code=41):
    """A stage found that what it was given can't be worked on; trying again is no use."""


class TemplateFailed(StageInputError, code="chat_template", exit_code=41):
    """A base's chat template, which is a program of its own, does not write a conversation."""


class NotFound(Refused, code="not_found", exit_code=1):
    """Nothing goes by that name here."""


class Ambiguous(Refused, code="ambiguous", exit_code=1):
    """A name or id prefix stands for more than one thing."""


class InvalidTransition(Refused, code="illegal_move", exit_code=30):
    """A job may not go from the state it is in to the one asked for."""


class LockHeld(Refused, code="lock_held", exit_code=16):
    """Another process holds the lock."""


class NoSpace(Unavailable, code="no_space", exit_code=10):
    """The disk (or a quota on it) is full."""


class NoPermission(Unavailable, code="no_permission", exit_code=16):
    """The operating system does not let us: permission, or a read-only file system."""


class AuthRefused(Unavailable, code="auth", exit_code=11):
    """A server does not let us: no credentials, wrong ones, or terms that nobody accepted (401, 403)."""


class RateLimited(Unavailable, code="rate_limited", exit_code=12):
    """A server asks for fewer requests (429), longer than we were told to wait."""


class NetworkFailed(Unavailable, code="network", exit_code=14):
    """Something between us and a server broke: name, connection, certificate, an answer cut short, too slow."""


class NotOnServer(Unavailable, code="not_on_server", exit_code=14):
    """The server has no such thing (404, 410, 451), or we may not ask it (offline)."""


class BadAnswer(Unavailable, code="bad_answer", exit_code=14):
    """A server answered what can't be true or can't be used: a nonsensical header, a name that leads elsewhere."""


class InsufficientDeviceMemory(Unavailable, code="insufficient_memory", exit_code=50):
    """A device has no room for what was asked: not now, or never."""


class DeviceWaitTimeout(Unavailable, code="room_timeout", exit_code=51):
    """Room on a device did not come free in the time that was given."""


class MissingExtra(Unavailable, code="missing_extra", exit_code=29):
    """An optional library is not installed."""


class ProcessLost(Unavailable, code="process_lost", exit_code=45):
    """A process of ours went away, or will not go away."""


class ScratchBusy(Unavailable, code="scratch_busy", exit_code=16):
    """Another run works with the same checkpoints."""


class ContainmentUnavailable(Unavailable, code="containment", exit_code=42):
    """A way to keep a program within its memory was asked for and can't be had here."""


class CorruptBytes(Damaged, code="corrupt_bytes", exit_code=13):
    """Stored bytes do not have the digest they are named by."""


class HashMismatch(Damaged, code="hash_mismatch", exit_code=13):
    """What came is not what was asked for: its digest or its size is another."""


class NotVerified(Damaged, code="not_verified", exit_code=15):
    """Evidence does not hold: a receipt that was edited, a file that is no longer the one it speaks of."""


class StageFailed(WorkFailed, code="stage_failed", exit_code=1):
    """A stage raised, or its process ended badly."""


class StageTimeout(WorkFailed, code="stage_timeout", exit_code=43):
    """A stage ran past its limit."""


class StageDiverged(WorkFailed, code="stage_diverged", exit_code=44):
    """A watched metric is no longer finite."""


class OutOfMemory(WorkFailed, code="out_of_memory", exit_code=46):
    """A stage was killed for memory, or the machine can't give it what it declares."""


class PlanDeadline(WorkFailed, code="plan_deadline", exit_code=47):
    """The whole plan ran past its limit."""


class SweepGivenUp(WorkFailed, code="sweep_given_up", exit_code=1):
    """Everything that a sweep tried failed in the same way."""


class TrialsCancelled(WorkFailed, code="trials_cancelled", exit_code=1):
    """Trials of a sweep were cancelled one by one (`stoker cancel NAME/2`); the others went on."""


class Cancelled(WorkFailed, code="cancelled", exit_code=130):
    """A person no longer wants it (Ctrl-C)."""


class Terminated(WorkFailed, code="terminated", exit_code=143):
    """The process was asked to end (SIGTERM, `stoker cancel`)."""


class InternalError(StokerError, code="bug", exit_code=70):
    """Something that can't happen did."""


# Errors of the queue, the coordinator and its own API: leaves of the tree in `core.errors`, exit codes 30 to 39.


class StaleLease(Refused, code="stale_lease", exit_code=31):
    """Somebody speaks for a job that is no longer theirs: its epoch, or the coordinator's generation, has moved on."""


class Conflict(Refused, code="conflict", exit_code=32):
    """The same name or key already stands for something else."""


class Forbidden(Refused, code="not_allowed", exit_code=33):
    """The coordinator wants a token for this, or another one."""


class NoCoordinator(Unavailable, code="no_coordinator", exit_code=34):
    """No coordinator is known here, or the one that is does not answer."""


class VersionSkew(Refused, code="version_skew", exit_code=35):
    """The two sides speak protocols, or keep schemas, that are too far apart."""


class DatabaseTrouble(Unavailable, code="database", exit_code=36):
    """The queue's database can't be reached, is busy for too long, or refuses."""


class AlreadyServing(Refused, code="already_serving", exit_code=37):
    """Another coordinator serves this database."""


class TooLarge(BadInput, code="too_large", exit_code=38):
    """More bytes, jobs or fields than a coordinator takes at once."""


class CodeNotAccepted(Refused, code="code_not_accepted", exit_code=39):
    """A coordinator takes only code that it knows, and this is other code. To try it again unchanged is useless."""


class CommitMissing(CodeNotAccepted, code="commit_missing", exit_code=39):
    """A coordinator takes only commits that it knows, and this code carries none."""


class Drained(WorkFailed, code="drained", exit_code=75):
    """A worker ended because it was drained or its machine was wanted: start it again when that is over."""


# Errors of gangs: leaves of the tree in `core.errors`, exit codes 52 to 57.


class BadGang(InvalidInput, code="bad_gang", exit_code=52):
    """Configs of ranks say something that can't be; no process was started."""


class BadCall(BadInput, code="bad_call", exit_code=52):
    """A function can't be sent to ranks: it, or what it is given, can't be pickled."""


class GangNotUp(Refused, code="gang_not_up", exit_code=53):
    """Something was asked of a gang that has not been brought up."""


class GangClosed(Refused, code="gang_closed", exit_code=53):
    """Something was asked of a gang that is closed, or broken by a rank's failure."""


class RankFailed(WorkFailed, code="rank_failed", exit_code=54):
    """A rank failed, and with it its gang. `data` has the cause, whom it dragged along, and who was still pending."""

    @property
    def rank(self) -> int:
        """Return the rank that failed first."""
        rank = self.data.get("rank", -1)
        return rank if isinstance(rank, int) else -1

    @property
    def phase(self) -> str:
        return str(self.data.get("phase", ""))

    @property
    def traceback(self) -> str:
        """Return what its interpreter printed; empty if there is nothing."""
        return str(self.data.get("traceback", ""))

    @property
    def crash(self) -> str:
        """Return what its native side printed when it crashed, or where it was when it was silent."""
        return str(self.data.get("crash", ""))

    @property
    def collateral(self) -> tuple[dict[str, Any], ...]:
        """Return the ranks that failed after it, in order of time."""
        return tuple(self.data.get("collateral", ()))  # type: ignore[arg-type]  # a sequence, if it is there

    @property
    def pending(self) -> tuple[dict[str, Any], ...]:
        """Return the ranks that neither failed nor were done, and the phase of each."""
        return tuple(self.data.get("pending", ()))  # type: ignore[arg-type]  # a sequence, if it is there


class RankTimeout(RankFailed, code="rank_silent", exit_code=55):
    """A rank did not get ready, or did not answer, in the time that was given."""


class WindowMismatch(Damaged, code="window_mismatch", exit_code=56):
    """A rank returned other buffers than it was promised to have."""


class RendezvousFailed(Unavailable, code="meeting_failed", exit_code=57):
    """The hosts of a gang did not come together: one did not arrive, gave up, or vanished. `data` says which."""


# Exit codes: the one table of what a shell sees.

DONE = 0
NO = 1
USAGE = 2
BUG = 70
INTERRUPTED = 130
TERMINATED = 143

MEANINGS: dict[int, str] = {
    DONE: "done",
    NO: "the answer is no, or the work failed",
    USAGE: "usage",
    10: "no disk space",
    11: "auth (401/403)",
    12: "rate limited (429)",
    13: "hash mismatch",
    14: "network (refused, 404, timeout)",
    15: "verification failed",
    16: "local file: lock held, no permission, read-only",
    17: "regression against a baseline",
    20: "faults in a file",
    21: "configuration",
    22: "more trials than were confirmed",
    23: "cluster file",
    24: "manifest",
    25: "adapters file",
    27: "unknown recipe",
    28: "recipe arguments",
    29: "cookbook can't be loaded",
    30: "illegal move of a job",
    31: "stale lease",
    32: "conflict with what is known under that name",
    33: "the coordinator does not allow it",
    34: "no coordinator",
    35: "versions too far apart",
    36: "the queue's database",
    37: "another coordinator serves this database",
    38: "too large for a coordinator",
    39: "code that a coordinator does not accept",
    40: "plan wired wrongly",
    41: "a stage refused its input",
    42: "containment can't be had",
    43: "stage ran past its limit",
    44: "stage diverged",
    45: "process lost",
    46: "out of memory",
    47: "plan ran past its deadline",
    50: "no room on a device",
    51: "room on a device did not come free in time",
    52: "ranks configured or called wrongly",
    53: "a gang is not up, or closed",
    54: "a rank failed",
    55: "a rank was silent for too long",
    56: "a rank's window is not as promised",
    57: "the hosts of a gang did not come together",
    BUG: "a bug in Stoker",
    75: "drained or preempted on purpose: start me again",
    INTERRUPTED: "interrupted",
    TERMINATED: "terminated",
}


def exit_code_of(error: BaseException) -> int:
    """Return which code a program ends with when this error reaches its top."""
    if isinstance(error, StokerError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return BUG
