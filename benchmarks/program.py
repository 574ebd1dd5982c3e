"""What does it cost to run a program as a stage, from its start to its recorded result, above a bare `subprocess.run`?

A program that does nothing. As a stage it has a job folder and a journal, a scratch folder, a box that limits its
memory, a log, a reader of its output, and a durable record; whoever it leaves behind is looked for. What
`subprocess.run` takes for the same program, its output in pipes, is subtracted.
"""

from __future__ import annotations

import sys

import harness
from above_bare import BARE, row_of, side_of
from harness import Runs
from peers import Installed

WAYS = {
    "cgroup": "in control groups",
    "systemd": "in a scope of the user's systemd",
    "watchdog": "watched",
    "none": "without a box",
}


def main() -> int:
    bench = harness.start("program", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    count = 1 if bench.quick else 100
    ways = {"none": WAYS["none"]} if bench.quick else WAYS
    runs: Runs = {}
    broken: dict[str, str] = {}
    if isinstance(stoker, Installed):
        sides = [
            side for way in (BARE, *ways) if (side := side_of(bench, stoker, "program_stages.py", way, count, broken))
        ]
        runs = bench.in_turns(sides, rounds=7)
    for way, said in ways.items():
        why = broken.get(way, bench.missing("stoker"))
        bench.rows.append(row_of(runs, way, f"a program as a stage {said}", count, why))
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
