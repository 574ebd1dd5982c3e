"""Every error of Stoker, in one tree sorted by the person or program that must act.

    StokerError
    ├── BadInput      you change something          usage, files, recipes, arguments, plans
    ├── Refused       wrong moment                  conflict, held, stale, not found
        ├── Unavailable   try later or elsewhere        disk, permission, a lost process
    ├── Damaged       bytes are not what their name says
    └── WorkFailed    our machinery worked, the work did not

A leaf carries data. Its message states in one line what happened to what, its hint what to do. Each leaf has exactly
one `code` (for programs) and one `exit_code` (for shells). `MEANINGS` is the table of exit codes; a test checks that
every class uses one of it. Nothing here formats for a terminal.
"""

from __future__ import annotations

from typing import Any, ClassVar

from stoker.core.frozen import frozen, frozen_by_position

# One validation error in what a person wrote, and what may be fetched to repair it.


@frozen_by_position
class Diagnostic:
    """One validation error: its place, the message, a hint. `shown` is the line itself with carets under it."""

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
    """Files of one repository that a check of the work requires."""

    argument: str
    """Argument of the recipe that names the repository."""
    repo: str
    """As typed: `org/name`, or `org/name@revision`."""
    names: tuple[str, ...]
    """Files needed next, by name or pattern. Small files that may refuse the work come before the large ones."""
    whole: tuple[str, ...]
    """All files that will be needed, by name or pattern."""


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
        """Append a second action to the hint."""
        join = " " if self.hint.endswith("?") else "; "
        self.hint = f"{self.hint}{join}{more}" if self.hint else more

    def to_dict(self) -> dict[str, object]:
        """Return the error as the JSON object of every `--json` output."""
        body: dict[str, object] = {"error": self.code, "exit_code": self.exit_code, "message": self.message}
        if self.hint:
            body["hint"] = self.hint
        if self.data:
            body["data"] = self.data
        return body


class BadInput(StokerError, code="bad_input", exit_code=2):
    """The user must change something."""


class Refused(StokerError, code="refused", exit_code=1):
    """The request is right, the moment is not."""


class Unavailable(StokerError, code="unavailable", exit_code=16):
    """Something outside is not available for now."""


class Damaged(StokerError, code="damaged", exit_code=13):
    """Bytes do not match their name."""


class WorkFailed(StokerError, code="work_failed", exit_code=1):
    """The machinery worked; the work failed."""


class Usage(BadInput, code="usage", exit_code=2):
    """The command line is wrong."""


class LocalFile(BadInput, code="local_file", exit_code=16):
    """A file of the user is missing, unreadable or of the wrong type."""


class ProgramNotFound(BadInput, code="program_not_found", exit_code=16):
    """The command to run is not a program."""


class InvalidInput(BadInput, code="faults", exit_code=20):
    """Several validation errors of one file or command, reported together."""

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
        """How many there are. If there are very many, `faults` has only the first."""
        self.lacks = lacks
        """Files that the hub may have, if all of these faults are about them. Empty if anything else is wrong."""


class InvalidFile(InvalidInput, code="file_faults", exit_code=16):
    """Input files of the work are missing or unreadable."""


class InvalidConfig(InvalidInput, code="config_faults", exit_code=21):
    """A configuration, an override or a sweep is invalid."""


class InvalidArchive(InvalidInput, code="archive_faults", exit_code=20):
    """An archive contains what must not be unpacked."""


class InvalidCluster(InvalidInput, code="cluster_faults", exit_code=23):
    """A cluster file is invalid."""


class InvalidManifest(InvalidInput, code="manifest_faults", exit_code=24):
    """A manifest is invalid."""


class InvalidAdapters(InvalidInput, code="adapters_faults", exit_code=25):
    """An adapters file is invalid."""


class FakeForbidden(BadInput, code="fake_forbidden", exit_code=21):
    """Fake hardware was requested where only real hardware is allowed (STOKER_STRICT)."""


class UnknownRecipe(BadInput, code="unknown_recipe", exit_code=27):
    """No cookbook has a recipe with that name."""


class BadCookbook(BadInput, code="bad_cookbook", exit_code=29):
    """A cookbook can't be loaded or contradicts another one."""


