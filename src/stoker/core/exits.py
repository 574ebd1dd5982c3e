"""Exit codes: the one table of what a shell sees.

`MEANINGS` lists every code that Stoker may leave with; `exit_code_of` turns any exception into one.
A test checks that every class of `core.errors` uses a code of this table.
"""

from __future__ import annotations

from stoker.core.errors import StokerError

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
