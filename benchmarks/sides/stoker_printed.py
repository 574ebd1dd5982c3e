"""Times how long it takes to read lines of output for metrics; `--way` says which lines. Prints one JSON object."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from stoker.engine.metrics.printed import PrintedMetrics

RECORDED = Path(__file__).resolve().parents[2] / "tests" / "recordings" / "printed_metrics.txt"
PLAIN = [
    b"saving the checkpoint to its folder",
    b"loading the dataset from the cache, which takes a moment",
    b"    text with  two spaces",
    b"| a | b | c |",
    b"\tat the end of a call",
    b"done",
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--way", choices=("numbers", "plain"), required=True)
    asked, _ = parser.parse_known_args()
    recorded = RECORDED.read_bytes().splitlines()
    numbers = [line for line in recorded if line and not line.startswith(("→ ".encode(), b"#"))]
    lines = PLAIN if asked.way == "plain" else [line for line in numbers if any(48 <= byte <= 57 for byte in line)]
    printed = PrintedMetrics()
    begun_s = time.perf_counter()
    read = 0
    while read < asked.count:
        for line in lines:
            printed.read(line)
        read += len(lines)
    seconds = time.perf_counter() - begun_s
    print(json.dumps({"seconds": seconds / read * asked.count, "executed": asked.count}))


if __name__ == "__main__":
    main()
