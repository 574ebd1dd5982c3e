"""What does comparing the logits of a model of 100 million parameters cost beside producing them?

64 positions over a vocabulary of 32,000, of a llama of 134 million random parameters. Transformers produces
them as a comparison asks for them: all in one pass, then the second half one by one. Stoker reads two traces from the
page cache and decides every measure of every position. The pass alone, which is the quickest way to produce logits, is
there for context. One thread each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import harness
from harness import Benchmark, Row, Run, Runs, Side

SIDE = harness.SIDES / "logits.py"
SOURCES = Path(__file__).resolve().parent.parent / "src"
POSITIONS, VOCABULARY = 64, 32_000
QUICK = (4, 100)
LEAST_PARAMETERS = 100_000_000
GOAL = 0.1
WORDS = {"decode": "compare the logits of a pass and a decode", "pass": "compare those of the pass alone"}


def main() -> int:
    bench = harness.start("compared_logits", str(__doc__).splitlines()[0])
    missing = []
    for name in ("numpy", "torch", "transformers"):
        try:
            bench.versions[name] = version(name)
        except PackageNotFoundError:
            missing.append(f"{name} is not installed beside {sys.executable}")
    for what, goal in (("decode", GOAL), ("pass", None)):
        # Transformers takes seconds to import, which would be most of a smoke run.
        ways = ("compare",) if bench.quick else ("compare", "produce")
        sides = [Side(name=way, once=partial(_run, bench, way, what)) for way in ways]
        runs: Runs = {} if missing else bench.in_turns(sides, rounds=3)
        for unit, figure in (("", harness.seconds_of), (", CPU time", harness.cpu_of)):
            bench.rows.append(
                Row(
                    question=f"{WORDS[what]}{unit}",
                    against="producing them with transformers",
                    ours=figure(runs["compare"]) if runs else None,
                    theirs=figure(runs["produce"]) if "produce" in runs else None,
                    at_most=goal,
                    why_missing="; ".join(missing) or "transformers: skipped by --quick" * bench.quick,
                )
            )
    return bench.finish()


def _run(bench: Benchmark, way: str, what: str) -> Run:
    count, vocabulary = QUICK if bench.quick else (POSITIONS, VOCABULARY)
    command = [sys.executable, str(SIDE), way, what, str(count), str(vocabulary), str(bench.home("traces"))]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    settings = harness.environment_with({"PYTHONPATH": str(SOURCES), **threads})
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{way} failed with exit {done.returncode}:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    if way == "produce" and told["parameters"] < LEAST_PARAMETERS:
        raise RuntimeError(f"the model has only {told['parameters']:,} parameters")
    return Run(seconds=told["seconds"], cpu_seconds=told["cpu_seconds"])


if __name__ == "__main__":
    sys.exit(main())
