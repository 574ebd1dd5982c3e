"""The zstd library alone, with Stoker's settings: the same bytes from memory, into nothing, hashed by nobody.

`--way same` has as many workers as Stoker takes here, `--way all` as many as there are cores. `executed` counts bytes.
"""

from __future__ import annotations

import time
from pathlib import Path

import speak
import zstandard

from stoker.host.resources import usable_cores
from stoker.store.archives.pack import LEVEL, workers_here

_PIECE_BYTES = 2**20


def main() -> None:
    asked = speak.read_arguments(ways=("same", "all"))
    files = [path.read_bytes() for path in sorted(Path(asked.home).iterdir())]
    pieces = [
        memoryview(data)[start : start + _PIECE_BYTES] for data in files for start in range(0, len(data), _PIECE_BYTES)
    ]
    workers = workers_here() if asked.way == "same" else usable_cores()
    settings = zstandard.ZstdCompressionParameters.from_level(LEVEL, threads=workers, write_checksum=True)
    started, used = time.perf_counter(), time.process_time()
    squeeze = zstandard.ZstdCompressor(compression_params=settings).compressobj(size=sum(map(len, files)))
    for piece in pieces:
        squeeze.compress(piece)
    squeeze.flush()
    seconds, used = time.perf_counter() - started, time.process_time() - used
    speak.tell(asked, seconds=seconds, total=None, executed=sum(map(len, files)), cpu_seconds=used)


main()
