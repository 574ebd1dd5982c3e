"""The end of a gang's processes: asked, then made to, then confirmed.

Asked means a request in words where somebody listens (the caller's affair) and SIGTERM to each rank's group; after the
grace SIGKILL; and then it is waited until whoever reaps them says that nothing of them is left. Only processes that
this gang started are ever signalled, and those by their own parent.
"""

from __future__ import annotations

import signal

from stoker.gang.ranks import Ranks
from stoker.host.processes import GRACE_S, Stopped
from stoker.model.clock import Clock, SystemClock
from stoker.model.errors import ProcessLost

ROLLBACK_S = 10.0
CLOSE_S = 60.0
_KILL_WAIT_S = 5.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01


def stop(ranks: Ranks, *, grace_s: float = GRACE_S, clock: Clock | None = None) -> Stopped:
    """Stop every rank and all that it started. Returns when nobody is left; raises `ProcessLost` if somebody is."""
    clock = clock or SystemClock()
    if not ranks.living():
        return Stopped.ALREADY_GONE
    ranks.starter.signal(ranks.living(), signal.SIGTERM)
    if wait_gone(ranks, grace_s, clock):
        return Stopped.POLITE
    ranks.starter.signal(ranks.living(), signal.SIGKILL)
    if wait_gone(ranks, _KILL_WAIT_S, clock):
        return Stopped.FIRM
    pids = [process.identity.pid for process in ranks.living()]
    raise ProcessLost(
        f"still there after SIGKILL: process {', '.join(map(str, pids))}",
        hint="it may wait for a device or a network disk",
        pids=pids,
    )


def wait_gone(ranks: Ranks, wait_s: float, clock: Clock) -> bool:
    """Wait until every rank's end is confirmed; say whether it is."""
    deadline_s = clock.monotonic_s() + wait_s
    pause_s = _FIRST_PAUSE_S
    while ranks.living():
        if clock.monotonic_s() >= deadline_s:
            return False
        clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    return True
