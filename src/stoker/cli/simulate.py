"""`stoker admin simulate`: run the scheduler on generated machines and jobs, or on the fleet's, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, duration, whole
from stoker.core.text import counted

if TYPE_CHECKING:
    from stoker.core.pool import Allocation, PoolState
    from stoker.protocol.client import FleetClient
    from stoker.protocol.view_messages import ScheduleView
    from stoker.scheduler.offers import NodeOffer
    from stoker.scheduler.simulation.elastic_simulator import PoolPlan
    from stoker.scheduler.simulation.simulation_report import SimulationRequest, SimulationResult
    from stoker.scheduler.simulation.simulator import Disruptions, Simulator
    from stoker.scheduler.snapshot import Snapshot


_MIXES = ("desktop", "datacentre", "edge", "adapters", "everything")
"""Repeated here, so that help reads no file; a test compares both."""
_NODES, _JOBS, _SHAPES = 200, 10_000, 200
_MOST = {"jobs": 10_000_000, "nodes": 100_000, "shapes": 4096, "users": 10_000}
_MOST_FAILING = 0.9
_MOST_ARRIVE_S = 365 * 86400.0
_INVENTED = ("mix", "nodes", "jobs", "shapes", "cluster", "equal", "arrive", "users", "plot")
"""Options that --live excludes."""


def part(text: str) -> float:
    """Parse a fraction such as `0.05`."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= _MOST_FAILING:
        message = f"{text!r} is not a number from 0 to {_MOST_FAILING:g}"
        raise ValueError(message)
    return found


