"""How many jobs a second are placed on 10,000 machines, does a long queue slow that down, and how good is the result?

A decision is one job chosen from the queue, put on a machine and given back at its end, on a simulated clock; CPU time
of one core. Mixes and seeds stand in `src/stoker/scheduler/simulation/mixes.toml`. Makespans are compared with a bound
that no schedule can beat, and with system B's greedy rule on the same queue (`sides/greedy_b.py`), which is given every
chance: it gets a queue, and machines that refuse what they can't carry. What the rule does as its authors wrote it is
counted beside.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import harness
from harness import Benchmark, Figure, Row, Run, Side
from peers import Installed

MIXES = ("desktop", "datacentre", "edge", "adapters", "everything")
GOAL_PER_S = 20_000
SCRIPT = "stoker_simulation.py"


def main() -> int:
    bench = harness.start("placement", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    if isinstance(stoker, Installed):
        pace(bench, stoker)
        queue_lengths(bench, stoker)
        makespans(bench, stoker)
    return bench.finish()


def pace(bench: Benchmark, stoker: Installed) -> None:
    """The whole queue, from the first decision to the last release."""
    nodes, jobs = (20, 100) if bench.quick else (10_000, 1_000_000)
    bench.say(f"{jobs:,} jobs on {nodes:,} machines")
    runs = bench.in_turns([_side(stoker, "full", "everything", nodes=nodes, count=jobs)], rounds=1)
    measured = runs["full"]
    bench.rows.append(
        Row(
            question=f"per decision, {jobs:,} jobs of 200 shapes on {nodes:,} machines",
            against=f"{GOAL_PER_S:,} a second",
            ours=harness.seconds_of(measured, per=jobs),
            theirs=_constant(1 / GOAL_PER_S),
            at_most=1.0,
        )
    )
    bench.rows.append(
        Row(
            question=f"peak memory, {jobs:,} jobs on {nodes:,} machines",
            against="1 GiB",
            unit="bytes",
            ours=harness.peak_of(measured),
            theirs=_constant(2**30),
        )
    )


def queue_lengths(bench: Benchmark, stoker: Installed) -> None:
    """The same busy fleet with a short and with a long queue, which stays as long as it is.

    Few machines, all of a sort that one job keeps busy: with 1,000 jobs, too, every one of them always has work.
    """
    nodes, count = (5, 100) if bench.quick else (500, 60_000)
    lengths = (100, 200) if bench.quick else (1_000, 10_000, 100_000, 1_000_000)
    bench.say(f"queues of {', '.join(f'{length:,}' for length in lengths)}")
    sides = [_side(stoker, "steady", "desktop", nodes=nodes, count=count, waiting=length) for length in lengths]
    runs = bench.in_turns(sides, rounds=3)
    first = harness.seconds_of(runs[sides[0].name], per=count)
    for side, length in zip(sides[1:], lengths[1:], strict=True):
        bench.rows.append(
            Row(
                question=f"per decision, {nodes:,} machines, {length:,} jobs wait",
                against=f"{lengths[0]:,}",
                ours=harness.seconds_of(runs[side.name], per=count),
                theirs=first,
                at_most=1.2,
            )
        )


def makespans(bench: Benchmark, stoker: Installed) -> None:
    """Five mixes with their fixed seeds: beside the lower bound, and beside system B's rule."""
    nodes = 20 if bench.quick else 500
    bench.verdicts = [["mix", "jobs", "never placed by B's rule as it is", "placed where no device holds them"]]
    for mix in MIXES[:1] if bench.quick else MIXES:
        bench.say(f"{mix}, {nodes:,} machines")
        told = _ask(stoker, mix, nodes, 2 * nodes if bench.quick else 0)
        jobs = told["jobs"]
        hours = {name: _constant(round(told[name] / 3600, 2)) for name in ("makespan_s", "bound_s", "greedy_s")}
        for against, theirs, at_most in (("lower bound", "bound_s", 1.1), ("B's greedy rule", "greedy_s", 1.0)):
            bench.rows.append(
                Row(
                    question=f"makespan, {mix}, {jobs:,} jobs on {nodes:,} machines",
                    against=against,
                    unit="h",
                    ours=hours["makespan_s"],
                    theirs=hours[theirs],
                    at_most=at_most,
                )
            )
        defects = told["defects"]
        bench.verdicts.append([mix, f"{jobs:,}", *(f"{count:,}" for count in defects.values())])


def _side(stoker: Installed, way: str, mix: str, *, nodes: int, count: int, waiting: int = 0) -> Side:
    numbers = {"nodes": nodes, "count": count, "waiting": waiting}
    arguments = ["--way", way, "--mix", mix, *(f"--{name}={number}" for name, number in numbers.items())]

    def once() -> Run:
        return harness.run_side(stoker, SCRIPT, arguments, executed=count)

    return Side(name=f"{way} {waiting}" if waiting else way, once=once)


def _ask(stoker: Installed, mix: str, nodes: int, jobs: int) -> dict[str, Any]:
    arguments = ["--way", "makespan", "--mix", mix, "--nodes", str(nodes), "--count", str(jobs)]
    command = [str(stoker.python), str(harness.SIDES / SCRIPT), *arguments]
    done = subprocess.run(command, env=harness.environment_with(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{mix} failed with exit {done.returncode}:\n{done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def _constant(value: float) -> Figure:
    return Figure(best=value, median=value, runs=1)


if __name__ == "__main__":
    sys.exit(main())
