"""What do reading and hashing cost on top of compression, when 1 GiB is packed?

A folder as a training leaves it, with its files in the page cache: weights, optimiser state and a log. Stoker reads
it, hashes every file, the tar and the archive, and compresses; the zstd library gets the same bytes in memory, with the
same level and number of workers, and does nothing else. Nobody writes the archive anywhere.
"""

from __future__ import annotations

import sys

import harness
from harness import Case, Figure, Row, Runs, Side
from peers import Installed
from sides import bundle_folder

SIZE_BYTES, QUICK_BYTES = 2**30, 2**22
MEMORY_BYTES = 100_000_000


def main() -> int:
    bench = harness.start("bundle", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    runs: Runs = {}
    if isinstance(stoker, Installed):
        bench.versions["zstandard"] = stoker.version("zstandard")
        bench.say("making the folder")
        folder = bench.home("folder") / "run"
        bundle_folder.make(folder, QUICK_BYTES if bench.quick else SIZE_BYTES)
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        sides = [
            Side(
                name=name,
                once=lambda script=script, way=way: harness.run_side(  # type: ignore[misc]
                    stoker, script, Case(count=size_bytes, way=way).arguments(folder), executed=size_bytes
                ),
            )
            for name, script, way in (
                ("stoker", "stoker_pack.py", "new"),
                ("same", "zstd_alone.py", "same"),
                ("all", "zstd_alone.py", "all"),
            )
        ]
        runs = bench.in_turns(sides, rounds=7)
    question = "pack and hash"
    bench.compare(question, "zstd alone, as many workers", runs, theirs="same", at_most=1.333)
    bench.compare(question, "zstd alone, a worker for each core", runs, theirs="all", at_most=None)
    bench.rows.append(
        Row(
            question="pack and hash: peak memory",
            against="100 MB",
            unit="bytes",
            ours=harness.peak_of(runs["stoker"]) if runs else None,
            theirs=Figure.of([float(MEMORY_BYTES)]),
            at_most=1.0,
            why_missing=bench.missing("stoker"),
        )
    )
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
