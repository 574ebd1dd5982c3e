"""Errors of the queue, the coordinator and its own API: leaves of the tree in `model.errors`, exit codes 30 to 39."""

from __future__ import annotations

from stoker.model.errors import BadInput, Refused, Unavailable, WorkFailed


class StaleLease(Refused):
    """Somebody speaks for a job that is no longer theirs: its epoch, or the coordinator's generation, has moved on."""

    code = "stale_lease"
    exit_code = 31


class Conflict(Refused):
    """The same name or key already stands for something else."""

    code = "conflict"
    exit_code = 32


class NotAllowed(Refused):
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
