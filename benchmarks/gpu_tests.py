"""What do the tests say that need a real GPU, which no continuous integration has?

python benchmarks/gpu_tests.py                    # tells what was recorded on an H200
python benchmarks/gpu_tests.py --measure FILE     # runs them here and writes it down; needs a GPU, torch and pytest
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import peers
from harness import Benchmark, Figure, Row

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded" / "gpu_tests_h200.json"
FILES = (
    "tests/system/test_probes_on_gpu.py",
    "tests/system/test_ledger_on_gpu.py",
    "tests/system/test_gang_on_gpu.py",
    "tests/system/test_adapters_on_gpu.py",
)
ASKS = {
    FILES[0]: "NVML, nvidia-smi and torch agree: tests that failed",
    FILES[1]: "the ledger turns a pair that is too large into one that waits: tests that failed",
    FILES[2]: "ranks on one card see each other's windows, and its memory returns: tests that failed",
    FILES[3]: "adapters in company equal PEFT alone, stay apart and shrink: tests that failed",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE", help="run them here and write down what they said")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="nothing is left out: nothing is run")
    parser.add_argument("--bench", type=Path, default=peers.DEFAULT_BENCH)
    parser.add_argument("--without", action="append", default=[], metavar="NAME")
    asked = parser.parse_args()
    if asked.measure is not None:
        asked.measure.write_text(json.dumps(_measured(), indent=1) + "\n")
    told = json.loads((asked.measure or RECORDED).read_text())
    bench = Benchmark(
        name="gpu_tests",
        asks=str(__doc__).splitlines()[0],
        bench=asked.bench.resolve(),
        quick=asked.quick,
        as_json=asked.json,
        measured_on={"gpu": told["gpu"], "python": told["versions"]["python"]},
        measured_at=told["measured_at"],
        versions=told["versions"],
    )
    bench.verdicts.append(["test", "said"])
    for file, question in ASKS.items():
        lines = [line.split(" ", 1) for line in told["said"] if file in line]
        failed = sum(1 for said, _ in lines if said != "PASSED")
        bench.rows.append(_row(question, len(lines), failed))
        bench.verdicts += [[test.split(" - ")[0].split("::")[-1].replace("|", "/"), said] for said, test in lines]
    if "provenance" in told:
        bench.verdicts.append(["(how this was recorded)", told["provenance"]])
    return bench.finish()


def _row(question: str, count: int, failed: int) -> Row:
    none = Figure(best=0, median=0, runs=1)
    return Row(
        question=question,
        against=f"none of {count}",
        unit="",
        ours=Figure(best=failed, median=failed, runs=1) if count else None,
        theirs=none,
        at_most=0,
        why_missing="" if count else "no test was run",
    )


def _measured() -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:logging",
        "-q",
        "-rA",
        "--tb=short",
        "--noconftest",
        *FILES,
    ]
    settings = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    ran = subprocess.run(command, cwd=HERE.parent, env=settings, capture_output=True, text=True, check=False)
    marks = ("PASSED ", "FAILED ", "ERROR ", "SKIPPED ")
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="minutes"),
        "gpu": _gpu(),
        "versions": {"python": sys.version.split()[0], "pytest": version("pytest"), "torch": version("torch")},
        "command": "PYTHONPATH=$PWD/src python " + " ".join(command[1:]),
        "said": [line for line in ran.stdout.splitlines() if line.startswith(marks)],
    }


def _gpu() -> str:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
