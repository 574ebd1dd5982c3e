"""Every error of Stoker, in one tree sorted by who must act.

    StokerError
    ├── BadInput      you change something          usage, files, recipes, arguments, plans
    ├── Refused       wrong moment                  conflict, held, stale, not found
    ├── Unavailable   try later or elsewhere        disk, permission, a process that went away
    ├── Damaged       bytes are not what their name says
    └── WorkFailed    our machinery worked, the work did not

A leaf carries data; its one-line message says what happened to what, its hint says what to do.
Each leaf has exactly one `code` (for machines) and one `exit_code` (for shells); `core.exits`
is the table of the latter and a test holds the two together. Nothing here formats for a terminal.
"""

from __future__ import annotations

from typing import Any, ClassVar

from stoker.core.frozen import frozen

# One thing wrong with what a person wrote, and what may be fetched to mend it.


class Fault:
    """One thing wrong: where it is, what it is, what would be right; `shown` is the line itself, carets under it."""

    __slots__ = ("hint", "message", "shown", "where")

    def __init__(self, where: str, message: str, hint: str = "", shown: str = "") -> None:
        self.where = where
        self.message = message
        self.hint = hint
        self.shown = shown

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __repr__(self) -> str:
        return f"Fault({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fault):
            return NotImplemented
        mine, others = (self.where, self.message, self.hint), (other.where, other.message, other.hint)
        return (*mine, self.shown) == (*others, other.shown)

    def __hash__(self) -> int:
        return hash((self.where, self.message, self.hint, self.shown))

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


class BadInput(StokerError):
    """Something that a person wrote has to change."""

    code = "bad_input"
    exit_code = 2


class Refused(StokerError):
    """Right request, wrong moment."""

    code = "refused"
    exit_code = 1


class Unavailable(StokerError):
    """Something outside is missing for now."""

    code = "unavailable"
    exit_code = 16


class Damaged(StokerError):
    """Bytes are not what their name says."""

    code = "damaged"
    exit_code = 13


class WorkFailed(StokerError):
    """The machinery worked; the work it was given did not."""

    code = "work_failed"
    exit_code = 1


class Usage(BadInput):
    """The command line itself is wrong."""

    code = "usage"
    exit_code = 2


class LocalFile(BadInput):
    """A file of the user's is missing, unreadable or of the wrong sort."""

    code = "local_file"
    exit_code = 16


class ProgramNotFound(BadInput):
    """What was to be run is not a program."""

    code = "program_not_found"
    exit_code = 16


