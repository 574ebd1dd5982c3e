"""A resident owner of gangs: for every line it reads, it brings one up, or has one fail, and says what that took.

    python gang_warm.py        then lines: RANKS BACKEND [raise]

Each answer is a JSON line: seconds until every rank had passed its first barrier (or, with `raise`, from a rank's
raise to the exception here with every process reaped), and the CPU time of all processes for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from stoker.core.errors import RankFailed
from stoker.gang import Gang, RankConfig, this_rank
from stoker.gang.starters import warm_here


def fail() -> None:
    from torch import distributed

    if this_rank().rank == 1:
        raise RuntimeError(repr(time.time()))
    distributed.barrier()


def main() -> None:
    warm_here().wait_ready()
    for line in sys.stdin:
        count, backend, *how = line.split()
        cpu_s = _cpu_s()
        started_s = time.time()
        gang = Gang(ranks=[RankConfig(rank if backend == "gloo" else 0) for rank in range(int(count))], backend=backend)
        if how:
            seconds = _failing(gang)
        else:
            gang.bring_up()
            seconds = time.time() - started_s
            gang.close()
        print(json.dumps({"seconds": seconds, "cpu_seconds": _cpu_s() - cpu_s}), flush=True)


def _failing(gang: Gang) -> float:
    gang.bring_up()
    try:
        gang.run(fail)
    except RankFailed as error:
        return time.time() - float(str(error.data["text"]))
    raise RuntimeError("nobody failed")


def _cpu_s() -> float:
    """What this process and its zygote have used, with all that they have reaped."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for pid in ("self", *children):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
