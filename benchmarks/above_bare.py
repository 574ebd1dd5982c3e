"""What a way of running a program costs above a bare `subprocess.run`: shared by the benchmarks that ask that."""

from __future__ import annotations

import harness
from harness import Benchmark, Case, Figure, Row, Run, Runs, Side
from peers import Installed

BARE = "bare"
# What the whole of a program stage may cost; a box is one part of it.
ALLOWED_S = 0.060


def side_of(
    bench: Benchmark, stoker: Installed, script: str, way: str, count: int, broken: dict[str, str]
) -> Side | None:
    """One way of running programs; on a machine without its mechanism nothing, and `broken` says why."""

    def once() -> Run:
        case = Case(count=count, way=way)
        return harness.run_side(stoker, script, case.arguments(bench.home(way)), executed=count)

    bench.say(f"a program, {way}")
    try:
        once()
    except RuntimeError as error:
        broken[way] = str(error).strip().splitlines()[-1]
        return None
    return Side(name=way, once=once)


def row_of(runs: Runs, way: str, question: str, count: int, why: str) -> Row:
    """The extra time per program, against what a program stage may cost in all."""
    ours = None
    if runs.get(way) and runs.get(BARE):
        full, bare = harness.seconds_of(runs[way], per=count), harness.seconds_of(runs[BARE], per=count)
        ours = Figure(best=full.best - bare.best, median=full.median - bare.median, runs=full.runs)
    return Row(
        question=f"{question}, above subprocess.run",
        against="60 ms",
        ours=ours,
        theirs=Figure(best=ALLOWED_S, median=ALLOWED_S, runs=1),
        at_most=1.0 if way == "cgroup" else None,
        why_missing=why,
    )
