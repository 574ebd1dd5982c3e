"""How long does it take to compose one job's configuration?

The same folder of YAML files and the same words on both sides, in a warm process: files read, defaults lists followed,
groups chosen, overrides applied, references resolved. Ours also keeps everything that each layer said about each leaf.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import harness
from harness import Case, Run, Side
from peers import Installed

FIFTIETH = 1 / 50
COUNTS = {"small": 50, "large": 30}
SIDES = {"stoker": "stoker_compose.py", "hydra-core": "hydra_compose.py"}


def main() -> int:
    bench = harness.start("compose", __doc__.splitlines()[0])
    present = {name: peer for name in SIDES if isinstance(peer := bench.peer(name), Installed)}
    for way, full in COUNTS.items():
        bench.say(f"compose: {way}")
        count = 2 if bench.quick else full
        sides = [
            Side(name=name, once=_once(peer, SIDES[name], Case(count=count, way=way), bench.home(f"{way}-{name}")))
            for name, peer in present.items()
        ]
        runs = bench.in_turns(sides, rounds=5)
        bench.compare(f"one job, {way}", "Hydra's compose", runs, theirs="hydra-core", at_most=FIFTIETH, per=count)
    return bench.finish()


def _once(peer: Installed, script: str, case: Case, home: Path) -> Callable[[], Run]:
    return lambda: harness.run_side(peer, script, case.arguments(home), executed=case.count)


if __name__ == "__main__":
    sys.exit(main())
