"""What does it cost to run a program as a stage, from its start to its recorded result, above a bare `subprocess.run`?

A program that does nothing. As a stage it has a job folder and a journal, a scratch folder, a box that limits its
memory, a log, a reader of its output, and a durable record; whoever it leaves behind is looked for. What
`subprocess.run` takes for the same program, its output in pipes, is subtracted.
"""

from __future__ import annotations

import sys

import harness
from harness import Benchmark, Case, Figure, Row, Run, Runs, Side
from peers import Installed

BARE = "bare"
WAYS = {
    "cgroup": "in control groups",
    "systemd": "in a scope of the user's systemd",
    "watchdog": "watched",
    "none": "without a box",
}
ALLOWED_S = 0.060


def main() -> int:
    bench = harness.start("program", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    count = 10 if bench.quick else 100
    runs: Runs = {}
    broken: dict[str, str] = {}
    if isinstance(stoker, Installed):
        sides = [side for way in (BARE, *WAYS) if (side := _side(bench, stoker, way, count, broken))]
        runs = harness.in_turns(sides, rounds=2 if bench.quick else 7)
    for way, said in WAYS.items():
        _above_bare(bench, runs, way, said, count, broken.get(way, bench.missing("stoker")))
    return bench.finish()


def _side(bench: Benchmark, stoker: Installed, way: str, count: int, broken: dict[str, str]) -> Side | None:
    def once() -> Run:
        case = Case(count=count, way=way)
        return harness.run_side(stoker, "program_stages.py", case.arguments(bench.home(way)), executed=count)

    bench.say(f"a program, {way}")
    try:
        once()
    except RuntimeError as error:
        # A machine without this mechanism.
        broken[way] = str(error).strip().splitlines()[-1]
        return None
    return Side(name=way, once=once)


def _above_bare(bench: Benchmark, runs: Runs, way: str, said: str, count: int, why: str) -> None:
    """The extra time per program, against what a program stage may cost."""
    ours = None
    if runs.get(way) and runs.get(BARE):
        stage, bare = harness.seconds_of(runs[way], per=count), harness.seconds_of(runs[BARE], per=count)
        ours = Figure(best=stage.best - bare.best, median=stage.median - bare.median, runs=stage.runs)
    bench.rows.append(
        Row(
            question=f"a program as a stage {said}, above subprocess.run",
            against="60 ms",
            ours=ours,
            theirs=Figure(best=ALLOWED_S, median=ALLOWED_S, runs=1),
            at_most=1.0 if way == "cgroup" else None,
            why_missing=why,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
