"""submitit: functions as one array of Slurm, four at once.

python slurm_submitit.py --home FOLDER --count 100 --seconds 1
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import submitit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    asked = parser.parse_args()
    executor = submitit.AutoExecutor(folder=asked.home / "log", cluster="slurm")
    executor.update_parameters(timeout_min=20, cpus_per_task=1, slurm_array_parallelism=4)
    started_s = time.perf_counter()
    jobs = executor.map_array(time.sleep, [asked.seconds] * asked.count)
    done = [job.result() for job in jobs]
    print(json.dumps({"seconds": time.perf_counter() - started_s, "executed": len(done)}))


if __name__ == "__main__":
    main()
