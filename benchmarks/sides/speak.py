"""How a side talks with its benchmark: the same arguments in, one JSON line out as the last line of stdout."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import trivial


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the benchmark wants of one run of a side."""

    count: int
    shape: str
    home: Path
    way: str


def read_arguments(*, ways: tuple[str, ...] = ("values",)) -> Asked:
    """Reads the arguments; `ways` are the variants that this side knows, the first is the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--shape", choices=("fan", "chain"), default="fan")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--way", choices=ways, default=ways[0])
    asked = parser.parse_args()
    return Asked(count=asked.count, shape=asked.shape, home=asked.home, way=asked.way)


def tell(
    asked: Asked,
    *,
    seconds: float,
    total: int | None,
    executed: int | None = None,
    cpu_seconds: float | None = None,
) -> None:
    """Says how long it took, how many stages really ran and how much memory was used at most; fails on a wrong result.

    `total` is the sum of all values, or None where this way of asking does not read them. `executed` is only for a side
    whose stages run in other processes, or that counts something else; else it is counted where the work is done.
    """
    if total is not None and total != trivial.expected(asked.shape, asked.count):
        sys.exit(f"wrong result: {total}")
    ran = len(trivial.executions) if executed is None else executed
    peak_kib = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    said = {"seconds": seconds, "executed": ran, "peak_rss_bytes": peak_kib * 1024, "cpu_seconds": cpu_seconds}
    print(json.dumps(said), flush=True)
