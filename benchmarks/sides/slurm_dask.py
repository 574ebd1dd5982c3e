"""dask-jobqueue: functions on workers that Slurm starts, at most four, by its adaptive scaling.

    python slurm_dask.py --home FOLDER --count 100 --seconds 1

Its scheduler is up before the clock runs; no worker is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from dask_jobqueue import SLURMCluster
from distributed import Client


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    asked = parser.parse_args()
    cluster = SLURMCluster(
        cores=1,
        processes=1,
        memory="1GB",
        walltime="00:20:00",
        interface="lo",
        python=sys.executable,
        job_directives_skip=["--mem"],
        log_directory=str(asked.home / "log"),
        local_directory=str(asked.home / "local"),
        scheduler_options={"dashboard_address": None},
    )
    with cluster, Client(cluster) as client:
        cluster.adapt(minimum=0, maximum=4)
        started_s = time.perf_counter()
        # Without `pure` the same call is a task of its own each time.
        futures = [client.submit(time.sleep, asked.seconds, pure=False) for _ in range(asked.count)]
        done = client.gather(futures)
        print(json.dumps({"seconds": time.perf_counter() - started_s, "executed": len(done)}), flush=True)


if __name__ == "__main__":
    main()
