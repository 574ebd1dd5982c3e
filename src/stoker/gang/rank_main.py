"""Where the process of a script's rank begins: it takes over its surroundings, and runs the script or becomes another.

Both begin in a process that our own interpreter made: forked from a zygote, or started (see `starting`). The first runs
the script right there. The second becomes another program: a foreign interpreter, which is started on `script_boot`, or
anything else, which is given the environment and nothing more. The life line and the kernel's word about the parent
stay tied to the process whatever it becomes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from stoker.core import jsontext
from stoker.gang import script_boot
from stoker.gang.gang_plan import STORE
from stoker.gang.mailbox import Phase, unnamed_memory
from stoker.gang.mailbox_publish import Publisher
from stoker.gang.rank import draw_anew, take_surroundings, watch_for_crashes
from stoker.gang.rank_processes import LIFE, MAILBOX, WAKE
from stoker.host import life_line

RUN_HERE = "stoker.gang.rank_main:run_here"
BECOME = "stoker.gang.rank_main:become"


class _Report:
    """The publisher as `script_boot` speaks to it."""

    def __init__(self, publisher: Publisher) -> None:
        self.tell = publisher.tell
        self._publisher = publisher

    def begin(self, phase: int) -> None:
        self._publisher.begin(Phase(phase))


def run_here(request: Mapping[str, Any]) -> NoReturn:
    """Run the script in this process; ends as the script does."""
    fds, order = request["fds"], request["order"]
    publisher = _begin(request)
    watch_for_crashes(fds[MAILBOX])
    take_surroundings(request, fds)
    draw_anew()
    order = {**order, "store_fd": fds[STORE], "is_forked": True}
    sys.exit(script_boot.run(order, _Report(publisher)))


def become(request: Mapping[str, Any]) -> NoReturn:
    """Become the program; raises `OSError` if it can't be."""
    fds, order, argv = request["fds"], request["order"], list(request["argv"])
    publisher = _begin(request)
    take_surroundings(request, fds)
    kept = [fds[LIFE]]
    if order is not None:
        numbers = {f"{name}_fd": fds[name] for name in (MAILBOX, WAKE, STORE)}
        body = jsontext.dumps({**order, **numbers}).encode()
        order_fd = unnamed_memory("stoker-script-order", len(body))
        os.pwrite(order_fd, body, 0)
        kept += [order_fd, *numbers.values()]
        argv = [*argv, os.path.abspath(script_boot.__file__), str(order_fd)]
    else:
        # It can't say more: from here on it runs.
        publisher.begin(Phase.RUN)
    for fd in kept:
        os.set_inheritable(fd, True)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        publisher.fail(error)
        os._exit(1)


def _begin(request: Mapping[str, Any]) -> Publisher:
    fds, rank = request["fds"], request["rank"]
    life_line.hold_on(fds[LIFE])
    publisher = Publisher(fds[MAILBOX], fds[WAKE], rank=rank, nranks=request["nranks"], device_id=rank)
    publisher.begin(Phase.FORKED)
    return publisher
