"""Answers every question of this folder, one after the other, and can write the answers down.

    python benchmarks/run_all.py                 # about an hour on two cores
    python benchmarks/run_all.py --quick         # a smoke run of all in two minutes: installs and judges nothing
    python benchmarks/run_all.py --record        # also write RESULTS.md
    python benchmarks/run_all.py startup race    # only these
    python benchmarks/run_all.py first_hour --options '--sources DIR'

Each benchmark runs in a process of its own and is stopped after `--limit` seconds. One that fails or is stopped is
recorded as failed, and the next one follows. With `--record`, every answer is written down as soon as it is there.

Exit 0 when every goal is met; 1 when one is missed or could not be measured, or when a benchmark failed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import peers
import results

HERE = Path(__file__).resolve().parent
LIMIT_S = 900.0
GRACE_S = 20.0
NAMES = (
    "startup",
    "detection",
    "overrides",
    "compose",
    "race",
    "ledger",
    "vram_estimate",
    "shared_process_memory",
    "gpu_tests",
    "cached_stages",
    "executed_stages",
    "scale",
    "containment",
    "program",
    "metrics",
    "printed",
    "first_hour",
    "transfer",
    "small_files",
    "bundle",
    "tensor_files",
    "compared_logits",
    "placement",
    "schedule_quality",
    "same_decisions",
    "download_faults",
    "fleet_cycles",
    "fleet_scale",
    "fleet_latency",
    "fleet_tls",
    "cockpit",
    "telemetry",
    "screens_fleet",
    "screens_browser",
    "curves_peers",
    "launch_slurm",
    "launch_ssh",
    "second_submit",
    "contents",
    "objects_s3",
    "environments",
    "gang_launch",
    "gang_gpu",
    "adapters_cpu",
    "adapters_gpu",
    "security_cases",
    "fences",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="smoke run: tiny sizes, installs nothing, judges no goal")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_S,
        metavar="S",
        help="stop a benchmark that takes longer; default: %(default)s",
    )
    parser.add_argument("--record", action="store_true", help="write the figures to RESULTS.md")
    parser.add_argument("--json", action="store_true", help="one JSON object per benchmark instead of tables")
    parser.add_argument(
        "--bench", type=Path, default=peers.DEFAULT_BENCH, help="folder for environments and scratch data"
    )
    parser.add_argument("--options", default="", metavar="WORDS", help="options of the one benchmark that is named")
    asked = parser.parse_args()
    names = tuple(asked.names) or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    if asked.options and len(names) > 1:
        parser.error("--options are those of one benchmark; name it")
    if asked.record and asked.quick:
        parser.error("--quick gives no figures to keep; leave out --record")
    # asked to end, it ends as after Ctrl-C, and takes the benchmark that runs with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    is_met = True
    for name in names:
        begun_s = time.monotonic()
        answer = ask(name, asked.bench, shlex.split(asked.options), limit_s=asked.limit, quick=asked.quick)
        if isinstance(answer, str):
            print(f"{name}: failed: {answer}", file=sys.stderr, flush=True)
        else:
            print(json.dumps(answer) if asked.json else results.as_text(answer), flush=True)
        print(f"{name}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr, flush=True)
        if asked.record:
            _record(name, answer)
        is_met &= not isinstance(answer, str) and all(row["verdict"] in ("PASS", "-") for row in answer["rows"])
    return 0 if is_met else 1


def _record(name: str, answer: results.Answer | str) -> None:
    if not isinstance(answer, str):
        results.record([answer])
        return
    asks = str(ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text()))).splitlines()[0]
    results.record_failure(name, asks, datetime.now(UTC).isoformat(timespec="minutes"), answer)


def ask(name: str, bench: Path, options: Sequence[str], *, limit_s: float, quick: bool) -> results.Answer | str:
    """Run one benchmark in a process of its own; return its answer, or why it has none."""
    command = [
        sys.executable,
        str(HERE / f"{name}.py"),
        "--json",
        "--bench",
        str(bench),
        *(["--quick"] if quick else []),
        *options,
    ]
    # a session of its own: what it started is stopped with it
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = program.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"it took longer than {limit_s:.0f} s"
    finally:
        _stop(program)
    try:
        answer: results.Answer = json.loads(said)
    except json.JSONDecodeError:
        return f"it ended with exit {program.returncode} and no answer"
    return answer


def _stop(program: subprocess.Popen[str]) -> None:
    """Ask a benchmark that still runs to end, so that it clears up; then kill what is left of its session."""
    if program.poll() is None:
        program.terminate()
        with suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


if __name__ == "__main__":
    sys.exit(main())