class InvalidArgs(InvalidInput, code="args_faults", exit_code=28):
    """Arguments of a recipe or a stage do not fit their declaration."""


class TooManyTrials(BadInput, code="too_many_trials", exit_code=22):
    """A sweep exceeds the confirmed number of trials."""


class InvalidProgram(InvalidInput, code="program_faults", exit_code=28):
    """A program's arguments and its parameters do not fit together."""


class InvalidPlan(InvalidInput, code="plan_faults", exit_code=40):
    """A plan is wired wrongly; nothing has run."""


class StageInputError(BadInput, code="stage_input", exit_code=41):
    """A stage can't process its input; a retry does not help."""


class TemplateFailed(StageInputError, code="chat_template", exit_code=41):
    """A base's chat template, which is a program of its own, does not render a conversation."""


class NotFound(Refused, code="not_found", exit_code=1):
    """No object with that name."""


class Ambiguous(Refused, code="ambiguous", exit_code=1):
    """A name or id prefix matches more than one object."""


class InvalidTransition(Refused, code="illegal_move", exit_code=30):
    """A job can't go from its state to the requested one."""


class LockHeld(Refused, code="lock_held", exit_code=16):
    """Another process holds the lock."""


class NoSpace(Unavailable, code="no_space", exit_code=10):
    """The disk, or a quota on it, is full."""


class NoPermission(Unavailable, code="no_permission", exit_code=16):
    """The operating system denied it: permission, or a read-only file system."""


class AuthRefused(Unavailable, code="auth", exit_code=11):
    """A server denied access: credentials missing or wrong, or terms not accepted (401, 403)."""


class RateLimited(Unavailable, code="rate_limited", exit_code=12):
    """A server limits the rate of requests (429) for longer than the limit for waiting."""


class NetworkFailed(Unavailable, code="network", exit_code=14):
    """The connection to a server failed: name, connection, certificate, truncated response, timeout."""


class NotOnServer(Unavailable, code="not_on_server", exit_code=14):
    """The server has no such object (404, 410, 451), or requests are disabled (offline)."""


class BadAnswer(Unavailable, code="bad_answer", exit_code=14):
    """A server's response is invalid: a malformed header, a name that leads elsewhere."""


class InsufficientDeviceMemory(Unavailable, code="insufficient_memory", exit_code=50):
    """A device lacks the requested memory, now or in total."""


class DeviceWaitTimeout(Unavailable, code="room_timeout", exit_code=51):
    """Device memory was not released within the time limit."""


class MissingExtra(Unavailable, code="missing_extra", exit_code=29):
    """An optional library is not installed."""


class ProcessLost(Unavailable, code="process_lost", exit_code=45):
    """A process of ours disappeared, or can't be stopped."""


class ScratchBusy(Unavailable, code="scratch_busy", exit_code=16):
    """Another run uses the same checkpoints."""


class ContainmentUnavailable(Unavailable, code="containment", exit_code=42):
    """A requested containment mechanism is not available here."""


class CorruptBytes(Damaged, code="corrupt_bytes", exit_code=13):
    """Stored bytes do not have the digest in their name."""


class HashMismatch(Damaged, code="hash_mismatch", exit_code=13):
    """Received bytes have another digest or size than expected."""


class NotVerified(Damaged, code="not_verified", exit_code=15):
    """Evidence is not valid: an edited receipt, a file that changed since."""


class StageFailed(WorkFailed, code="stage_failed", exit_code=1):
    """A stage raised, or its process exited with an error."""


class StageTimeout(WorkFailed, code="stage_timeout", exit_code=43):
    """A stage exceeded its time limit."""


class StageDiverged(WorkFailed, code="stage_diverged", exit_code=44):
    """A watched metric is no longer finite."""


class OutOfMemory(WorkFailed, code="out_of_memory", exit_code=46):
    """A stage was killed for memory, or the machine lacks the memory it declares."""


class PlanDeadline(WorkFailed, code="plan_deadline", exit_code=47):
    """The plan exceeded its time limit."""


class SweepGivenUp(WorkFailed, code="sweep_given_up", exit_code=1):
    """All trials of a sweep failed in the same way."""


