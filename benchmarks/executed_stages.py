"""What does it cost to execute one trivial stage and keep its result durably?

Stoker syncs bytes and record to disk before it announces a result; the peers are taken as they are and sync nothing.
The time is from arguments to results divided by the number of stages, imports and server starts not counted. Kedro's
cost per stage grows with the size of its pipeline, so it is asked at 100 stages (its better figure) and at 1,000.
"Inline" stages run in the engine's own process, as the peers' do; "forked" ones in a child each: no goal, to be
known.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import harness
from harness import Benchmark, Case, Row, Run, Side
from peers import Installed

SHAPES = ("fan", "chain")
ROUNDS = {"prefect": 3}


def main() -> int:
    bench = harness.start("executed_stages", __doc__.splitlines()[0])
    sizes = (5,) if bench.quick else (100, 1000)
    shapes = SHAPES[:1] if bench.quick else SHAPES
    for count in sizes:
        for shape in shapes:
            compare(bench, "kedro", "kedro_disk.py", Case(count=count, shape=shape), at_most=1.0)
    for shape in shapes:
        compare(bench, "prefect", "prefect_flow.py", Case(count=2 * sizes[0], shape=shape), at_most=0.3)
    forked(bench, sizes[0])
    return bench.finish()


def compare(bench: Benchmark, name: str, script: str, case: Case, *, at_most: float) -> None:
    """One size and shape: Stoker and a peer in turns, each run in an empty home."""
    sides = [
        _fresh(bench, peer, its_script, case)
        for its_name, its_script in ((name, script), ("stoker", "stoker_plan.py"))
        if isinstance(peer := bench.peer(its_name), Installed)
    ]
    bench.say(f"{name}: {case.count} stages, {case.shape}")
    runs = bench.in_turns(sides, rounds=7)
    question = f"per stage, {case.count:,} in a {case.shape}"
    bench.compare(question, name.capitalize(), runs, theirs=name, at_most=at_most, per=case.count)


def forked(bench: Benchmark, count: int) -> None:
    """What isolation costs: the same fan with a child process per stage, beside the inline one."""
    stoker = bench.peer("stoker")
    if isinstance(stoker, Installed):
        bench.say(f"stoker: {count} stages, inline and forked")
        sides = [_fresh(bench, stoker, "stoker_plan.py", Case(count=count, way=way)) for way in ("values", "forked")]
        runs = bench.in_turns(sides, rounds=5)
        bench.rows.append(
            Row(
                question=f"per stage, {count:,} in a fan, forked",
                against="inline",
                ours=harness.seconds_of(runs["stoker forked"], per=count),
                theirs=harness.seconds_of(runs["stoker values"], per=count),
            )
        )


def _fresh(bench: Benchmark, peer: Installed, script: str, case: Case) -> Side:
    """A side that starts with nothing every time."""

    def once() -> Run:
        home = bench.home(peer.name)
        settings = _settings(peer, home)
        return harness.run_side(peer, script, case.arguments(home), executed=case.count, environment=settings)

    return Side(name=f"{peer.name} {case.way}".strip(), once=once, rounds=ROUNDS.get(peer.name))


def _settings(peer: Installed, home: Path) -> Mapping[str, str]:
    if peer.name != "prefect":
        return {}
    return {"PREFECT_HOME": str(home), "PREFECT_LOGGING_LEVEL": "ERROR", "DO_NOT_TRACK": "1"}


if __name__ == "__main__":
    sys.exit(main())
