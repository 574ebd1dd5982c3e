"""How quickly are two models of 1 GiB compared tensor by tensor?

Two equal safetensors files in the page cache. Stoker compares all bytes; the other side reads the same files in blocks
of the same size and does nothing with them.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from pathlib import Path

import harness
from harness import Case, Figure, Row, Runs, Side
from peers import Installed

SIZE_BYTES, QUICK_BYTES = 2**30, 2**22
TENSORS, ROWS = 64, 1024
MEMORY_BYTES = 100_000_000


def main() -> int:
    bench = harness.start("tensor_files", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    runs: Runs = {}
    if isinstance(stoker, Installed):
        bench.say("making the files")
        folder = bench.home("models")
        folder.mkdir(parents=True, exist_ok=True)
        make(folder / "one.safetensors", QUICK_BYTES if bench.quick else SIZE_BYTES)
        shutil.copyfile(folder / "one.safetensors", folder / "two.safetensors")
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        sides = [
            Side(
                name=way,
                once=lambda way=way: harness.run_side(  # type: ignore[misc]
                    stoker,
                    "compare_weights.py",
                    Case(count=size_bytes, way=way).arguments(folder),
                    executed=size_bytes,
                ),
            )
            for way in ("compare", "read")
        ]
        runs = bench.in_turns(sides, rounds=9)
        runs["stoker"] = runs.pop("compare")
    bench.compare("compare tensor by tensor", "the same files, read only", runs, theirs="read", at_most=1.25)
    bench.rows.append(
        Row(
            question="compare tensor by tensor: peak memory",
            against="100 MB",
            unit="bytes",
            ours=harness.peak_of(runs["stoker"]) if runs else None,
            theirs=Figure.of([float(MEMORY_BYTES)]),
            at_most=1.0,
            why_missing=bench.missing("stoker"),
        )
    )
    return bench.finish()


def make(path: Path, size_bytes: int) -> None:
    """Write a file of equal matrices of random bytes."""
    size = size_bytes // TENSORS
    header = {
        f"model.layers.{number}.weight": {
            "dtype": "BF16",
            "shape": [ROWS, size // 2 // ROWS],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(TENSORS)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(TENSORS):
            file.write(os.urandom(size))


if __name__ == "__main__":
    sys.exit(main())
