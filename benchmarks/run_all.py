"""Answers every question of this folder, one after the other, and can write the answers down.

    python benchmarks/run_all.py                 # about half an hour on two cores
    python benchmarks/run_all.py --quick         # a smoke test: small sizes, nothing to keep
    python benchmarks/run_all.py --record        # also write RESULTS.md
    python benchmarks/run_all.py startup race    # only these

Exit 0 when every goal is met; 1 when one is missed or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import peers
import results

HERE = Path(__file__).resolve().parent
NAMES = (
    "startup",
    "detection",
    "overrides",
    "compose",
    "race",
    "ledger",
    "vram_estimate",
    "company_memory",
    "gpu_tests",
    "cached_stages",
    "executed_stages",
    "scale",
    "containment",
    "program",
    "metrics",
    "transfer",
    "small_files",
    "bundle",
    "placement",
    "download_faults",
    "fleet_cycles",
    "fleet_scale",
    "fleet_latency",
    "fleet_tls",
    "second_submit",
    "contents",
    "environments",
    "gang_launch",
    "gang_gpu",
    "adapters_cpu",
    "adapters_gpu",
    "fences",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--record", action="store_true", help="write the figures to RESULTS.md")
    parser.add_argument("--json", action="store_true", help="one JSON object per benchmark instead of tables")
    parser.add_argument(
        "--bench", type=Path, default=peers.DEFAULT_BENCH, help="folder for environments and scratch data"
    )
    asked = parser.parse_args()
    names = tuple(asked.names) or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    if asked.record and asked.quick:
        parser.error("--quick gives no figures to keep; leave out --record")
    answers = [answer for name in names if (answer := ask(name, asked.bench, quick=asked.quick)) is not None]
    for answer in answers:
        print(json.dumps(answer) if asked.json else results.as_text(answer))
    if asked.record:
        results.record(answers)
    met = [row["verdict"] in ("PASS", "-") for answer in answers for row in answer["rows"]]
    return 0 if len(answers) == len(names) and all(met) else 1


def ask(name: str, bench: Path, *, quick: bool) -> dict[str, Any] | None:
    """Runs one benchmark in a process of its own; a broken one is told and the others go on."""
    command = [
        sys.executable,
        str(HERE / f"{name}.py"),
        "--json",
        "--bench",
        str(bench),
        *(["--quick"] if quick else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        print(f"{name} broke off with exit {done.returncode}", file=sys.stderr)
        return None
    return answer


if __name__ == "__main__":
    sys.exit(main())
