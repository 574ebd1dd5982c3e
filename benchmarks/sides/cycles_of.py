"""Claim cycles of one checkout, by that checkout's own benchmark: its coordinator, its workers, its way between them.

    python cycles_of.py TREE --bench DIR --jobs 2000 --way started|direct [--quick]

Prints what `fleet_load.py` of that checkout says. Started by `fleet_cycles.py --against TREE`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=Path)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--way", required=True)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    # That checkout's modules and nothing of the one that this script lies in.
    sys.path[0] = str(asked.tree / "benchmarks")
    import fleet_cycles
    import harness

    bench = harness.Benchmark(name="cycles_of", asks="", bench=asked.bench, quick=asked.quick, as_json=True)
    peer = bench.peer("stoker")
    if missing := bench.missing("stoker"):
        sys.exit(missing)
    told = fleet_cycles.Told()
    fleet_cycles._cycles(bench, peer, asked.way, asked.jobs, None, told)()  # noqa: SLF001 - so it is called in every checkout
    print(json.dumps(told.said[-1]))


main()
