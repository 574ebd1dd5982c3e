"""What does it cost to run a program inside a box that limits its memory, above a bare `subprocess.run`?

A program that does nothing, started, waited for and cleared away: the box is opened, the program enters it before its
first instruction, its peak is read back and the box is closed with nobody in it. Stoker's way through the user's
systemd stands beside systemd's own tool, which opens a scope too but reads nothing back.
"""

from __future__ import annotations

import sys

import harness
from above_bare import BARE, row_of, side_of
from harness import Benchmark, Row, Runs
from peers import Installed

BOXES = {
    "cgroup": "in control groups",
    "address_space": "with an address-space limit",
    "watchdog": "watched",
    "systemd": "in a scope of the user's systemd",
}
QUICK_BOXES = ("address_space", "watchdog")
"""Those that every machine has."""


def main() -> int:
    bench = harness.start("containment", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    count = 1 if bench.quick else 100
    boxes = {way: BOXES[way] for way in QUICK_BOXES} if bench.quick else BOXES
    runs: Runs = {}
    broken: dict[str, str] = {}
    if isinstance(stoker, Installed):
        sides = [
            side
            for way in (BARE, *boxes, *([] if bench.quick else ["systemd-run"]))
            if (side := side_of(bench, stoker, "boxed_programs.py", way, count, broken))
        ]
        runs = bench.in_turns(sides, rounds=7)
    for way, said in boxes.items():
        why = broken.get(way, bench.missing("stoker"))
        bench.rows.append(row_of(runs, way, f"a program {said}", count, why))
    if not bench.quick:
        _beside_its_own_tool(bench, runs, count, broken)
    return bench.finish()


def _beside_its_own_tool(bench: Benchmark, runs: Runs, count: int, broken: dict[str, str]) -> None:
    ours, theirs = runs.get("systemd"), runs.get("systemd-run")
    bench.rows.append(
        Row(
            question="a program in a scope of the user's systemd",
            against="systemd-run --user --scope",
            ours=harness.seconds_of(ours, per=count) if ours else None,
            theirs=harness.seconds_of(theirs, per=count) if theirs else None,
            why_missing=broken.get("systemd", broken.get("systemd-run", "")),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
