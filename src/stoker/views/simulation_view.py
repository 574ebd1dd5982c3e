"""A simulation of a fleet as screens get it: when all is done, as it is and with other machines."""

from __future__ import annotations

from collections.abc import Callable

from stoker.core.clock import Clock
from stoker.core.errors import NotFound, TooLarge
from stoker.core.text import counted, did_you_mean
from stoker.protocol.screen_messages import (
    PriorityWaits,
    SimulatedJob,
    SimulatedStart,
    SimulateRequest,
    SimulationForecast,
    SimulationView,
)
from stoker.protocol.view_messages import ScheduleView
from stoker.scheduler.offers import NodeOffer
from stoker.scheduler.simulation.simulation_report import SimulationResult, simulate_from
from stoker.scheduler.simulation.simulator import Disruptions, Simulator
from stoker.scheduler.simulation.what_if import has_guesses, kinds_to_add, machines_like, rows_named, start_of
from stoker.scheduler.snapshot import Snapshot, snapshot_from_dict

MOST_JOBS = 20_000
"""Pending jobs that are simulated besides those with numbers."""
MOST_ADDED = 1000
LONGEST_S = 6.0
"""For both runs: forecasts of others wait meanwhile."""
_LISTED = 200
_KINDS = 200

_Run = tuple[Simulator, SimulationResult]


def simulate_change(view: ScheduleView, request: SimulateRequest, clock: Clock) -> SimulationView:
    """Simulate a schedule as it is, and with the machines that a request adds and removes.

    Raises `NotFound` for an unknown machine, and `TooLarge` if it takes too long.
    """
    snapshot = snapshot_from_dict(view.schedule)
    added = _added(request, snapshot)
    _check_removed(request, snapshot)
    heed = _limited(clock)
    now = simulate_from(snapshot, clock, most=MOST_JOBS, heed=heed)
    changed = None
    if added or request.remove or request.fail:
        leaves_s = dict.fromkeys(request.remove, request.remove_after_s)
        disruptions = Disruptions(leaves_s=leaves_s, fail=request.fail) if leaves_s or request.fail else None
        changed = simulate_from(snapshot, clock, added=added, disruptions=disruptions, most=MOST_JOBS, heed=heed)
    count = snapshot.ready_count
    return SimulationView(
        at_s=snapshot.now_s,
        now=_forecast(now, snapshot, len(snapshot.machines)),
        changed=None
        if changed is None
        else _forecast(changed, snapshot, len(snapshot.machines) + len(added) - len(set(request.remove))),
        added=tuple(offer.node for offer in added),
        removed=tuple(dict.fromkeys(request.remove)),
        blocked=view.blocked,
        jobs=_jobs(now, changed, view, snapshot),
        kinds=tuple(kinds_to_add(snapshot)[:_KINDS]),
        note=f"at most {MOST_JOBS:,} of {counted(count, 'pending job')} are simulated" if count > MOST_JOBS else "",
    )


def _added(request: SimulateRequest, snapshot: Snapshot) -> list[NodeOffer]:
    found: list[NodeOffer] = []
    for one in request.add:
        more = machines_like(one.like, one.count, snapshot, len(found) + 1)
        if more is None:
            hint = did_you_mean(one.like, kinds_to_add(snapshot)) or "name a machine of the fleet, or such as rtx-4090"
            raise NotFound(f"unknown kind of machine {one.like!r}", hint=hint)
        found += more
        if len(found) > MOST_ADDED:
            raise TooLarge(f"more than {MOST_ADDED:,} machines to add", hint="add fewer")
    return found


def _check_removed(request: SimulateRequest, snapshot: Snapshot) -> None:
    names = [one.offer.node for one in snapshot.machines]
    for name in request.remove:
        if name not in names:
            hint = did_you_mean(name, names) or "`stoker machines` lists them"
            raise NotFound(f"there is no machine {name!r} to remove", hint=hint)


def _limited(clock: Clock) -> Callable[[int], None]:
    until_s = clock.monotonic_s() + LONGEST_S

    def heed(_decisions: int) -> None:
        if clock.monotonic_s() > until_s:
            message = f"this simulation takes longer than {LONGEST_S:.0f} s"
            raise TooLarge(message, hint="stoker admin simulate --live, which may take any time")

    return heed


def _forecast(run: _Run, snapshot: Snapshot, machines: int) -> SimulationForecast:
    simulator, result = run
    unfinished = simulator.scheduler.ready.count
    return SimulationForecast(
        done_s=None if unfinished else snapshot.now_s + result.report.makespan_s,
        machines=machines,
        jobs=result.report.jobs,
        unfinished=unfinished,
        omitted=result.report.not_placeable,
        is_guess=has_guesses(simulator, snapshot),
        waits=tuple(
            PriorityWaits(
                priority=waits.priority,
                jobs=waits.jobs,
                median_s=waits.median_s,
                p95_s=waits.p95_s,
                max_s=waits.max_s,
            )
            for waits in result.report.waits
        ),
        step_s=result.report.step_s,
        waiting=result.report.waiting,
        failures=result.report.failures,
    )


def _jobs(now: _Run, changed: _Run | None, view: ScheduleView, snapshot: Snapshot) -> tuple[SimulatedJob, ...]:
    found = [
        SimulatedJob(
            job=view.names[str(now[0].batch.numbers[row])],
            now=_start(now[0], row, snapshot),
            changed=None if changed is None else _start(changed[0], row, snapshot),
        )
        for row in rows_named(now[0], view.names)
    ]
    found.sort(key=lambda one: (one.now.starts_s is None, one.now.starts_s or 0.0))
    return tuple(found[:_LISTED])


def _start(run: Simulator, row: int, snapshot: Snapshot) -> SimulatedStart:
    found = start_of(run, row, snapshot.now_s)
    return SimulatedStart(**{**found, "machine": found["machine"] or ""})
