"""What does it cost to run a program inside a box that limits its memory, above a bare `subprocess.run`?

A program that does nothing, started, waited for and cleared away: the box is opened, the program enters it before its
first instruction, its peak is read back and the box is closed with nobody in it. Stoker's way through the user's
systemd stands beside systemd's own tool, which opens a scope too but reads nothing back.
"""

from __future__ import annotations

import sys

import harness
from harness import Benchmark, Case, Figure, Row, Run, Runs, Side
from peers import Installed

BARE = "bare"
BOXES = {
    "cgroup": "in control groups",
    "address_space": "with an address-space limit",
    "watchdog": "watched",
    "systemd": "in a scope of the user's systemd",
}
# What the whole of a program stage may cost; the box is one part of it.
ALLOWED_S = 0.060


def main() -> int:
    bench = harness.start("containment", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    count = 20 if bench.quick else 100
    runs: Runs = {}
    broken: dict[str, str] = {}
    if isinstance(stoker, Installed):
        sides = [side for way in (BARE, *BOXES, "systemd-run") if (side := _side(bench, stoker, way, count, broken))]
        runs = harness.in_turns(sides, rounds=2 if bench.quick else 7)
    for way, said in BOXES.items():
        _above_bare(bench, runs, way, said, count, broken.get(way, bench.missing("stoker")))
    _beside_its_own_tool(bench, runs, count, broken)
    return bench.finish()


def _side(bench: Benchmark, stoker: Installed, way: str, count: int, broken: dict[str, str]) -> Side | None:
    def once() -> Run:
        home = bench.home(way)
        return harness.run_side(stoker, "boxed_programs.py", Case(count=count, way=way).arguments(home), executed=count)

    bench.say(f"a program, {way}")
    try:
        once()
    except RuntimeError as error:
        # A machine without this mechanism.
        broken[way] = str(error).strip().splitlines()[-1]
        return None
    return Side(name=way, once=once)


def _above_bare(bench: Benchmark, runs: Runs, way: str, said: str, count: int, why: str) -> None:
    """The extra time per program, against what a program stage may cost in all."""
    ours = None
    if runs.get(way) and runs.get(BARE):
        boxed, bare = harness.seconds_of(runs[way], per=count), harness.seconds_of(runs[BARE], per=count)
        ours = Figure(best=boxed.best - bare.best, median=boxed.median - bare.median, runs=boxed.runs)
    bench.rows.append(
        Row(
            question=f"a program {said}, above subprocess.run",
            against="60 ms",
            ours=ours,
            theirs=Figure(best=ALLOWED_S, median=ALLOWED_S, runs=1),
            at_most=1.0 if way == "cgroup" else None,
            why_missing=why,
        )
    )


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
