"""`stoker admin simulate`: the scheduler on invented machines and jobs, or the fleet's own, on a clock of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.reaching import AT
from stoker.faces.cli.grammar import Grammar, Option, duration, whole

if TYPE_CHECKING:
    from stoker.scheduler.offers import NodeOffer
    from stoker.scheduler.simulation.simulation_report import SimulationRequest

_MIXES = ("desktop", "datacentre", "edge", "adapters", "everything")
"""Written out, so that help needs no file; a test compares them with it."""
_NODES, _JOBS, _SHAPES = 200, 10_000, 200
_MOST = {"jobs": 10_000_000, "nodes": 100_000, "shapes": 4096, "users": 10_000}
_MOST_FAILING = 0.9
_MOST_ARRIVE_S = 365 * 86400.0
_INVENTED = ("mix", "nodes", "jobs", "shapes", "cluster", "equal", "arrive", "users", "plot")
"""Options that --live leaves no place for."""


def part(text: str) -> float:
    """Read a part of a whole: `0.05`."""
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
        "Let the scheduler run on machines and jobs that a seed invents, on a clock of its own: how long everything "
        "takes beside what no rules could beat, how machines are used, how long jobs wait. The same seed gives the "
        "same decisions. With --live it begins with the coordinator's machines, running and waiting jobs and measured "
        "durations: when is everything done, and when with other machines? Nothing is started."
    ),
    options=(
        Option("--mix", value="NAME", help=f"which machines and jobs: {', '.join(_MIXES)}; unless told {_MIXES[-1]}"),
        Option("--nodes", value="N", read=whole(1), help=f"how many machines, {_NODES} unless told"),
        Option("--jobs", value="N", read=whole(1), help=f"how many jobs wait, {_JOBS:,} unless told"),
        Option("--shapes", value="N", read=whole(1), help=f"how many different ones there are, {_SHAPES} unless told"),
        Option("--seed", value="N", read=whole(0), help="another draw of the same mix"),
        Option("--cluster", value="FILE", help="the machines of a cluster file instead"),
        Option("--equal", help="all jobs have the same priority"),
        Option("--arrive", value="SPAN", read=duration, help="jobs come over this time, not all at the beginning"),
        Option("--users", value="N", read=whole(1), help="jobs are of so many users, in unequal parts (default: 1)"),
        Option(
            "--fail", value="P", read=part, help="the part of all attempts that fail, up to 0.9; the job runs again"
        ),
        Option(
            "--leave",
            value="N",
            help="so many machines leave midway; with --live NAME[:WHEN], such as desk:2h (default: now)",
        ),
        Option("--live", help="begin with the coordinator's machines and jobs"),
        Option(
            "--add",
            value="MACHINES",
            help="with --live: and with more machines, such as rtx-4090:2, or desk:2 for two more like desk",
        ),
        AT,
        Option("--plot", value="FILE.svg", help="draw how machines were used over time"),
    ),
    examples=(
        "stoker admin simulate",
        "stoker admin simulate --mix adapters --plot timeline.svg",
        "stoker admin simulate --cluster lab.yaml --jobs 2000",
        "stoker admin simulate --nodes 10000 --jobs 1000000 --json",
        "stoker admin simulate --arrive 8h --users 5 --fail 0.05 --leave 3",
        "stoker admin simulate --live --add rtx-4090:2",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Simulate, show, draw."""
    if given["live"]:
        from stoker.faces.cli.admin.simulate_live import simulate_live

        _refuse(given, _INVENTED, "--live simulates the coordinator's machines and jobs")
        return simulate_live(call, given)
    _refuse(given, ("add", "at"), "only --live asks a coordinator")
    from stoker.faces.cli.admin.counting import counted
    from stoker.faces.view.simulation import report_lines
    from stoker.scheduler.simulation.simulation_report import simulate

    asked, machines = _asked(call, given)
    with counted(call, "simulating", asked.jobs) as count:
        simulated = simulate(asked, call.parts.clock, count.reach)
    report = simulated.report
    plot = _draw(call, given["plot"], simulated.report, asked) if given["plot"] else ""
    call.out.object(
        {
            "mix": asked.mix.name,
            "seed": asked.seed,
            "decisions_per_s": simulated.decisions_per_s,
            "seconds": simulated.seconds,
            **report.to_dict(),
            **({"plot": plot} if plot else {}),
        }
    )
    call.out.line(
        f"{machines}, {len(report.uses)} sorts; {report.jobs:,} jobs of {report.shapes} shapes "
        f"({asked.mix.name}: {asked.mix.about}; seed {asked.seed})"
    )
    for line in report_lines(simulated, call.out.columns):
        call.out.line(line)
    if plot:
        call.out.line(f"\ntimeline: {given['plot']}")
    return 0


def _asked(call: Call, given: dict[str, Any]) -> tuple[SimulationRequest, str]:
    from stoker.model.errors import Usage
    from stoker.model.suggest import did_you_mean
    from stoker.scheduler.simulation.simulation_report import SimulationRequest
    from stoker.scheduler.simulation.workload import mixes

    name = given["mix"] or _MIXES[-1]
    mix = mixes().get(name)
    if mix is None:
        raise Usage(f"there is no mix {name!r}", hint=did_you_mean(name, _MIXES) or f"there are {', '.join(_MIXES)}")
    for option, most in _MOST.items():
        if (given[option] or 0) > most:
            raise Usage(f"--{option} {given[option]}: {most:,} at most", hint="a part of it behaves like the whole")
    if given["cluster"] and given["nodes"]:
        raise Usage("--nodes and --cluster both say which machines there are", hint="leave one of them out")
    if (given["arrive"] or 0.0) > _MOST_ARRIVE_S:
        raise Usage("--arrive: a year at most", hint="a part of it behaves like the whole")
    leave = given["leave"] or "0"
    if not (leave.isascii() and leave.isdigit()):
        raise Usage(f"--leave {leave}: not a number of machines", hint="names are for --live")
    offers = _machines_of(call, given["cluster"]) if given["cluster"] else ()
    asked = SimulationRequest(
        mix=mix,
        seed=mix.seed if given["seed"] is None else given["seed"],
        nodes=given["nodes"] or _NODES,
        jobs=given["jobs"] or _JOBS,
        shapes=given["shapes"] or _SHAPES,
        is_equal=given["equal"],
        offers=offers,
        users=given["users"] or 1,
        span_s=given["arrive"] or 0.0,
        fail=given["fail"] or 0.0,
        leave=int(leave),
    )
    count = len(offers) or asked.nodes
    return asked, f"{count:,} machine{'s' * (count != 1)}" + (f" of {given['cluster']}" if offers else "")


def _refuse(given: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    from stoker.model.errors import Usage

    for name in names:
        if given[name]:
            raise Usage(f"--{name}: {why}", hint=f"leave --{name} out")


def _machines_of(call: Call, file: str) -> tuple[NodeOffer, ...]:
    from stoker.config.cluster_file import read_cluster
    from stoker.scheduler.offers import offer_of

    return tuple(offer_of(node) for node in read_cluster(file, call.path(file)).nodes)


def _draw(call: Call, file: str, report: Any, asked: SimulationRequest) -> str:
    from stoker.faces.view.simulation import timeline_chart
    from stoker.faces.view.svg import to_svg
    from stoker.host.durable import write_file

    chart = timeline_chart(report, f"{asked.mix.name}, seed {asked.seed}")
    path = call.path(file)
    write_file(path, to_svg(chart).encode())
    return path
