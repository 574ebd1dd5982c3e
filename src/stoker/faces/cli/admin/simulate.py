"""`stoker admin simulate`: the placement rules on thousands of machines and a long queue, on a clock of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, whole

if TYPE_CHECKING:
    from stoker.scheduler.offers import NodeOffer
    from stoker.scheduler.simulation.simulating import Asked

_MIXES = ("desktop", "datacentre", "edge", "adapters", "everything")
"""Written out, so that help needs no file; a test compares them with it."""
_NODES, _JOBS, _SHAPES = 200, 10_000, 200
_MOST = {"jobs": 10_000_000, "nodes": 100_000, "shapes": 4096}

GRAMMAR = Grammar(
    "admin simulate",
    about=(
        "Let the rules by which jobs are placed run on machines and jobs that a seed invents, on a clock of their own: "
        "how long everything takes beside what no rules could beat, how machines are used, how long jobs wait. The "
        "same seed gives the same decisions. Nothing is started."
    ),
    options=(
        Option("--mix", value="NAME", help=f"which machines and jobs: {', '.join(_MIXES)}; unless told {_MIXES[-1]}"),
        Option("--nodes", value="N", read=whole(1), help=f"how many machines, {_NODES} unless told"),
        Option("--jobs", value="N", read=whole(1), help=f"how many jobs wait, {_JOBS:,} unless told"),
        Option("--shapes", value="N", read=whole(1), help=f"how many different ones there are, {_SHAPES} unless told"),
        Option("--seed", value="N", read=whole(0), help="another draw of the same mix"),
        Option("--cluster", value="FILE", help="the machines of a cluster file instead"),
        Option("--equal", help="all jobs have the same priority"),
        Option("--plot", value="FILE.svg", help="draw how machines were used over time"),
    ),
    examples=(
        "stoker admin simulate",
        "stoker admin simulate --mix adapters --plot timeline.svg",
        "stoker admin simulate --cluster lab.yaml --jobs 2000",
        "stoker admin simulate --nodes 10000 --jobs 1000000 --json",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Simulate, tell, draw."""
    from stoker.faces.cli.admin.counting import counted
    from stoker.faces.view.simulation import report_lines
    from stoker.scheduler.simulation.simulating import simulate

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


def _asked(call: Call, given: dict[str, Any]) -> tuple[Asked, str]:
    from stoker.model.errors import Usage
    from stoker.model.suggest import did_you_mean
    from stoker.scheduler.simulation.simulating import Asked
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
    offers = _machines_of(call, given["cluster"]) if given["cluster"] else ()
    asked = Asked(
        mix=mix,
        seed=mix.seed if given["seed"] is None else given["seed"],
        nodes=given["nodes"] or _NODES,
        jobs=given["jobs"] or _JOBS,
        shapes=given["shapes"] or _SHAPES,
        is_equal=given["equal"],
        offers=offers,
    )
    count = len(offers) or asked.nodes
    return asked, f"{count:,} machine{'s' * (count != 1)}" + (f" of {given['cluster']}" if offers else "")


def _machines_of(call: Call, file: str) -> tuple[NodeOffer, ...]:
    from stoker.config.cluster_file import read_cluster
    from stoker.scheduler.offers import offer_of

    return tuple(offer_of(node) for node in read_cluster(file, call.path(file)).nodes)


def _draw(call: Call, file: str, report: Any, asked: Asked) -> str:
    from stoker.faces.view.simulation import timeline_chart
    from stoker.faces.view.svg import to_svg
    from stoker.host.durable import write_file

    chart = timeline_chart(report, f"{asked.mix.name}, seed {asked.seed}")
    path = call.path(file)
    write_file(path, to_svg(chart).encode())
    return path
