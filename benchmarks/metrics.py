"""What does one logged number cost the thread that trains?

Three numbers per step, logged as quickly as the loop goes; the time of the loop, divided by the numbers. Threads that
write in the background take their turns within it, so what they cost is in the figure. Afterwards each side reads its
files back: a number that did not get there stops the benchmark.
"""

from __future__ import annotations

import sys

import harness
from harness import Case, Figure, Row, Side
from peers import Installed, Peer

SCALARS_PER_STEP = 3
LIMIT_S = 5e-6


def main() -> int:
    bench = harness.start("metrics", __doc__.splitlines()[0])
    stoker, tensorboard, mlflow = (bench.peer(name) for name in ("stoker", "tensorboard", "mlflow-skinny"))
    # MLflow opens and closes a file per number, so it is asked for fewer; its cost does not depend on how many.
    steps, few = (100, 2) if bench.quick else (20_000, 500)
    folder = bench.home("runs")
    cases = [
        ("stoker", stoker, "stoker_scalars.py", Case(count=steps, way="three"), SCALARS_PER_STEP),
        ("stoker one", stoker, "stoker_scalars.py", Case(count=steps, way="one"), 1),
        ("summary", tensorboard, "tensorboard_scalars.py", Case(count=steps // 4, way="summary"), SCALARS_PER_STEP),
        ("events", tensorboard, "tensorboard_scalars.py", Case(count=steps // 4, way="events"), SCALARS_PER_STEP),
        ("mlflow", mlflow, "mlflow_scalars.py", Case(count=few), SCALARS_PER_STEP),
    ]
    sides, scalars = [], {}
    for name, peer, script, case, per_step in cases:
        scalars[name] = case.count * per_step
        if isinstance(peer, Installed):
            arguments = case.arguments(folder)
            sides.append(_side(name, peer, script, arguments, scalars[name]))
    runs = bench.in_turns(sides, rounds=7)
    figures = {name: harness.seconds_of(taken, per=scalars[name]) for name, taken in runs.items()}
    limit = Figure.of([LIMIT_S])
    ours = figures.get("stoker")
    for question, measured, against, theirs, at_most, needs in (
        ("a number, three per step", ours, "5 µs", limit, 1.0, ()),
        ("a number, one per step", figures.get("stoker one"), "5 µs", limit, 1.0, ()),
        ("a number", ours, "SummaryWriter", figures.get("summary"), 0.1, ("tensorboard",)),
        ("a number", ours, "EventFileWriter by hand", figures.get("events"), 0.1, ("tensorboard",)),
        ("a number", ours, "MLflow's file store", figures.get("mlflow"), 0.1, ("mlflow-skinny",)),
    ):
        missing = bench.missing("stoker", *needs)
        bench.rows.append(
            Row(question=question, against=against, ours=measured, theirs=theirs, at_most=at_most, why_missing=missing)
        )
    return bench.finish()


def _side(name: str, peer: Peer, script: str, arguments: list[str], scalars: int) -> Side:
    assert isinstance(peer, Installed)
    allowed = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    return Side(
        name=name, once=lambda: harness.run_side(peer, script, arguments, executed=scalars, environment=allowed)
    )


if __name__ == "__main__":
    sys.exit(main())
