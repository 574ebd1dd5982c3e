"""How much a group of processes has computed: whether one that says nothing still works."""

from __future__ import annotations

import os
import sys

from stoker.host.process_table import living_rows


def group_cpu_ticks(group: int) -> int | None:
    """Give the clock ticks that the living processes of a group have used; nothing if none lives.

    Where the system does not tell, a living group has used none.
    """
    pids = [row.pid for row in living_rows() if row.group == group]
    return sum(map(_ticks_of, pids)) if pids else None


def _ticks_of(pid: int) -> int:
    if sys.platform != "linux":
        return 0
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return 0
    try:
        text = os.read(fd, 4096)
    except OSError:
        return 0
    finally:
        os.close(fd)
    # User and system time, its own and that of children that it has seen end; the name before may hold anything.
    fields = text[text.rindex(b")") + 2 :].split()
    return sum(map(int, fields[11:15]))
