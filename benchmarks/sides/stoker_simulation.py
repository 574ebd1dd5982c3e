"""Stoker's placement rules on a fleet and a queue of their own clock; CPU time, since the goal is for one core.

`--way full` runs a whole queue, `--way steady` keeps a backlog of `--waiting` jobs on a busy fleet (one comes whenever
one starts) and measures `--count` decisions of that. `executed` counts decisions. The collector of cyclic garbage is
off: there is none, and it would look through every job again and again.

`--way makespan` prints an object about this scheduler and system B's rule instead. `--way arrivals` lets jobs of
several users come over a time and prints an object about waiting times, beside first come, first served; `--way shares`
one about the users' shares.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Sequence

import greedy_b
from first_come import FirstComeRun

from stoker.scheduler.fit import shape_of
from stoker.scheduler.leases import dominant_part
from stoker.scheduler.machine_index import totals_of
from stoker.scheduler.offers import offer_of
from stoker.scheduler.simulation.simulation_report import lower_bound
from stoker.scheduler.simulation.simulator import Simulator
from stoker.scheduler.simulation.workload import make_batch, make_nodes, make_shapes, mixes

SHAPES = 200
USERS = 5
"""Of jobs that arrive over time: the second has 0.66 as many as the first, the fifth 0.38."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("full", "steady", "makespan", "arrivals", "shares"), required=True)
    parser.add_argument("--mix", default="everything")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--count", type=int, default=0, help="0: as many as the mix says")
    parser.add_argument("--seed", type=int, default=0, help="0: the mix's own")
    parser.add_argument("--load", type=float, default=1.0, help="of arrivals: part of what the fleet can do")
    parser.add_argument("--waiting", type=int, default=0)
    asked = parser.parse_args()
    if asked.way == "makespan":
        makespan(asked)
    elif asked.way in ("arrivals", "shares"):
        arrivals(asked)
    else:
        pace(asked)


def pace(asked: argparse.Namespace) -> None:
    mix = mixes()[asked.mix]
    offers = [offer_of(node) for node in make_nodes(mix, asked.nodes, mix.seed)]
    shapes = make_shapes(mix, SHAPES, mix.seed)
    if asked.way == "full":
        run = Simulator(offers, make_batch(mix, shapes, asked.count, mix.seed, is_equal=True))
    else:
        # What fills the fleet comes first, then a quarter to get away from the beginning, then what is measured.
        jobs = 12 * asked.nodes + asked.waiting + asked.count * 2
        run = Simulator(offers, make_batch(mix, shapes, jobs, mix.seed, is_equal=True), backlog=asked.waiting)
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
    seed = asked.seed or mix.seed
    jobs = asked.count or asked.nodes * mix.jobs_per_node
    nodes = make_nodes(mix, asked.nodes, seed)
    offers = [offer_of(node) for node in nodes]
    batch = make_batch(mix, make_shapes(mix, SHAPES, seed), jobs, seed, is_equal=True)
    run = Simulator(offers, batch)
    run.queue()
    run.fill()
    run.go()
    assert run.decisions == jobs, f"{jobs - run.decisions} jobs were never started"
    bound = lower_bound(batch, run.options, run.counts)
    greedy_s = greedy_b.GreedyRun(nodes, offers, batch).go()
    tell = {
        "jobs": jobs,
        "makespan_s": max(run.log.end_s),
        "bound_s": bound.seconds,
        "greedy_s": greedy_s,
        "defects": greedy_b.defects(nodes, batch),
    }
    print(json.dumps(tell))


def arrivals(asked: argparse.Namespace) -> None:
    """Let jobs of several users come evenly over the time in which the fleet could do `load` times as many."""
    mix = mixes()[asked.mix]
    seed = asked.seed or mix.seed
    jobs = asked.count or asked.nodes * mix.jobs_per_node
    offers = [offer_of(node) for node in make_nodes(mix, asked.nodes, seed)]
    shapes = make_shapes(mix, SHAPES, seed)
    at_once = make_batch(mix, shapes, jobs, seed, is_equal=True)
    empty = Simulator(offers, at_once)
    span_s = lower_bound(at_once, empty.options, empty.counts).area_s / asked.load
    batch = make_batch(mix, shapes, jobs, seed, is_equal=True, users=USERS, span_s=span_s)
    run = Simulator(offers, batch)
    run.queue()
    run.fill()
    run.go()
    assert run.decisions == jobs, f"{jobs - run.decisions} jobs were never started"
    if asked.way == "shares":
        print(json.dumps({"jobs": jobs, "shares": shares_of(run)}))
        return
    baseline = FirstComeRun(offers, batch)
    baseline.go()
    tell = {
        "jobs": jobs,
        "wait_s": _mean_wait_s(run.log.start_s, batch.come_s),
        "first_come_wait_s": _mean_wait_s(baseline.start_s, batch.come_s),
        "late_s": _late_wait_s(run.log.start_s, batch.come_s),
        "first_come_late_s": _late_wait_s(baseline.start_s, batch.come_s),
        "stay_s": _mean_wait_s(run.log.end_s, batch.come_s),
        "first_come_stay_s": _mean_wait_s(baseline.end_s, batch.come_s),
    }
    print(json.dumps(tell))


def _mean_wait_s(until_s: Sequence[float], since_s: Sequence[float]) -> float:
    return sum(until - since for until, since in zip(until_s, since_s, strict=True)) / len(since_s)


def _late_wait_s(until_s: Sequence[float], since_s: Sequence[float]) -> float:
    """Return the wait that one job of a hundred exceeds."""
    waits_s = sorted(until - since for until, since in zip(until_s, since_s, strict=True))
    return waits_s[len(waits_s) * 99 // 100]


def shares_of(run: Simulator) -> list[float]:
    """Return for each user what its running jobs had of the fleet, beside its fair share, while it had jobs waiting.

    What a job has is the largest of its parts of all devices, cores and RAM. The fair share of a user is an equal part
    of what all users had at that moment, among the users with jobs that wait or run.
    """
    log, batch, totals = run.log, run.batch, totals_of(run.offers)
    shapes = [shape_of(shape.wanted) for shape in batch.shapes]
    changes: list[tuple[float, int, int, int, float]] = []
    for job in range(len(batch)):
        devices = log.devices[job] or ()
        one = shapes[batch.shape_of[job]]
        part = dominant_part(one, len(devices), totals)
        user = batch.user_of[job]
        changes.append((log.come_s[job], user, 1, 0, 0.0))
        changes.append((log.start_s[job], user, -1, 1, part))
        changes.append((log.end_s[job], user, 0, -1, -part))
    waiting, running, has = [0] * batch.users, [0] * batch.users, [0.0] * batch.users
    had_s, fair_s = [0.0] * batch.users, [0.0] * batch.users
    before_s = 0.0
    for at_s, user, waits, runs, part in sorted(changes):
        if at_s > before_s:
            active = sum(1 for one in range(batch.users) if waiting[one] or running[one])
            for one in range(batch.users):
                if waiting[one]:
                    had_s[one] += has[one] * (at_s - before_s)
                    fair_s[one] += sum(has) / active * (at_s - before_s)
            before_s = at_s
        waiting[user] += waits
        running[user] += runs
        has[user] += part
    return [had / fair if fair else 1.0 for had, fair in zip(had_s, fair_s, strict=True)]


main()
