"""The zygote that this process keeps for all its gangs, so that the second one is up in milliseconds."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from stoker.gang.starting import Warm

_lock = threading.Lock()
_kept: dict[int, Warm] = {}


def warm_here() -> Warm:
    """Give it; it is started when the first gang needs it, and closed when this process ends."""
    with _lock:
        pid = os.getpid()
        if pid not in _kept:
            # In a forked copy of this process the other one's is not ours to use, nor to close.
            _kept.clear()
            # Handed on as it is: ranks run this process's code, and get its variables anew when they start.
            environment = dict(os.environ)  # noqa: TID251 - see above
            _kept[pid] = Warm(env=environment, cwd=os.getcwd(), sys_path=sys.path)
            atexit.register(_close, pid)
        return _kept[pid]


def _close(pid: int) -> None:
    if pid == os.getpid() and pid in _kept:
        _kept.pop(pid).close()
