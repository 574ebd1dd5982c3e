"""Stoker: one plan, its stages inline; run in this process through the doors that `stoker run` uses.

`--way values` reads every result afterwards, as a caller of joblib gets it; `--way handles` only has to know where it
is; `--way forked` runs a child process per stage. Building and checking the plan is inside the time.
"""

from __future__ import annotations

import time
from pathlib import Path

import speak
import stoker_bench
import stoker_job

from stoker.core.jsontext import loads


def main() -> None:
    asked = speak.read_arguments(ways=("values", "handles", "forked"))
    recipes = {"fan": stoker_bench.fan, "chain": stoker_bench.chain}
    recipe = stoker_bench.forked_fan if asked.way == "forked" else recipes[asked.shape]
    started = time.perf_counter()
    assembly = stoker_job.assemble(Path(asked.home))
    result = stoker_job.run(assembly, recipe.compile(stoker_bench.CountArgs(count=asked.count)))
    total: int | None = None
    if asked.way != "handles":
        store = assembly.store
        total = 0
        for node in result.nodes.values():
            total += loads(store.read_bytes(node.products[0].record, str(stoker_bench.Value.file)))["value"]
    assembly.close()
    seconds = time.perf_counter() - started
    if result.hits + result.ran != asked.count:
        raise SystemExit(f"{result.hits} hits and {result.ran} executions for {asked.count} stages")
    executed = result.ran if asked.way == "forked" else len(stoker_bench.executions)
    speak.tell(asked, seconds=seconds, total=total, executed=executed)


main()
