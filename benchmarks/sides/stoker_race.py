"""One of many processes that want the same result of Stoker at the same moment.

stoker_race.py HOME STAGE_S
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import stoker_bench
import stoker_job

from stoker.core.jsontext import loads


def main() -> None:
    home, stage_s = Path(sys.argv[1]), float(sys.argv[2])
    assembly = stoker_job.assemble(home)
    wanted = stoker_bench.RaceArgs(index=7, ledger=str(home / "executions"), stage_s=stage_s)
    plan = stoker_bench.race.compile(wanted)
    print("ready", flush=True)
    sys.stdin.readline()
    node = stoker_job.run(assembly, plan).nodes[plan.final]
    value = loads(assembly.store.read_bytes(node.products[0].record, str(stoker_bench.Value.file)))
    print(json.dumps(value), flush=True)
    assembly.close()


main()