class TrialsCancelled(WorkFailed, code="trials_cancelled", exit_code=1):
    """Trials of a sweep were cancelled one by one (`stoker cancel NAME/2`); the others continued."""


class PluginFailed(WorkFailed, code="plugin_failed", exit_code=1):
    """A plug-in of a comparison reported that it can't do what was requested. `data` has its own code and its log."""


class PluginCrashed(PluginFailed, code="plugin_crashed", exit_code=1):
    """A plug-in exited in the middle of a request. `data` has the signal or the exit status, and its log."""


class PluginTimeout(PluginFailed, code="plugin_timeout", exit_code=1):
    """A plug-in did not respond in time, and was stopped."""


class PluginInvalid(PluginFailed, code="plugin_invalid", exit_code=1):
    """A plug-in's response is not what the protocol requires: no JSON, an endless line, another shape or order."""


class PluginNotFinite(PluginFailed, code="plugin_not_finite", exit_code=1):
    """A model computed NaN or infinity. `data` has the position and the layer."""


class SilentFallback(WorkFailed, code="silent_fallback", exit_code=1):
    """A runtime did not take the promised path: another device, another precision, tensors that it left out."""


class ReferenceNotBuilt(WorkFailed, code="reference_not_built", exit_code=1):
    """The reference can't be installed on this machine. `data` has what the installer printed."""


class Cancelled(WorkFailed, code="cancelled", exit_code=130):
    """The user cancelled it (Ctrl-C)."""


class Terminated(WorkFailed, code="terminated", exit_code=143):
    """The process received SIGTERM (`stoker cancel`)."""


class InternalError(StokerError, code="bug", exit_code=70):
    """A state that should be impossible."""


# Errors of the queue, the coordinator and its API: exit codes 30 to 39.


class StaleLease(Refused, code="stale_lease", exit_code=31):
    """A write for a job comes from an older epoch, or from an older generation of the coordinator."""


class Conflict(Refused, code="conflict", exit_code=32):
    """The name or key already belongs to something else."""


class Forbidden(Refused, code="not_allowed", exit_code=33):
    """The request needs a token, or one with another role."""


class NoCoordinator(Unavailable, code="no_coordinator", exit_code=34):
    """No coordinator is configured here, or it does not respond."""


class VersionSkew(Refused, code="version_skew", exit_code=35):
    """The protocols or schemas of the two sides are too far apart."""


class DatabaseTrouble(Unavailable, code="database", exit_code=36):
    """The queue's database can't be reached, is busy for too long, or refuses."""


class AlreadyServing(Refused, code="already_serving", exit_code=37):
    """Another coordinator serves this database."""


class TooLarge(BadInput, code="too_large", exit_code=38):
    """More bytes, jobs or fields than a coordinator accepts at once."""


class CodeNotAccepted(Refused, code="code_not_accepted", exit_code=39):
    """A coordinator accepts only known code, and this is other code. A retry without a change does not help."""


class CommitMissing(CodeNotAccepted, code="commit_missing", exit_code=39):
    """A coordinator accepts only known commits, and this code has none."""


class Drained(WorkFailed, code="drained", exit_code=75):
    """A worker exited because it was drained or its machine is needed; start it again afterwards."""


# Errors of gangs: exit codes 52 to 57.


class BadGang(InvalidInput, code="bad_gang", exit_code=52):
    """The configuration of ranks is invalid; no process was started."""


class BadCall(BadInput, code="bad_call", exit_code=52):
    """A function can't be sent to ranks: it, or an argument, can't be pickled."""


class GangNotUp(Refused, code="gang_not_up", exit_code=53):
    """A gang was called before it was brought up."""


class GangClosed(Refused, code="gang_closed", exit_code=53):
    """A gang was called after it was closed, or after a rank failed."""