class InvalidInput(BadInput):
    """Several things wrong with one file or command, reported together."""

    code = "faults"
    exit_code = 20

    def __init__(
        self,
        message: str,
        *,
        faults: tuple[Fault, ...],
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


class InvalidFile(InvalidInput):
    """Files that the work is to read are missing or may not be read."""

    code = "file_faults"
    exit_code = 16


class InvalidConfig(InvalidInput):
    """A configuration, an override or a sweep says something that can't be."""

    code = "config_faults"
    exit_code = 21


class InvalidArchive(InvalidInput):
    """An archive holds what must not be unpacked."""

    code = "archive_faults"
    exit_code = 20


class InvalidCluster(InvalidInput):
    """A cluster file says something that can't be."""

    code = "cluster_faults"
    exit_code = 23


class InvalidManifest(InvalidInput):
    """A manifest says something that can't be."""

    code = "manifest_faults"
    exit_code = 24


class InvalidAdapters(InvalidInput):
    """An adapters file says something that can't be."""

    code = "adapters_faults"
    exit_code = 25


class FakeForbidden(BadInput):
    """Invented hardware was asked for where only real hardware may be (STOKER_STRICT)."""

    code = "fake_forbidden"
    exit_code = 21


class UnknownRecipe(BadInput):
    """No cookbook has a recipe of that name."""

    code = "unknown_recipe"
    exit_code = 27


class BadCookbook(BadInput):
    """A cookbook can't be loaded or contradicts another one."""

    code = "bad_cookbook"
    exit_code = 29


class ArgsFaults(InvalidInput):
    """Arguments of a recipe or a stage do not fit their declaration."""

    code = "args_faults"
    exit_code = 28


class TooManyTrials(BadInput):
    """A sweep is larger than anybody confirmed."""

    code = "too_many_trials"
    exit_code = 22


class InvalidProgram(InvalidInput):
    """A program's words and its parameters do not fit together."""

    code = "program_faults"
    exit_code = 28


class PlanFaults(InvalidInput):
    """A plan is wired wrongly; nothing has run."""

    code = "plan_faults"
    exit_code = 40


class StageInputError(BadInput):
    """A stage found that what it was given can't be worked on; trying again is no use."""

    code = "stage_input"
    exit_code = 41


class TemplateFailed(StageInputError):
    """A base's chat template, which is a program of its own, does not write a conversation."""

    code = "chat_template"
    exit_code = 41


class NotFound(Refused):
    """Nothing goes by that name here."""

    code = "not_found"
    exit_code = 1


class Ambiguous(Refused):
    """A name or id prefix stands for more than one thing."""

    code = "ambiguous"
    exit_code = 1


class InvalidTransition(Refused):
    """A job may not go from the state it is in to the one asked for."""

    code = "illegal_move"
    exit_code = 30


class LockHeld(Refused):
    """Another process holds the lock."""

    code = "lock_held"
    exit_code = 16


class NoSpace(Unavailable):
    """The disk (or a quota on it) is full."""

    code = "no_space"
    exit_code = 10


class NoPermission(Unavailable):
    """The operating system does not let us: permission, or a read-only file system."""

    code = "no_permission"
    exit_code = 16


class AuthRefused(Unavailable):
    """A server does not let us: no credentials, wrong ones, or terms that nobody accepted (401, 403)."""

    code = "auth"
    exit_code = 11


class RateLimited(Unavailable):
    """A server asks for fewer requests (429), longer than we were told to wait."""

    code = "rate_limited"
    exit_code = 12


class NetworkFailed(Unavailable):
    """Something between us and a server broke: name, connection, certificate, an answer cut short, too slow."""

    code = "network"
    exit_code = 14


class NotOnServer(Unavailable):
    """The server has no such thing (404, 410, 451), or we may not ask it (offline)."""

    code = "not_on_server"
    exit_code = 14


class BadAnswer(Unavailable):
    """A server answered what can't be true or can't be used: a nonsensical header, a name that leads elsewhere."""

    code = "bad_answer"
    exit_code = 14


class InsufficientDeviceMemory(Unavailable):
    """A device has no room for what was asked: not now, or never."""

    code = "insufficient_memory"
    exit_code = 50


class DeviceWaitTimeout(Unavailable):
    """Room on a device did not come free in the time that was given."""

    code = "room_timeout"
    exit_code = 51


class MissingExtra(Unavailable):
    """An optional library is not installed."""

    code = "missing_extra"
    exit_code = 29


class ProcessLost(Unavailable):
    """A process of ours went away, or will not go away."""

    code = "process_lost"
    exit_code = 45


class ScratchBusy(Unavailable):
    """Another run works with the same checkpoints."""

    code = "scratch_busy"
    exit_code = 16


class ContainmentUnavailable(Unavailable):
    """A way to keep a program within its memory was asked for and can't be had here."""

    code = "containment"
    exit_code = 42


class CorruptBytes(Damaged):
    """Stored bytes do not have the digest they are named by."""

    code = "corrupt_bytes"
    exit_code = 13


class HashMismatch(Damaged):
    """What came is not what was asked for: its digest or its size is another."""

    code = "hash_mismatch"
    exit_code = 13


class NotVerified(Damaged):
    """Evidence does not hold: a receipt that was edited, a file that is no longer the one it speaks of."""

    code = "not_verified"
    exit_code = 15


class StageFailed(WorkFailed):
    """A stage raised, or its process ended badly."""

    code = "stage_failed"
    exit_code = 1


class StageTimeout(WorkFailed):
    """A stage ran past its limit."""

    code = "stage_timeout"
    exit_code = 43


class StageDiverged(WorkFailed):
    """A watched metric is no longer finite."""

    code = "stage_diverged"
    exit_code = 44


class OutOfMemory(WorkFailed):
    """A stage was killed for memory, or the machine can't give it what it declares."""

    code = "out_of_memory"
    exit_code = 46


class PlanDeadline(WorkFailed):
    """The whole plan ran past its limit."""

    code = "plan_deadline"
    exit_code = 47


class SweepGivenUp(WorkFailed):
    """Everything that a sweep tried failed in the same way."""

    code = "sweep_given_up"
    exit_code = 1


class TrialsCancelled(WorkFailed):
    """Trials of a sweep were cancelled one by one (`stoker cancel NAME/2`); the others went on."""

    code = "trials_cancelled"
    exit_code = 1


class Cancelled(WorkFailed):
    """A person no longer wants it (Ctrl-C)."""

    code = "cancelled"
    exit_code = 130


class Terminated(WorkFailed):
    """The process was asked to end (SIGTERM, `stoker cancel`)."""

    code = "terminated"
    exit_code = 143


class InternalError(StokerError):
    """Something that can't happen did."""

    code = "bug"
    exit_code = 70


# Errors of the queue, the coordinator and its own API: leaves of the tree in `core.errors`, exit codes 30 to 39.


class StaleLease(Refused):
    """Somebody speaks for a job that is no longer theirs: its epoch, or the coordinator's generation, has moved on."""

    code = "stale_lease"
    exit_code = 31


class Conflict(Refused):
    """The same name or key already stands for something else."""

    code = "conflict"
    exit_code = 32


class Forbidden(Refused):
    """The coordinator wants a token for this, or another one."""

    code = "not_allowed"
    exit_code = 33


class NoCoordinator(Unavailable):
    """No coordinator is known here, or the one that is does not answer."""

    code = "no_coordinator"
    exit_code = 34


class VersionSkew(Refused):
    """The two sides speak protocols, or keep schemas, that are too far apart."""

    code = "version_skew"
    exit_code = 35


class DatabaseTrouble(Unavailable):
    """The queue's database can't be reached, is busy for too long, or refuses."""

    code = "database"
    exit_code = 36


class AlreadyServing(Refused):
    """Another coordinator serves this database."""

    code = "already_serving"
    exit_code = 37


class TooLarge(BadInput):
    """More bytes, jobs or fields than a coordinator takes at once."""

    code = "too_large"
    exit_code = 38


class CodeNotAccepted(Refused):
    """A coordinator takes only code that it knows, and this is other code. To try it again unchanged is useless."""

    code = "code_not_accepted"
    exit_code = 39


class CommitMissing(CodeNotAccepted):
    """A coordinator takes only commits that it knows, and this code carries none."""

    code = "commit_missing"
    exit_code = 39


class Drained(WorkFailed):
    """A worker ended because it was drained or its machine was wanted: start it again when that is over."""

    code = "drained"
    exit_code = 75


# Errors of gangs: leaves of the tree in `core.errors`, exit codes 52 to 57.


class BadGang(InvalidInput):
    """Configs of ranks say something that can't be; no process was started."""

    code = "bad_gang"
    exit_code = 52


class BadCall(BadInput):
    """A function can't be sent to ranks: it, or what it is given, can't be pickled."""

    code = "bad_call"
    exit_code = 52


class GangNotUp(Refused):
    """Something was asked of a gang that has not been brought up."""

    code = "gang_not_up"
    exit_code = 53


class GangClosed(Refused):
    """Something was asked of a gang that is closed, or broken by a rank's failure."""

    code = "gang_closed"
    exit_code = 53


class RankFailed(WorkFailed):
    """A rank failed, and with it its gang. `data` has the cause, whom it dragged along, and who was still pending."""

    code = "rank_failed"
    exit_code = 54

    @property
    def rank(self) -> int:
        """Return the rank that failed first."""
        return int(self._read("rank", -1))

    @property
    def phase(self) -> str:
        return str(self._read("phase", ""))

    @property
    def traceback(self) -> str:
        """Return what its interpreter said; empty if it died without a word."""
        return str(self._read("traceback", ""))

    @property
    def crash(self) -> str:
        """Return what its native side said when it crashed, or where it was when it was silent."""
        return str(self._read("crash", ""))

    @property
    def collateral(self) -> tuple[dict[str, Any], ...]:
        """Return who failed after it, in order of time."""
        return tuple(self._read("collateral", ()))

    @property
    def pending(self) -> tuple[dict[str, Any], ...]:
        """Return who neither failed nor was done, and the phase of each."""
        return tuple(self._read("pending", ()))

    def _read(self, name: str, default: Any) -> Any:
        return self.data.get(name, default)


class RankTimeout(RankFailed):
    """A rank did not get ready, or did not answer, in the time that was given."""

    code = "rank_silent"
    exit_code = 55


class WindowMismatch(Damaged):
    """A rank returned other buffers than it was promised to have."""

    code = "window_mismatch"
    exit_code = 56


class RendezvousFailed(Unavailable):
    """The hosts of a gang did not come together: one did not arrive, gave up, or vanished. `data` says which."""

    code = "meeting_failed"
    exit_code = 57
