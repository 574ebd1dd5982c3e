"""When 50 processes want the same result at once, is the work done once and do all of them get it?

All processes are started, have imported and opened everything, and wait; then they are let go together. The stage
writes one byte to a file outside the store whenever it runs, sleeps for half a second and gives a small value. Time:
from the word "go" to the last answer. joblib.Memory, which has no such promise, runs beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass

import harness
from harness import Benchmark, Figure, Row
from peers import NotInstalled, Peer

STAGE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """What came of one race."""

    seconds: float
    executions: int
    answers: int


def main() -> int:
    bench = harness.start("race", __doc__.splitlines()[0])
    racers = 3 if bench.quick else 50
    stoker, joblib = bench.peer("stoker"), bench.peer("joblib")
    ours: list[Raced] = []
    theirs: list[Raced] = []
    for _ in range(1 if bench.quick else 3):
        theirs += race(bench, joblib, "joblib_race.py", racers)
        ours += race(bench, stoker, "stoker_race.py", racers)
    report(bench, racers, ours, theirs)
    return bench.finish()


def race(bench: Benchmark, peer: Peer, script: str, racers: int) -> list[Raced]:
    """One race in an empty home; nothing where the peer isn't installed."""
    if isinstance(peer, NotInstalled):
        return []
    bench.say(f"{peer.name}: {racers} processes, one key")
    home = bench.home(peer.name)
    command = [str(peer.python), str(harness.SIDES / script), str(home), str(STAGE_S)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=harness.environment_with())
        for _ in range(racers)
    ]
    pipes = [(one.stdin, one.stdout) for one in started if one.stdin and one.stdout]
    for _, out in pipes:
        if out.readline().strip() != "ready":
            raise RuntimeError(f"{script} did not get ready")
    begun = time.perf_counter()
    for into, _ in pipes:
        into.write("go\n")
        into.flush()
    said = [out.readline() for _, out in pipes]
    seconds = time.perf_counter() - begun
    right = sum(1 for line in said if line.strip() and json.loads(line) == {"value": 49})
    if any(one.wait() for one in started):
        raise RuntimeError(f"{script} failed")
    return [Raced(seconds=seconds, executions=(home / "executions").stat().st_size, answers=right)]


def report(bench: Benchmark, racers: int, ours: list[Raced], theirs: list[Raced]) -> None:
    """The worst race decides about correctness, the best about time."""
    missing = bench.missing("stoker")
    bench.rows += [
        Row(
            question=f"{racers} processes, one key: executions",
            against="one",
            unit="",
            ours=_worst([one.executions for one in ours]),
            theirs=Figure.of([1]),
            at_most=1.0,
            why_missing=missing,
        ),
        Row(
            question=f"{racers} processes, one key: answers missing",
            against="all",
            unit="",
            ours=_worst([racers - one.answers for one in ours]),
            theirs=Figure.of([racers]),
            at_most=0.0,
            why_missing=missing,
        ),
        Row(
            question=f"{racers} processes, one key: executions",
            against="joblib.Memory",
            unit="",
            ours=_worst([one.executions for one in ours]),
            theirs=_worst([one.executions for one in theirs]),
        ),
        Row(
            question=f"{racers} processes, one key: until the last answer",
            against="joblib.Memory",
            ours=Figure.of([one.seconds for one in ours]) if ours else None,
            theirs=Figure.of([one.seconds for one in theirs]) if theirs else None,
        ),
    ]


def _worst(values: list[int]) -> Figure | None:
    return Figure(best=max(values), median=max(values), runs=len(values)) if values else None


if __name__ == "__main__":
    sys.exit(main())