GRAMMAR = Grammar(
    "admin simulate",
    about=(
        "Run the scheduler on machines and jobs generated from a seed, in simulated time: total time and its lower "
        "bound, use of the machines, waiting times. The same seed gives the same decisions. With --live, start from "
        "the coordinator's machines, jobs and measured durations: when will all jobs be done, also with other "
        "machines. If the cluster file or the coordinator has pools, simulate without and with them: when how many "
        "of their machines would start, their hours, and how long jobs wait. Nothing is started."
    ),
    options=(
        Option("--mix", value="NAME", help=f"kind of machines and jobs: {', '.join(_MIXES)} (default: {_MIXES[-1]})"),
        Option("--nodes", value="N", read=whole(1), help=f"number of machines (default: {_NODES})"),
        Option("--jobs", value="N", read=whole(1), help=f"number of jobs (default: {_JOBS:,})"),
        Option("--shapes", value="N", read=whole(1), help=f"number of different job shapes (default: {_SHAPES})"),
        Option("--seed", value="N", read=whole(0), help="seed of the generator"),
        Option("--cluster", value="FILE", help="use the machines and pools of a cluster file"),
        Option(
            "--start-delay",
            value="SPAN",
            read=duration,
            help="with pools: time from a request until its worker serves (default: 1m)",
        ),
        Option("--equal", help="give all jobs the same priority"),
        Option(
            "--arrive", value="SPAN", read=duration, help="submit the jobs over this time (default: all at the start)"
        ),
        Option(
            "--users", value="N", read=whole(1), help="number of users, with unequal shares of the jobs (default: 1)"
        ),
        Option(
            "--fail",
            value="P",
            read=part,
            help="fraction of attempts that fail and are retried, up to 0.9 (default: 0)",
        ),
        Option(
            "--leave",
            value="N",
            help="number of machines that leave midway; with --live NAME[:WHEN], such as desk:2h (default: now)",
        ),
        Option("--live", help="start from the coordinator's machines and jobs"),
        Option(
            "--add",
            value="MACHINES",
            help="with --live: also simulate more machines, such as rtx-4090:2, or desk:2 for two more like desk",
        ),
        AT,
        Option("--plot", value="FILE.svg", help="write a chart of machine use over time"),
    ),
    examples=(
        "stoker admin simulate",
        "stoker admin simulate --mix adapters --plot timeline.svg",
        "stoker admin simulate --cluster lab.yaml --jobs 2000",
        "stoker admin simulate --nodes 10000 --jobs 1000000 --json",
        "stoker admin simulate --arrive 8h --users 5 --fail 0.05 --leave 3",
        "stoker admin simulate --live --add rtx-4090:2",
        "stoker admin simulate --cluster pools.yaml --jobs 500 --start-delay 20m",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Simulate and print the result."""
    if given["live"]:
        _refuse(given, _INVENTED, "--live simulates the coordinator's machines and jobs")
        return simulate_live(call, given)
    _refuse(given, ("add", "at"), "needs --live")
    from stoker.cli.screens import show_progress
    from stoker.core.frozen import changed
    from stoker.scheduler.simulation.simulation_report import simulate
    from stoker.views.simulation_lines import pool_use_lines, report_lines, with_pools_lines

    request, machines = _request(call, given)
    if given["cluster"]:
        call.out.note(f"simulating {counted(request.jobs, 'generated job')} on {machines}; --jobs N changes the number")
    with show_progress(call, "simulating", request.jobs) as count:
        fleet = request if request.pools is None or not request.offers else changed(request, pools=None)
        simulated = simulate(fleet, call.parts.clock, count.reach)
        with_pools = None if fleet is request else simulate(request, call.parts.clock, lambda _done: count.reach(0))
    report = simulated.report
    plot = _draw(call, given["plot"], simulated.report, request) if given["plot"] else ""
    call.out.object(
        {
            "mix": request.mix.name,
            "seed": request.seed,
            "decisions_per_s": simulated.decisions_per_s,
            "seconds": simulated.seconds,
            **report.to_dict(),
            **({"plot": plot} if plot else {}),
            **_pools_as_json(with_pools or simulated),
        }
    )
    call.out.line(
        f"{machines}, {counted(len(report.uses), 'kind')}; "
        f"{counted(report.jobs, 'job')} of {counted(report.shapes, 'shape')} "
        f"({request.mix.name}: {request.mix.about}; seed {request.seed})"
    )
    call.out.lines(report_lines(simulated, call.out.columns))
    if with_pools is not None:
        call.out.lines(with_pools_lines(report, with_pools.report, call.out.columns))
    call.out.lines(pool_use_lines(with_pools or simulated, call.out.columns))
    if plot:
        call.out.line(f"\ntimeline: {given['plot']}")
    return 0


def _request(call: CommandContext, given: dict[str, Any]) -> tuple[SimulationRequest, str]:
    from stoker.core.errors import Usage
    from stoker.core.text import did_you_mean
    from stoker.scheduler.simulation.simulation_report import SimulationRequest
    from stoker.scheduler.simulation.workload import mixes

    name = given["mix"] or _MIXES[-1]
    mix = mixes().get(name)
    if mix is None:
        raise Usage(f"unknown mix {name!r}", hint=did_you_mean(name, _MIXES) or f"use one of {', '.join(_MIXES)}")
    for option, most in _MOST.items():
        if (given[option] or 0) > most:
            raise Usage(f"--{option} {given[option]}: the maximum is {most:,}", hint="simulate a smaller part")
    if given["cluster"] and given["nodes"]:
        raise Usage("--nodes and --cluster exclude each other", hint="omit one of them")
    if (given["arrive"] or 0.0) > _MOST_ARRIVE_S:
        raise Usage("--arrive: the maximum is a year", hint="simulate a smaller part")
    leave = given["leave"] or "0"
    if not (leave.isascii() and leave.isdigit()):
        raise Usage(f"--leave {leave}: not a number of machines", hint="names need --live")
    offers, pools = _cluster_of(call, given) if given["cluster"] else (None, None)
    if given["start_delay"] is not None and pools is None:
        raise Usage("--start-delay: there are no pools", hint="name a cluster file with pools, or use --live")
    request = SimulationRequest(
        mix=mix,
        seed=mix.seed if given["seed"] is None else given["seed"],
        nodes=given["nodes"] or _NODES,
        jobs=given["jobs"] or _JOBS,
        shapes=given["shapes"] or _SHAPES,
        is_equal=given["equal"],
        offers=offers,
        pools=pools,
        users=given["users"] or 1,
        span_s=given["arrive"] or 0.0,
        fail=given["fail"] or 0.0,
        leave=int(leave),
    )
    if offers is None:
        return request, counted(request.nodes, "machine")
    more = f" and {counted(len(pools.pools), 'pool')}" if pools is not None else ""
    return request, f"{counted(len(offers), 'machine')}{more} of {given['cluster']}"


def _refuse(given: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    from stoker.core.errors import Usage

    for name in names:
        if given[name]:
            raise Usage(f"--{name}: {why}", hint=f"omit --{name}")


def _cluster_of(call: CommandContext, given: dict[str, Any]) -> tuple[tuple[NodeOffer, ...], PoolPlan | None]:
    """Return the machines and the pools of a cluster file."""
    from stoker.config.cluster_file import read_cluster
    from stoker.core.errors import Usage
    from stoker.core.pool import PoolState
    from stoker.scheduler.offers import offer_of

    cluster = read_cluster(given["cluster"], call.path(given["cluster"]))
    if not cluster.nodes and not cluster.pools:
        raise Usage(
            f"{given['cluster']} has neither machines nor pools", hint="add nodes: or pools:, or omit --cluster"
        )
    pools = tuple(PoolState(pool=pool) for pool in cluster.pools)
    return tuple(offer_of(node) for node in cluster.nodes), _plan_of(pools, given) if pools else None


def _plan_of(
    pools: tuple[PoolState, ...], given: dict[str, Any], allocations: tuple[Allocation, ...] = (), began_s: float = 0.0
) -> PoolPlan:
    from stoker.core.errors import Usage
    from stoker.scheduler.simulation.elastic_simulator import START_DELAY_S, PoolPlan

    if sum(state.pool.max for state in pools) > MOST_ADDED:
        raise Usage(f"the pools have more than {MOST_ADDED:,} machines", hint="lower max")
    delay_s = START_DELAY_S if given["start_delay"] is None else given["start_delay"]
    return PoolPlan(pools=pools, allocations=allocations, start_delay_s=delay_s, began_s=began_s)


def _pools_as_json(simulated: SimulationResult) -> dict[str, Any]:
    """Return what a simulation with pools adds; nothing without pools."""
    if not simulated.pools:
        return {}
    pools = [one.to_dict() for one in simulated.pools]
    return {"with_pools": {"unfinished": simulated.unfinished, **simulated.report.to_dict(), "pools": pools}}


def _draw(call: CommandContext, file: str, report: Any, request: SimulationRequest) -> str:
    from stoker.host.durable import write_file
    from stoker.views.html_pages import to_svg
    from stoker.views.simulation_lines import timeline_chart

    chart = timeline_chart(report, f"{request.mix.name}, seed {request.seed}")
    path = call.path(file)
    write_file(path, to_svg(chart).encode())
    return path


# `stoker admin simulate --live`: the coordinator's machines and queue, unchanged and with changes.

MOST_JOBS = 1_000_000
MOST_ADDED = 10_000
_LISTED = 20


def simulate_live(call: CommandContext, given: dict[str, Any]) -> int:
    """Simulate the coordinator's schedule and print when all jobs are done."""
    from stoker.cli.screens import show_progress
    from stoker.scheduler.simulation.simulation_report import simulate_from
    from stoker.scheduler.simulation.what_if import has_guesses
    from stoker.scheduler.snapshot import snapshot_from_dict
    from stoker.views.simulation_lines import live_lines, pool_use_lines, with_pools_lines

    client = call.lookup.client(given["at"])
    view = client.schedule()
    snapshot = snapshot_from_dict(view.schedule)
    added = machines_of(given["add"], snapshot)
    disruptions = _disruptions(snapshot, given)
    plan = _live_plan(client, given)
    clock, most = call.parts.clock, MOST_JOBS
    with show_progress(call, "simulating", snapshot.ready_count) as count:
        now = simulate_from(snapshot, clock, most=most, heed=count.reach)
        changed = None
        if added or disruptions is not None:
            changed = simulate_from(
                snapshot, clock, added=added, disruptions=disruptions, most=most, heed=lambda _done: count.reach(0)
            )
        with_pools = None
        if plan is not None:
            with_pools = simulate_from(snapshot, clock, pools=plan, most=most, heed=lambda _done: count.reach(0))
    jobs = _starts(now, changed, view, snapshot)
    call.out.object(
        {
            "live": True,
            "at_s": snapshot.now_s,
            "blocked": view.blocked,
            "now": _run_as_json(now, snapshot),
            "changed": None if changed is None else _run_as_json(changed, snapshot),
            "added": [offer.node for offer in added],
            "jobs": jobs,
            **({} if with_pools is None else _pools_as_json(with_pools[1])),
        }
    )
    call.out.lines(
        live_lines(
            (now[1].report, now[0].scheduler.ready.count),
            None if changed is None else (changed[1].report, changed[0].scheduler.ready.count),
            jobs[:_LISTED],
            at_s=snapshot.now_s,
            blocked=view.blocked,
            is_guess=has_guesses(now[0], snapshot),
            columns=call.out.columns,
        )
    )
    if with_pools is not None:
        call.out.lines(with_pools_lines(now[1].report, with_pools[1].report, call.out.columns))
        call.out.lines(pool_use_lines(with_pools[1], call.out.columns))
    if len(jobs) > _LISTED:
        call.out.note(f"note: {len(jobs) - _LISTED:,} more jobs; --json lists {len(jobs):,}")
    return 0


def _live_plan(client: FleetClient, given: dict[str, Any]) -> PoolPlan | None:
    """Return the pools of a coordinator; None: it has none that start machines by themselves."""
    from stoker.core.errors import Usage

    view = client.launch_view()
    pools = tuple(state for state in view.pools if state.is_declared and state.pool.is_automatic)
    if not pools:
        if given["start_delay"] is not None:
            raise Usage("--start-delay: the coordinator has no pools", hint="declare pools in its cluster file")
        return None
    return _plan_of(pools, given, view.allocations, view.now_s)


def machines_of(text: str | None, snapshot: Snapshot) -> tuple[NodeOffer, ...]:
    """Return the machines of `--add`: a kind (`rtx-4090:2`), or like one of the fleet (`desk:2`)."""
    from stoker.core.errors import Usage
    from stoker.core.text import did_you_mean
    from stoker.scheduler.simulation.what_if import kinds_to_add, machines_like
    from stoker.scheduler.simulation.workload import node_kinds

    found: list[NodeOffer] = []
    for part in filter(None, (text or "").split(",")):
        word, _, number = part.strip().partition(":")
        is_number = number.isascii() and number.isdigit() and len(number) <= len(str(MOST_ADDED))
        if number and not (is_number and 0 < int(number) <= MOST_ADDED):
            hint = f"for example rtx-4090:2; the maximum is {MOST_ADDED:,}"
            raise Usage(f"--add {part[:100]}: {number[:100]!r} is not a number of machines", hint=hint)
        added = machines_like(word, int(number or "1"), snapshot, len(found) + 1)
        if added is None:
            hint = did_you_mean(word, kinds_to_add(snapshot)) or f"name one of the fleet, or {', '.join(node_kinds())}"
            raise Usage(f"--add {part}: unknown kind of machine {word!r}", hint=hint)
        found += added
        if len(found) > MOST_ADDED:
            raise Usage(f"--add: the maximum is {MOST_ADDED:,} machines", hint="add fewer")
    return tuple(found)


def _disruptions(snapshot: Snapshot, given: dict[str, Any]) -> Disruptions | None:
    from stoker.core.errors import Usage
    from stoker.core.text import did_you_mean, parse_duration
    from stoker.scheduler.simulation.simulator import Disruptions

    if not given["fail"] and not given["leave"]:
        return None
    names = [one.offer.node for one in snapshot.machines]
    leaves_s: dict[str, float] = {}
    for part in filter(None, (given["leave"] or "").split(",")):
        name, _, when = part.partition(":")
        if name not in names:
            raise Usage(
                f"--leave {part}: no machine {name!r}",
                hint=did_you_mean(name, names) or "list machines: stoker machines",
            )
        try:
            leaves_s[name] = parse_duration(when) if when else 0.0
        except ValueError as error:
            raise Usage(f"--leave {part}: {error}") from None
    return Disruptions(fail=given["fail"] or 0.0, leaves_s=leaves_s, seed=given["seed"] or 0)


def _run_as_json(run: tuple[Simulator, SimulationResult], snapshot: Snapshot) -> dict[str, Any]:
    from stoker.scheduler.simulation.what_if import has_guesses

    report, unfinished = run[1].report, run[0].scheduler.ready.count
    return {
        "done_s": None if unfinished else snapshot.now_s + report.makespan_s,
        "unfinished": unfinished,
        "is_guess": has_guesses(run[0], snapshot),
        **report.to_dict(),
    }


def _starts(
    now: tuple[Simulator, SimulationResult],
    changed: tuple[Simulator, SimulationResult] | None,
    view: ScheduleView,
    snapshot: Snapshot,
) -> list[dict[str, Any]]:
    """Return machine and start of the named jobs, in order of start; None if a job fits no machine."""
    from stoker.scheduler.simulation.what_if import rows_named, start_of

    users = {one.class_id: one.user for one in snapshot.classes}
    batch = now[0].batch
    found = []
    for row in rows_named(now[0], view.names):
        shown = {
            "job": view.names[str(batch.numbers[row])],
            "user": users.get(batch.class_ids[batch.shape_of[row]], ""),
            **start_of(now[0], row, snapshot.now_s),
        }
        if changed is not None:
            shown["changed"] = start_of(changed[0], row, snapshot.now_s)
        found.append(shown)
    return sorted(found, key=lambda one: (one["starts_s"] is None, one["starts_s"] or 0.0))
