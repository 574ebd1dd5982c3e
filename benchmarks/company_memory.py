"""How far is the memory that is foretold for a company of adapters from what a GPU's driver then counts?

    python benchmarks/company_memory.py                    # judges what was recorded on an H200
    python benchmarks/company_memory.py --from FILE        # judges other measurements
    python benchmarks/company_memory.py --measure FILE     # measures here, then judges; needs a GPU and torch

Measured is the peak of torch's allocator (reserved) and the CUDA context, each company in a process of its own. The
cases are in `company_cases.py`: twelve of one shape each, and beyond them packed rows and steps of several lengths.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import peers
from harness import Benchmark, Figure, Row

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded" / "company_memory_h200.json"
GIB = 1024**3
TWELVE = 12
HEADS = ["company", "measured", "tensors", "foretold", "error", "base", "each"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", type=Path, default=RECORDED, dest="source", metavar="FILE")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure here and write it down")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="nothing is left out: it takes seconds")
    parser.add_argument("--bench", type=Path, default=peers.DEFAULT_BENCH)
    parser.add_argument("--without", action="append", default=[], metavar="NAME")
    asked = parser.parse_args()
    if asked.measure is not None:
        side = HERE / "sides" / "company_memory.py"
        subprocess.run([asked.python, str(side), str(asked.measure)], check=False)
    source: Path = asked.measure or asked.source
    if not source.exists():
        print(f"{source} is not there: measure where there is a GPU, with --measure FILE", file=sys.stderr)
        return 1
    recorded = json.loads(source.read_text())
    sys.path.insert(0, str(HERE.parent / "src"))
    bench = Benchmark(
        name="company_memory",
        asks=str(__doc__).splitlines()[0],
        bench=asked.bench.resolve(),
        quick=asked.quick,
        as_json=asked.json,
        measured_on={"gpu": recorded["gpu"], "python": recorded["versions"]["python"]},
        measured_at=recorded["measured_at"],
        versions=recorded["versions"],
    )
    _judge(bench, recorded)
    return bench.finish()


def _judge(bench: Benchmark, recorded: dict[str, Any]) -> None:
    gpu = recorded["gpu"].partition(",")[0]
    bench.verdicts.append(HEADS)
    errors, beyond = [], []
    for name, found in recorded["companies"].items():
        measured_bytes = _measured(found)
        if "error" in found or not measured_bytes:
            bench.verdicts.append([name, "failed", *[""] * 5])
            continue
        told = _foretell(found["case"], gpu)
        error = 100 * (told.total_bytes - measured_bytes) / measured_bytes
        is_plain = not (found["case"].get("packed") or found["case"].get("lengths"))
        (errors if is_plain else beyond).append(error)
        tensors = found.get("memory", {}).get("allocated_bytes", 0)
        needs = told.needs
        bench.verdicts.append(
            [name, _gib(measured_bytes), _gib(tensors), _gib(told.total_bytes), f"{error:+.1f} %",
             _gib(needs.base_bytes), _gib(needs.member_bytes)]
        )  # fmt: skip
    # The goal speaks of twelve: fewer are shown, and judge nothing.
    at_most = 1.0 if len(errors) >= TWELVE else None
    if at_most is None:
        bench.notes.append(f"{TWELVE - len(errors)} of the {TWELVE} companies were not measured, so no goal is judged.")
    count = f"{len(errors)} of {TWELVE} companies"
    below = max([0.0, *(-one for one in errors)])
    bench.rows += [
        _row(f"{count}: largest error, %", "15 % goal", max(map(abs, errors), default=0.0), 15, at_most),
        _row(f"{count}: farthest below what was measured, %", "5 % goal", below, 5, at_most),
    ]
    if beyond:
        below = max([0.0, *(-one for one in beyond)])
        bench.rows.append(_row("packed rows, several lengths: farthest below, %", "5 % goal", below, 5, at_most))


def _foretell(case: dict[str, Any], gpu: str) -> Any:
    from stoker.hardware.estimate.company import Company, Where, estimate_company
    from stoker.hardware.estimate.families import read_shape
    from stoker.hardware.estimate.training import Width

    company = Company(
        shape=read_shape(case["config"]),
        adapters=case["adapters"],
        rank=case["rank"],
        rows=case["rows"],
        sequence=case["sequence"],
        dtype=Width.BF16 if case["dtype"] == "bfloat16" else Width.FP32,
        where=Where(case["where"]),
        is_compiled=case.get("compiled", True),
        is_packed=case.get("packed", False),
        has_lengths=case.get("lengths", False),
    )
    return estimate_company(company, gpu=gpu)


def _measured(found: dict[str, Any]) -> int:
    return int(found.get("memory", {}).get("peak_bytes") or found.get("process_bytes") or 0)


def _row(question: str, against: str, ours: float, theirs: float, at_most: float | None) -> Row:
    figures = [Figure(best=round(value, 2), median=round(value, 2), runs=1) for value in (ours, theirs)]
    return Row(question=question, against=against, unit="", ours=figures[0], theirs=figures[1], at_most=at_most)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f} GiB"


if __name__ == "__main__":
    sys.exit(main())
