"""Two equal safetensors files from the page cache: compared tensor by tensor by Stoker, or only read.

`--way compare` is Stoker's comparison, `--way read` reads the same bytes in blocks of the same size. `executed` counts
bytes.
"""

from __future__ import annotations

import time
from pathlib import Path

import speak

from stoker.crossval.model_files import open_model
from stoker.crossval.tensor_files import BLOCK_BYTES, compare_models


def main() -> None:
    asked = speak.read_arguments(ways=("compare", "read"))
    paths = sorted(Path(asked.home).iterdir())
    started, used = time.perf_counter(), time.process_time()
    if asked.way == "compare":
        first, second = map(open_model, paths)
        assert all(one.outcome == "same" for one in compare_models(first, second))
    else:
        for path in paths:
            _read(path)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    size_bytes = sum(path.stat().st_size for path in paths)
    speak.tell(asked, seconds=seconds, total=None, executed=size_bytes, cpu_seconds=used)


def _read(path: Path) -> None:
    block = bytearray(BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


main()
