"""How far is the memory that is foretold for a company of adapters from what a GPU's driver then counts?

    python benchmarks/company_memory.py                    # judges what was recorded on an H200
    python benchmarks/company_memory.py --from FILE        # judges other measurements
    python benchmarks/company_memory.py --measure FILE     # measures here, then judges; needs a GPU and torch

Measured is the peak of torch's allocator (reserved) and the CUDA context, each company in a process of its own. The
cases are in `company_cases.py`: twelve of one shape each, and beyond them packed rows and steps of several lengths.
"""

from __future__ import annotations

import sys
from typing import Any

import recordings
from harness import Benchmark
from recordings import Recording, gib, row

TWELVE = 12
HEADS = ["company", "measured", "tensors", "foretold", "error", "base", "each"]


def main() -> int:
    measure = recordings.by_sides("company_memory.py")
    bench, recording = recordings.start("company_memory", str(__doc__), "company_memory_h200.json", measure)
    _judge(bench, recording)
    return bench.finish()


def _judge(bench: Benchmark, recording: Recording) -> None:
    bench.verdicts.append(HEADS)
    errors, beyond = [], []
    for name, found in recording.told["companies"].items():
        measured_bytes = _measured(found)
        if "error" in found or not measured_bytes:
            bench.verdicts.append([name, "failed", *[""] * 5])
            continue
        told = _foretell(found["case"], recording.card)
        error = 100 * (told.total_bytes - measured_bytes) / measured_bytes
        is_plain = not (found["case"].get("packed") or found["case"].get("lengths"))
        (errors if is_plain else beyond).append(error)
        tensors = found.get("memory", {}).get("allocated_bytes", 0)
        needs = told.needs
        bench.verdicts.append(
            [name, gib(measured_bytes), gib(tensors), gib(told.total_bytes), f"{error:+.1f} %",
             gib(needs.base_bytes), gib(needs.member_bytes)]
        )  # fmt: skip
    # The goal speaks of twelve: fewer are shown, and judge nothing.
    at_most = 1.0 if len(errors) >= TWELVE else None
    if at_most is None:
        bench.notes.append(f"{TWELVE - len(errors)} of the {TWELVE} companies were not measured, so no goal is judged.")
    count = f"{len(errors)} of {TWELVE} companies"
    below = max([0.0, *(-one for one in errors)])
    bench.rows += [
        row(f"{count}: largest error, %", "15 % goal", round(max(map(abs, errors), default=0.0), 2), 15, at_most),
        row(f"{count}: farthest below what was measured, %", "5 % goal", round(below, 2), 5, at_most),
    ]
    if beyond:
        below = max([0.0, *(-one for one in beyond)])
        question = "packed rows, several lengths: farthest below, %"
        bench.rows.append(row(question, "5 % goal", round(below, 2), 5, at_most))


def _foretell(case: dict[str, Any], gpu: str) -> Any:
    from stoker.devices.estimate.model_shapes import read_shape
    from stoker.devices.estimate.shared_base import MemoryLocation, MultiAdapterTraining, estimate_adapters
    from stoker.devices.estimate.training_setup import Width

    company = MultiAdapterTraining(
        shape=read_shape(case["config"]),
        adapters=case["adapters"],
        rank=case["rank"],
        rows=case["rows"],
        sequence=case["sequence"],
        dtype=Width.BF16 if case["dtype"] == "bfloat16" else Width.FP32,
        where=MemoryLocation(case["where"]),
        is_compiled=case.get("compiled", True),
        is_packed=case.get("packed", False),
    )
    return estimate_adapters(company, gpu=gpu)


def _measured(found: dict[str, Any]) -> int:
    return int(found.get("memory", {}).get("peak_bytes") or found.get("process_bytes") or 0)


if __name__ == "__main__":
    sys.exit(main())
