"""How good are the scheduler's decisions with seeds that nobody tuned on, and how fair when jobs arrive over time?

Five mixes of machines and jobs (`src/stoker/scheduler/simulation/mixes.toml`), each with ten seeds. Makespans of one
user's jobs of one priority, beside a bound that no schedule can beat and beside system B's greedy rule on the same
queue (`sides/greedy_b.py`): with queues as long as the mix says, and with 50 jobs per machine. Then jobs of five users
that arrive over time: how long they wait, beside first come, first served, with backfill (`sides/first_come.py`), and
what each user had of the fleet while it had jobs waiting, beside an equal share of what all had. The worst seed, and
the worst user of all seeds, decides; all seeds are listed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import harness
from harness import Benchmark, Figure, Row
from peers import Installed
from placement import MIXES, SCRIPT

# Drawn at random once, after the rules were written. Whoever tunes a rule draws new ones.
SEEDS = (
    3262281509,
    3848451648,
    4074384578,
    174037647,
    2382383050,
    1036669543,
    2125131862,
    186484331,
    3456676800,
    3358469895,
)
SHORT_QUEUE = 50
"""Jobs per machine."""
LOADS = ((0.7, None), (0.9, 0.8))
"""Work that arrives, beside what the fleet can do in that time; and the goal. At a low load neither waits much."""
OVERLOAD = 2.0
"""So much that even the user with the fewest jobs wants more than its share."""


def main() -> int:
    bench = harness.start("schedule_quality", __doc__.splitlines()[0])
    stoker = bench.peer("stoker")
    if isinstance(stoker, Installed):
        bench.verdicts = [["queue", "beside the first", "beside the second"]]
        nodes = 20 if bench.quick else 100
        makespans(bench, stoker, nodes)
        arrivals(bench, stoker, nodes)
        shares(bench, stoker, nodes)
    return bench.finish()


def makespans(bench: Benchmark, stoker: Installed, nodes: int) -> None:
    """Every mix with every seed, in both lengths."""
    lengths = ((0, 1.1), (SHORT_QUEUE, 1.2))
    for per_machine, at_most in lengths[:1] if bench.quick else lengths:
        words = f"{per_machine} jobs per machine" if per_machine else "queue of the mix's length"
        count = 2 * nodes if bench.quick else per_machine * nodes
        for mix, told in _all(bench, stoker, "makespan", nodes, count):
            by_bound = [one["makespan_s"] / one["bound_s"] for one in told]
            by_greedy = [one["makespan_s"] / one["greedy_s"] for one in told]
            name = f"{mix}, {words}"
            _judge(bench, f"makespan ÷ lower bound, {name}", "the bound", by_bound, at_most)
            _judge(bench, f"makespan ÷ that of B's greedy rule, {name}", "B's rule", by_greedy, 1.0)
            bench.verdicts.append([f"makespan, {name}: bound, B's rule", _listed(by_bound), _listed(by_greedy)])


def arrivals(bench: Benchmark, stoker: Installed, nodes: int) -> None:
    """Jobs of five users that come evenly over a time."""
    count = 2 * nodes if bench.quick else SHORT_QUEUE * nodes
    for load, at_most in LOADS[:1] if bench.quick else LOADS:
        for mix, told in _all(bench, stoker, "arrivals", nodes, count, f"--load={load}"):
            waits = [_beside(one["wait_s"], one["first_come_wait_s"]) for one in told]
            stays = [_beside(one["stay_s"], one["first_come_stay_s"]) for one in told]
            late = [_beside(one["late_s"], one["first_come_late_s"]) for one in told]
            name = f"{mix}, arrivals at a load of {load:g}"
            _judge(bench, f"mean wait ÷ first come, first served, {name}", "that", waits, at_most)
            _judge(bench, f"wait of the last of a hundred ÷ the same, {name}", "that", late, None)
            _judge(bench, f"mean time to the end ÷ the same, {name}", "that", stays, None)
            bench.verdicts.append([f"{name}: mean waits, last of a hundred", _listed(waits), _listed(late)])


def shares(bench: Benchmark, stoker: Installed, nodes: int) -> None:
    """Jobs of five users, each of whom wants more than an equal share."""
    count = 2 * nodes if bench.quick else SHORT_QUEUE * nodes
    for mix, told in _all(bench, stoker, "shares", nodes, count, f"--load={OVERLOAD}"):
        worst = [min(one["shares"]) for one in told]
        best = [max(one["shares"]) for one in told]
        # A share of at least 0.8 is judged as its reciprocal.
        inverse = [1 / one if one else float("inf") for one in worst]
        name = f"{mix}, arrivals at a load of {OVERLOAD:g}"
        _judge(bench, f"fair share ÷ share of the worst of five users, {name}", "one", inverse, 1 / 0.8)
        bench.verdicts.append([f"shares, {name}: worst user, best user", _listed(worst), _listed(best)])


def _all(
    bench: Benchmark, stoker: Installed, way: str, nodes: int, count: int, *more: str
) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """Yield for each mix what every seed gave. Time is not measured here, so as many run at once as there are cores."""
    mixes, seeds = (MIXES[:1], SEEDS[:1]) if bench.quick else (MIXES, SEEDS)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for mix in mixes:
            bench.say(f"{way}, {mix}, {len(seeds)} seeds, {count or 'all'} jobs {' '.join(more)}")
            words = ["--way", way, "--mix", mix, "--nodes", str(nodes), "--count", str(count), *more]
            yield mix, list(threads.map(lambda seed, words=words: _ask(stoker, [*words, "--seed", str(seed)]), seeds))


def _ask(stoker: Installed, words: Sequence[str]) -> dict[str, Any]:
    command = [str(stoker.python), str(harness.SIDES / SCRIPT), *words]
    done = subprocess.run(command, env=harness.environment_with(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} failed with exit {done.returncode}:\n{done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def _judge(bench: Benchmark, question: str, against: str, values: Sequence[float], at_most: float | None) -> None:
    """Add a row that the worst value decides."""
    ours = Figure(best=round(max(values), 4), median=round(statistics.median(values), 4), runs=len(values))
    one = Figure(best=1.0, median=1.0, runs=1)
    bench.rows.append(Row(question=question, against=against, unit="", ours=ours, theirs=one, at_most=at_most))


def _beside(ours_s: float, theirs_s: float) -> float:
    """Compare times; less than a second counts as a second."""
    return max(ours_s, 1.0) / max(theirs_s, 1.0)


def _listed(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