class RankFailed(WorkFailed, code="rank_failed", exit_code=54):
    """A rank failed, and with it its gang. `data` has the cause, the ranks it took down, and the pending ranks."""

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
        """Return the traceback of its interpreter; empty if there is none."""
        return str(self.data.get("traceback", ""))

    @property
    def crash(self) -> str:
        """Return what its native code printed at a crash, or where the rank was at a timeout."""
        return str(self.data.get("crash", ""))

    @property
    def collateral(self) -> tuple[dict[str, Any], ...]:
        """Return the ranks that failed after it, by time."""
        return tuple(self.data.get("collateral", ()))  # type: ignore[arg-type]  # a sequence, if it is there

    @property
    def pending(self) -> tuple[dict[str, Any], ...]:
        """Return the ranks that had neither failed nor finished, with their phases."""
        return tuple(self.data.get("pending", ()))  # type: ignore[arg-type]  # a sequence, if it is there


class RankTimeout(RankFailed, code="rank_silent", exit_code=55):
    """A rank was not ready, or did not respond, before its timeout."""


class WindowMismatch(Damaged, code="window_mismatch", exit_code=56):
    """A rank returned other buffers than declared."""


class RendezvousFailed(Unavailable, code="meeting_failed", exit_code=57):
    """The hosts of a gang did not form: one did not arrive, gave up, or disconnected. `data` names it."""


# Launching workers: exit codes 60 to 64.


class LaunchRefused(Refused, code="launch_refused", exit_code=60):
    """A backend did not accept an allocation. The message has the backend's own text."""


class KitRefused(LaunchRefused, code="kit_refused", exit_code=60):
    """Stoker can't be brought to a machine of a pool. `data` has the reason: no Python, no disk space, no libraries."""


class LaunchDoubtful(Unavailable, code="launch_doubtful", exit_code=61):
    """A backend's answer was lost: it may have accepted the allocations. A look at it shows whether it has."""


class NoBackend(Unavailable, code="no_backend", exit_code=62):
    """A backend can't be reached: its commands are missing, its host or its server does not respond."""


class HostKeyChanged(Refused, code="host_key_changed", exit_code=63):
    """A host has another key than the one known for it. `data` has both fingerprints."""


class TicketRefused(Refused, code="ticket_refused", exit_code=64):
    """A worker's ticket is invalid, expired, used, or of another fleet."""


# Exit codes: the one table of what a shell sees.

DONE = 0
NO = 1
USAGE = 2
BUG = 70
INTERRUPTED = 130
TERMINATED = 143

MEANINGS: dict[int, str] = {
    DONE: "done",
    NO: "negative answer, or the work failed",
    USAGE: "invalid command line",
    10: "no disk space",
    11: "auth (401/403)",
    12: "rate limited (429)",
    13: "hash mismatch",
    14: "network (refused, 404, timeout)",
    15: "verification failed",
    16: "local file: lock held, no permission, read-only",
    17: "regression against a baseline",
    20: "invalid file",
    21: "invalid configuration",
    22: "more trials than were confirmed",
    23: "invalid cluster file",
    24: "invalid manifest",
    25: "invalid adapters file",
    27: "unknown recipe",
    28: "invalid arguments of a recipe or a program",
    29: "cookbook can't be loaded",
    30: "invalid state transition of a job",
    31: "stale lease",
    32: "conflict: name or key already exists",
    33: "permission denied by the coordinator",
    34: "no coordinator",
    35: "incompatible versions",
    36: "queue database not usable",
    37: "another coordinator serves this database",
    38: "too large for a coordinator",
    39: "code not accepted by the coordinator",
    40: "invalid plan",
    41: "a stage refused its input",
    42: "containment not available",
    43: "stage timed out",
    44: "stage diverged",
    45: "process lost",
    46: "out of memory",
    47: "plan timed out",
    50: "insufficient device memory",
    51: "timed out waiting for device memory",
    52: "invalid configuration or call of ranks",
    53: "gang not up, or closed",
    54: "rank failed",
    55: "rank timed out",
    56: "rank's window is not as declared",
    57: "rendezvous of a gang's hosts failed",
    60: "allocation refused by its backend",
    61: "answer of a backend lost: the allocation may exist",
    62: "backend not reachable",
    63: "host key changed",
    64: "ticket of a worker refused",
    BUG: "a bug in Stoker",
    75: "drained or preempted: start it again",
    INTERRUPTED: "interrupted",
    TERMINATED: "terminated",
}


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a program that ends with this error."""
    if isinstance(error, StokerError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return BUG
