"""How far is the memory estimate of a shared process of adapters from what the GPU's driver counts?

    python benchmarks/shared_process_memory.py                    # evaluates the recording of an H200
    python benchmarks/shared_process_memory.py --from FILE        # evaluates other measurements
    python benchmarks/shared_process_memory.py --measure FILE     # measures here, then evaluates; needs a GPU and torch

Measured is the peak of torch's allocator (reserved) and the CUDA context, each case in its own process. The cases are
in `shared_process_cases.py`: twelve of one shape each, and beyond them packed rows and steps of several lengths.
"""

from __future__ import annotations

import sys
from typing import Any

import recordings
from harness import Benchmark
from recordings import Recording, gib, row

TWELVE = 12
HEADS = ["shared process", "measured", "tensors", "estimate", "error", "base", "each"]


def main() -> int:
    measure = recordings.by_sides("shared_process_memory.py")
    bench, recording = recordings.start(
        "shared_process_memory", str(__doc__), "shared_process_memory_h200.json", measure
    )
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
        estimate = _estimate(found["case"], recording.card)
        error = 100 * (estimate.total_bytes - measured_bytes) / measured_bytes
        is_plain = not (found["case"].get("packed") or found["case"].get("lengths"))
        (errors if is_plain else beyond).append(error)
        tensors = found.get("memory", {}).get("allocated_bytes", 0)
        needs = estimate.needs
        bench.verdicts.append(
            [name, gib(measured_bytes), gib(tensors), gib(estimate.total_bytes), f"{error:+.1f} %",
             gib(needs.base_bytes), gib(needs.member_bytes)]
        )  # fmt: skip
    # The goal is for twelve: fewer are shown without a verdict.
    at_most = 1.0 if len(errors) >= TWELVE else None
    if at_most is None:
        bench.notes.append(f"{TWELVE - len(errors)} of the {TWELVE} shared processes were not measured: no verdict.")
    count = f"{len(errors)} of {TWELVE} shared processes"
    below = max([0.0, *(-one for one in errors)])
    bench.rows += [
        row(f"{count}: largest error, %", "15 % goal", round(max(map(abs, errors), default=0.0), 2), 15, at_most),
        row(f"{count}: farthest below what was measured, %", "5 % goal", round(below, 2), 5, at_most),
    ]
    if beyond:
        below = max([0.0, *(-one for one in beyond)])
        question = "packed rows, several lengths: farthest below, %"
        bench.rows.append(row(question, "5 % goal", round(below, 2), 5, at_most))


def _estimate(case: dict[str, Any], gpu: str) -> Any:
    from stoker.devices.estimate.model_shapes import read_shape
    from stoker.devices.estimate.shared_base import MemoryLocation, MultiAdapterTraining, estimate_adapters
    from stoker.devices.estimate.training_setup import Width

    training = MultiAdapterTraining(
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
    return estimate_adapters(training, gpu=gpu)


def _measured(found: dict[str, Any]) -> int:
    return int(found.get("memory", {}).get("peak_bytes") or found.get("process_bytes") or 0)


if __name__ == "__main__":
    sys.exit(main())
