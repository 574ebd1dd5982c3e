"""Runs named parts of a measurement on a GPU, each in a process of its own with a time limit, and keeps what they said.

The parent imports the libraries once and never touches the GPU; each part is forked from it, so it begins without a
context and without paying for imports. What a part has said is kept even if it then fails or runs out of time. An
output file that is there already is gone on with, so parts can be measured in several calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Say = Callable[[str, Any], None]
"""Keeps one value under a name of this part."""
Part = Callable[[Say], None]
ROUNDS = 3
LIBRARIES = ("torch", "transformers", "peft", "triton", "accelerate")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the options that every side on a GPU has."""
    parser.add_argument("out", type=Path, help="where to write; what is in it is kept")
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts, with commas")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for one part")
    parser.add_argument("--until", type=float, default=540.0, help="seconds after which no further part begins")
    parser.add_argument("--tiny", action="store_true", help="a tiny base on the CPU, to try this script")
    return parser.parse_args()


def run_parts(side: str, parts: Mapping[str, Part], asked: Sequence[str], given: argparse.Namespace) -> int:
    """Run these parts of one side in this order; 0 if all of them ended well."""
    if unknown := [name for name in asked if name not in parts]:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}", file=sys.stderr)
        return 2
    out: Path = given.out
    told: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    told |= {
        "measured_at": datetime.now(UTC).isoformat(timespec="minutes"),
        "gpu": smi("name,driver_version,memory.total"),
        "versions": {"python": sys.version.split()[0], **{name: _version(name) for name in LIBRARIES}},
    }
    told.setdefault("commands", []).append(" ".join(["python", *sys.argv]))
    kept = told.setdefault(side, {})
    started, failed = time.monotonic(), 0
    for name in asked:
        if time.monotonic() - started > given.until:
            print(f"{name}: no time was left", flush=True)
            failed += 1
            continue
        begun = time.monotonic()
        found = _forked(parts[name], Path(f"{out}.{name}"), given.limit)
        found["took_s"] = round(time.monotonic() - begun, 2)
        found["measured_at"] = datetime.now(UTC).isoformat(timespec="minutes")
        kept[name] = found
        out.write_text(json.dumps(told, indent=1) + "\n")
        failed += "error" in found
        print(f"{time.monotonic() - started:6.1f} s  {name}: {json.dumps(found)}", flush=True)
    return min(failed, 1)


def _forked(part: Part, kept: Path, limit_s: float) -> dict[str, Any]:
    kept.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(_said(part, kept))
    deadline, is_over = time.monotonic() + limit_s, False
    while not is_over and time.monotonic() < deadline:
        is_over = os.waitpid(child, os.WNOHANG)[0] == child
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not is_over:
        os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    kept.unlink(missing_ok=True)
    if not is_over:
        found["error"] = f"stopped after {limit_s:.0f} s"
    elif not found:
        found["error"] = "the process died without a word"
    return found


def _said(part: Part, kept: Path) -> int:
    found: dict[str, Any] = {}

    def say(name: str, value: Any) -> None:
        found[name] = value
        fresh = kept.with_name(f"{kept.name}.new")
        fresh.write_text(json.dumps(found))
        fresh.rename(kept)

    try:
        part(say)
        return 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what was found
        say("error", "".join(traceback.format_exception(error))[-3000:])
        return 1


def rate(step: Callable[[], Any], tokens: int, *, device: str, warm: int = 4, window_s: float = 2.0) -> dict[str, Any]:
    """Tokens a second of a training step: some windows of time after a warm-up; the best and the median of them."""
    begun = time.perf_counter()
    for _ in range(warm):
        step()
    synchronise(device)
    warm_s = time.perf_counter() - begun
    begun = time.perf_counter()
    step()
    synchronise(device)
    count = max(3 if window_s > 1 else 1, int(window_s / (time.perf_counter() - begun)))
    rates = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(count):
            step()
        synchronise(device)
        rates.append(count * tokens / (time.perf_counter() - begun))
    return {
        "tokens_per_s": max(rates),
        "median": statistics.median(rates),
        "rates": rates,
        "step_ms": 1000 * tokens / max(rates),
        "steps": count * ROUNDS,
        "warm_s": warm_s,
        **memory(device),
    }


def synchronise(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def memory(device: str) -> dict[str, int]:
    """The most that the allocator gave out and held, and what the driver says that this process and all have."""
    import torch

    if device != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    told = {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_used_bytes": total - free,
    }
    rows = smi("pid,used_memory", of="compute-apps").splitlines()
    mine = [row.split(",")[1].strip() for row in rows if row.split(",")[0].strip() == str(os.getpid())]
    if not mine and len(rows) == 1:
        mine = [rows[0].split(",")[1].strip()]
    return {**told, "process_bytes": int(mine[0]) * 2**20} if mine and mine[0].isdecimal() else told


def forget_peaks(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def smi(fields: str, *, of: str = "gpu") -> str:
    """What the driver's program says, or nothing where there is none."""
    asked = ["nvidia-smi", f"--query-{of}={fields}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
