"""On a machine with a GPU: one rank with NCCL, from the launch to its first barrier; torchrun and we in turns.

    python benchmarks/sides/gang_gpu.py [ROUNDS] > FILE

Writes JSON: seconds by side, versions, the card. Needs torch with CUDA; `stoker` may be this checkout on PYTHONPATH.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
BARRIER = str(HERE / "gang_barrier.py")


def main(rounds: int = 7) -> None:
    import torch

    took: dict[str, list[float]] = {"torchrun": [], "stoker": [], "warm": []}
    command = [sys.executable, str(HERE / "gang_warm.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        _ask(owner)
        for _ in range(rounds):
            took["torchrun"].append(
                _launched([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"])
            )
            took["stoker"].append(
                _launched([sys.executable, "-m", "stoker", "gang", "run", "--ranks", "1", "--", sys.executable])
            )
            took["warm"].append(_ask(owner))
        assert owner.stdin is not None
        owner.stdin.close()
    told = {
        "measured_at": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(0),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "seconds": took,
        "median": {name: statistics.median(seconds) for name, seconds in took.items()},
    }
    print(json.dumps(told, indent=1))


def _launched(launcher: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        started_s = time.time()
        subprocess.run([*launcher, BARRIER, folder, "nccl"], check=True, stdout=subprocess.DEVNULL)
        return float(Path(folder, "0").read_text()) - started_s


def _ask(owner: subprocess.Popen[str]) -> float:
    assert owner.stdin is not None
    assert owner.stdout is not None
    print("1 nccl", file=owner.stdin, flush=True)
    return float(json.loads(owner.stdout.readline())["seconds"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
