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

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peers
from harness import Benchmark, Figure, Row
from vram_cases import name_of

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded" / "vram_h200.json"
GIB = 1024**3
HEADS = ["case", "role", "measured", "foretold", "error", "calibrated", "accelerate"]


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
        side = HERE / "sides" / "vram_training.py"
        subprocess.run([asked.python, str(side), str(asked.measure)], check=True)
    recorded = json.loads((asked.measure or asked.source).read_text())
    sys.path.insert(0, str(HERE.parent / "src"))
    bench = Benchmark(
        name="vram_estimate",
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
    from stoker.hardware.estimate.calibration import CalibrationBook

    gpu, torch = recorded["gpu"].partition(",")[0], recorded["versions"]["torch"]
    failed = [case for case in recorded["measured"] if "error" in case]
    cases = [case for case in recorded["measured"] if "error" not in case]
    with tempfile.TemporaryDirectory() as scratch:
        book = CalibrationBook(f"{scratch}/vram.json")
        foretold = [_foretell(case, gpu) for case in cases]
        for case, (training, told_bytes, _) in zip(cases, foretold, strict=True):
            if case["role"] == "calibrate":
                book.note(training, torch, measured_bytes=case["process_bytes"], foretold_bytes=told_bytes)
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
            [name_of(case), case["role"], _gib(case["process_bytes"]), _gib(told_bytes), f"{error:+.2f} %",
             "" if after is None else f"{after:+.2f} %", f"{off:+.0f} %"]
        )  # fmt: skip
    bench.verdicts += [[name_of(case), case["role"], "failed", "", "", "", ""] for case in failed]
    under = max(0.0, *(-error for error in (*plain, *calibrated)))
    count = len(plain)
    bench.rows += [
        _row(f"{count} judged: largest error, %", "15 % goal", _largest(plain), 15),
        _row(f"{len(calibrated)} judged, calibrated: largest error, %", "6 % goal", _largest(calibrated), 6),
        _row("judged: farthest below what was measured, %", "5 % goal", under, 5),
        _row("judged: largest error, %", "accelerate", _largest(plain), _largest(theirs), at_most=None),
        _row(f"all {len(every)}: largest error, %", "15 % goal", _largest(every), 15),
        _row(f"all {len(every)}: farthest below, %", "5 % goal", max(0.0, *(-error for error in every)), 5),
        _row("one estimate, longest, s", "1 s", max(seconds for _, _, seconds in foretold), 1, at_most=None),
    ]


def _foretell(case: dict[str, Any], gpu: str) -> tuple[Any, int, float]:
    from stoker.hardware.estimate.families import read_shape
    from stoker.hardware.estimate.reading import read_training
    from stoker.hardware.estimate.terms import estimate

    started = time.perf_counter()
    shape = read_shape(case["config"])
    training = read_training(shape, [f"{key}={value}" for key, value in case["training"].items()])
    told_bytes = estimate(training, gpu=gpu).total_bytes
    return training, told_bytes, time.perf_counter() - started


def _row(question: str, against: str, ours: float, theirs: float, *, at_most: float | None = 1.0) -> Row:
    figures = [Figure(best=round(value, 2), median=round(value, 2), runs=1) for value in (ours, theirs)]
    return Row(question=question, against=against, unit="", ours=figures[0], theirs=figures[1], at_most=at_most)


def _percent(told_bytes: float, case: dict[str, Any]) -> float:
    return float(100 * (told_bytes - case["process_bytes"]) / case["process_bytes"])


def _largest(errors: list[float]) -> float:
    return max(abs(error) for error in errors)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f} GiB"


if __name__ == "__main__":
    sys.exit(main())
