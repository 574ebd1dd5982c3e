"""Stoker's placement rules on a fleet and a queue of their own clock; CPU time, since the goal is for one core.

`--way full` runs a whole queue, `--way steady` keeps a backlog of `--waiting` jobs on a busy fleet (one comes whenever
one starts) and measures `--count` decisions of that. `executed` counts decisions. `--way makespan` prints an object
about both rules instead. The collector of cyclic garbage is off: there is none, and it would look through every job
again and again.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time

import greedy_b

from stoker.scheduler.offers import offer_of
from stoker.scheduler.simulation.bound import lower_bound
from stoker.scheduler.simulation.run import Run
from stoker.scheduler.simulation.workload import make_batch, make_nodes, make_shapes, mixes

SHAPES = 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("full", "steady", "makespan"), required=True)
    parser.add_argument("--mix", default="everything")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--count", type=int, default=0, help="for makespans 0: as many as the mix says")
    parser.add_argument("--waiting", type=int, default=0)
    asked = parser.parse_args()
    if asked.way == "makespan":
        makespan(asked)
    else:
        pace(asked)


def pace(asked: argparse.Namespace) -> None:
    mix = mixes()[asked.mix]
    offers = [offer_of(node) for node in make_nodes(mix, asked.nodes, mix.seed)]
    shapes = make_shapes(mix, SHAPES, mix.seed)
    if asked.way == "full":
        run = Run(offers, make_batch(mix, shapes, asked.count, mix.seed, is_equal=True))
    else:
        # What fills the fleet comes first, then a quarter to get away from the beginning, then what is measured.
        jobs = 12 * asked.nodes + asked.waiting + asked.count * 2
        run = Run(offers, make_batch(mix, shapes, jobs, mix.seed, is_equal=True), backlog=asked.waiting)
    run.queue()
    gc.collect()
    gc.freeze()
    gc.disable()
    if asked.way == "steady":
        run.fill()
        run.go(until=run.decisions + asked.count // 2)
    before, wall, used = run.decisions, time.perf_counter(), time.process_time()
    if asked.way == "full":
        run.fill()
        run.go()
    else:
        run.go(until=before + asked.count)
    used, wall = time.process_time() - used, time.perf_counter() - wall
    decided = run.decisions - before
    assert decided >= asked.count, decided
    tell = {
        "seconds": used * asked.count / decided,
        "executed": asked.count,
        "cpu_seconds": used,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(tell))


def makespan(asked: argparse.Namespace) -> None:
    greedy_b.check_fixed_points()
    mix = mixes()[asked.mix]
    jobs = asked.count or asked.nodes * mix.jobs_per_node
    nodes = make_nodes(mix, asked.nodes, mix.seed)
    offers = [offer_of(node) for node in nodes]
    batch = make_batch(mix, make_shapes(mix, SHAPES, mix.seed), jobs, mix.seed, is_equal=True)
    run = Run(offers, batch)
    run.queue()
    run.fill()
    run.go()
    assert run.decisions == jobs, f"{jobs - run.decisions} jobs were never started"
    bound = lower_bound(batch, [line.ways for line in run.lines], len(run.sorts))
    greedy_s = greedy_b.GreedyRun(nodes, offers, batch).go()
    tell = {
        "jobs": jobs,
        "makespan_s": max(run.log.end_s),
        "bound_s": bound.seconds,
        "greedy_s": greedy_s,
        "defects": greedy_b.defects(nodes, batch),
    }
    print(json.dumps(tell))


main()
