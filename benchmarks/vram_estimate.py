"""How far is the memory that `stoker machines estimate` foretells from what a GPU's driver then counts?

    python benchmarks/vram_estimate.py                    # judges what was recorded on an H200
    python benchmarks/vram_estimate.py --from FILE        # judges other measurements
    python benchmarks/vram_estimate.py --measure FILE     # measures here, then judges; needs a GPU, torch and peft

Measured is what the driver counts for a training process, after five steps: the peak of torch's allocator and the CUDA
context (they differ by a constant, which stands in the recording too). The cases are in `vram_cases.py`: `judge` were
measured after the estimator stood and never used for it; the calibrated figure uses `calibrate` runs of the same kind
at another batch or sequence. Accelerate's figure is what its `estimate-memory` says of training with Adam.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import recordings
from harness import Benchmark
from recordings import Recording, gib, row
from vram_cases import name_of

HEADS = ["case", "role", "measured", "foretold", "error", "calibrated", "accelerate"]


def main() -> int:
    measure = recordings.by_sides("vram_training.py")
    bench, recording = recordings.start("vram_estimate", str(__doc__), "vram_h200.json", measure)
    _judge(bench, recording)
    return bench.finish()


def _judge(bench: Benchmark, recording: Recording) -> None:
    from stoker.devices.estimate.terms import CalibrationFile

    gpu, torch = recording.card, recording.versions["torch"]
    measured = recording.told["measured"]
    if bench.quick:
        measured = [case for case in measured if case["config"] == measured[-1]["config"]]
    failed = [case for case in measured if "error" in case]
    cases = [case for case in measured if "error" not in case]
    with tempfile.TemporaryDirectory() as scratch:
        book = CalibrationFile(f"{scratch}/vram.json")
        foretold = [_foretell(case, gpu) for case in cases]
        for case, (training, told_bytes, _) in zip(cases, foretold, strict=True):
            if case["role"] == "calibrate":
                book.note(training, torch, measured_bytes=case["process_bytes"], estimated_bytes=told_bytes)
        corrected = [book.correction(training, torch) for training, _, _ in foretold]
    plain, calibrated, theirs, every = [], [], [], []
    bench.verdicts.append(HEADS)
    for case, (_, told_bytes, _), correction in zip(cases, foretold, corrected, strict=True):
        error, off = _percent(told_bytes, case), _percent(case["accelerate_bytes"], case)
        every.append(error)
        after = None
        if case["role"] == "judge":
            plain.append(error)
            theirs.append(off)
            after = None if correction is None else _percent(told_bytes * correction.percent / 100, case)
            calibrated += [] if after is None else [after]
        bench.verdicts.append(
            [name_of(case), case["role"], gib(case["process_bytes"]), gib(told_bytes), f"{error:+.2f} %",
             "" if after is None else f"{after:+.2f} %", f"{off:+.0f} %"]
        )  # fmt: skip
    bench.verdicts += [[name_of(case), case["role"], "failed", "", "", "", ""] for case in failed]
    under = max(0.0, *(-error for error in (*plain, *calibrated)))
    count = len(plain)
    all_below = max(0.0, *(-error for error in every))
    slowest_s = max(seconds for _, _, seconds in foretold)
    rows: list[tuple[str, str, float, float, float | None]] = [
        (f"{count} judged: largest error, %", "15 % goal", _largest(plain), 15, 1.0),
        (f"{len(calibrated)} judged, calibrated: largest error, %", "6 % goal", _largest(calibrated), 6, 1.0),
        ("judged: farthest below what was measured, %", "5 % goal", under, 5, 1.0),
        ("judged: largest error, %", "accelerate", _largest(plain), _largest(theirs), None),
        (f"all {len(every)}: largest error, %", "15 % goal", _largest(every), 15, 1.0),
        (f"all {len(every)}: farthest below, %", "5 % goal", all_below, 5, 1.0),
        ("one estimate, longest, s", "1 s", slowest_s, 1, None),
    ]
    bench.rows += [
        row(asks, peer, round(ours, 2), round(against, 2), at_most) for asks, peer, ours, against, at_most in rows
    ]


def _foretell(case: dict[str, Any], gpu: str) -> tuple[Any, int, float]:
    from stoker.devices.estimate.model_shapes import read_shape
    from stoker.devices.estimate.terms import estimate
    from stoker.devices.estimate.training_setup import read_training

    started = time.perf_counter()
    shape = read_shape(case["config"])
    training = read_training(shape, [f"{key}={value}" for key, value in case["training"].items()])
    told_bytes = estimate(training, gpu=gpu).total_bytes
    return training, told_bytes, time.perf_counter() - started


def _percent(told_bytes: float, case: dict[str, Any]) -> float:
    return float(100 * (told_bytes - case["process_bytes"]) / case["process_bytes"])


def _largest(errors: list[float]) -> float:
    return max(abs(error) for error in errors)


if __name__ == "__main__":
    sys.exit(main())
