"""How much faster are eight adapters trained in company than by PEFT one after another, on two CPU cores?

The tiny base that ships (2 layers of 64), rank 16 on all seven linears, 32 bits, AdamW, two threads for all; everybody
begins with the same numbers, sees the same tokens and must end with the same losses. On the general path the base is
computed by transformers' module, as a base of another family is. The training alone is timed, after imports and
building; and once everything, from the start of the interpreter on: eight processes one after another, or one. Tuned is
PEFT without oneDNN, whose small products are slow on Arm. The more tokens are in a step, the more of it is arithmetic,
which is the same for all.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import harness
from adapters_cases import MEMBERS
from harness import Benchmark, Row, Run, Runs, Side

SIDE = harness.SIDES / "adapters_tiny.py"
SOURCES = Path(__file__).resolve().parent.parent / "src"
STEPS = {64: 30, 256: 12, 1024: 5}
GOAL = 1 / 2
JUDGED = 64
"""Tokens of one adapter in a step: what the data that ship come to, four short rows."""
PEERS = {"peft": "PEFT, one after another", "peft-tuned": "PEFT tuned, one after another"}


def main() -> int:
    bench = harness.start("adapters_cpu", str(__doc__).splitlines()[0])
    missing = []
    for name in ("torch", "transformers", "peft"):
        try:
            bench.versions[name] = version(name)
        except PackageNotFoundError:
            missing.append(f"{name} is not installed beside {sys.executable}")
    for size in (JUDGED,) if bench.quick else STEPS:
        words = f"{MEMBERS} adapters, {size:,} tokens of each in a step"
        runs = {} if missing else _measured(bench, size, whole=False)
        _rows(bench, words, runs, missing, goal=GOAL if size == JUDGED else None)
    if not bench.quick:
        runs = {} if missing else _measured(bench, JUDGED, whole=True)
        words = f"{MEMBERS} adapters, {JUDGED} tokens of each in a step, with start-up"
        _rows(bench, words, runs, missing, goal=GOAL)
    return bench.finish()


def _rows(bench: Benchmark, words: str, runs: Runs, missing: list[str], *, goal: float | None) -> None:
    for peer, against in PEERS.items():
        for way, unit, figure in (
            ("company", "", harness.seconds_of),
            ("company", ", CPU time", harness.cpu_of),
            ("general", ", general path", harness.seconds_of),
        ):
            bench.rows.append(
                Row(
                    question=words + unit,
                    against=against,
                    ours=figure(runs[way]) if way in runs else None,
                    theirs=figure(runs[peer]) if peer in runs else None,
                    at_most=goal if not unit else None,
                    why_missing="; ".join(missing) if peer in runs or missing else f"{against}: skipped by --quick",
                )
            )


def _measured(bench: Benchmark, size: int, *, whole: bool) -> Runs:
    steps = 1 if bench.quick else STEPS[size]
    said: dict[str, list[float]] = {}
    # A peer imports PEFT and Transformers, which would be most of the time of a smoke run.
    ways = ("company",) if bench.quick else ("company", "general", *PEERS)
    sides = [Side(name=way, once=partial(_run, way, size, steps, said, whole=whole)) for way in ways]
    runs = bench.in_turns(sides, rounds=1 if whole or size != JUDGED else 3)
    for peer in ways[1:]:
        pairs = list(zip(said["company"], said[peer], strict=True))
        if not all(math.isclose(ours, theirs, rel_tol=1e-4) for ours, theirs in pairs):
            raise RuntimeError(f"{peer} and the company end with other losses: {pairs}")
    return runs


def _run(way: str, size: int, steps: int, said: dict[str, list[float]], *, whole: bool) -> Run:
    """Time one side: as it times itself, or from outside, PEFT with a process for each adapter."""
    each = [[str(member)] for member in range(MEMBERS)] if whole and way in PEERS else [[]]
    spent_s = cpu_s = 0.0
    executed, losses = 0, []
    for member in each:
        command = [sys.executable, str(SIDE), way, str(size), str(steps), *member]
        settings = harness.environment_with({"PYTHONPATH": str(SOURCES)})
        begun = time.perf_counter()
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=900, check=False)
        outside_s = time.perf_counter() - begun
        if done.returncode != 0:
            raise RuntimeError(f"{way} failed with exit {done.returncode}:\n{done.stderr[-2000:]}")
        told = json.loads(done.stdout.strip().splitlines()[-1])
        spent_s += outside_s if whole else told["seconds"]
        cpu_s += told["process_cpu_seconds"] if whole else told["cpu_seconds"]
        losses += told["losses"]
        executed += told["executed"]
    said[way] = losses
    if executed != steps * MEMBERS:
        raise RuntimeError(f"{way} executed {executed} steps where {steps * MEMBERS} were due")
    return Run(seconds=spent_s, cpu_seconds=cpu_s)


if __name__ == "__main__":
    sys.exit(main())
