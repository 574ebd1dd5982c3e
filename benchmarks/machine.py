"""What the figures were measured on: a ratio travels between machines, a time does not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 1024**3


def facts(bench: Path, *, quick: bool = False) -> dict[str, Any]:
    """Processor, memory, kernel, file system under `bench`, Python, and what one durable small write costs there."""
    bench.mkdir(parents=True, exist_ok=True)
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "filesystem": _filesystem(bench),
        "fsync_ms": round(_fsync_median_s(bench, 3 if quick else 200) * 1000, 3),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The processor's name, which `lscpu` knows on more kinds of machine than /proc/cpuinfo tells."""
    if shutil.which("lscpu"):
        told = subprocess.run(["lscpu"], capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
        for line in told.stdout.splitlines():
            if line.startswith("Model name:"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _filesystem(folder: Path) -> str:
    """The type of the mount that holds a folder: the longest mount point that is a prefix of it."""
    table = Path("/proc/mounts")
    if not table.exists():
        return "unknown"
    mounts = [line.split()[1:4] for line in table.read_text().splitlines()]
    holding = [mount for mount in mounts if folder.resolve().is_relative_to(mount[0])]
    _, kind, options = max(holding, key=lambda mount: len(mount[0]))
    return f"{kind} ({options})"


def _fsync_median_s(folder: Path, count: int) -> float:
    times = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for number in range(count):
            started = time.perf_counter()
            written = os.open(f"{scratch}/{number}", os.O_CREAT | os.O_WRONLY)
            os.write(written, b"x" * 64)
            os.fsync(written)
            os.close(written)
            times.append(time.perf_counter() - started)
    return sorted(times)[count // 2]
