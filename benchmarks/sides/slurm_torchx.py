"""torchx: one program on Slurm, from the call of its runner to the program's first line; several one after the other.

python slurm_torchx.py --home FOLDER --count 10
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role

STAMP = "import sys, time; open(sys.argv[1], 'w').write(repr(time.time()) + chr(10))"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    asked = parser.parse_args()
    took = []
    with get_runner() as runner:
        for number in range(asked.count):
            mark = asked.home / f"mark{number}"
            role = Role(
                name="train",
                image=str(asked.home),
                entrypoint=sys.executable,
                args=["-c", STAMP, str(mark)],
                num_replicas=1,
                resource=Resource(cpu=1, gpu=0, memMB=100),
            )
            started_s = time.time()
            runner.run(AppDef(name=f"t{number}", roles=[role]), scheduler="slurm", cfg={"nomem": True, "time": "20"})
            deadline_s = time.monotonic() + 60
            while not (mark.exists() and mark.read_text().endswith("\n")):
                if time.monotonic() > deadline_s:
                    raise RuntimeError(subprocess.run(["squeue"], capture_output=True, text=True, check=False).stdout)
                time.sleep(0.02)
            took.append(float(mark.read_text()) - started_s)
            while subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout.strip():
                time.sleep(0.1)
    print(json.dumps({"first": took}))


if __name__ == "__main__":
    main()
