"""One of many processes that call the same function of joblib.Memory at the same moment.

joblib_race.py HOME STAGE_S
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from joblib import Memory


def slow_square(index: int, home: Path, stage_s: float) -> dict[str, int]:
    ledger = os.open(home / "executions", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(ledger, b".")
    os.close(ledger)
    time.sleep(stage_s)
    return {"value": index * index}


def main() -> None:
    home, stage_s = Path(sys.argv[1]), float(sys.argv[2])
    stage = Memory(home / "cache", verbose=0).cache(slow_square, ignore=["home", "stage_s"])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(stage(7, home, stage_s)), flush=True)


main()
