"""`stoker work`: this machine takes jobs of a coordinator, until it is told to end."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, duration, whole
from stoker.faces.view.keeping import keeping_line
from stoker.model.events import Event, event_line
from stoker.wire.finding import find_coordinator, no_coordinator_known
from stoker.worker.keeper.options import WorkOptions, read_declared

GRAMMAR = Grammar(
    "work",
    about=(
        "Let this machine work for a coordinator: it says what it has, asks for jobs, runs each in a process of its "
        "own, and reports. Ctrl-C or TERM gives everything back first, checkpoints kept; a second one ends it now. "
        "A worker that was killed finds its jobs again when it is started under the same name."
    ),
    options=(
        Option("--join", value="URL", help="the coordinator; unless told, STOKER_COORDINATOR or the one of this home"),
        Option("--name", value="NAME", help="what this worker is called; the machine's name unless told"),
        Option("--slots", value="N", read=whole(1), help="jobs at once; one for each GPU, at least one, unless told"),
        Option(
            "--declare",
            value="k=v",
            help="offer no more than this: cores=2,ram=4G,gpus=0; the smaller of this and what is found counts",
            is_many=True,
        ),
        Option(
            "--grace",
            value="TIME",
            read=duration,
            help="how long a job may take to save what it has when it is stopped; 10s unless told",
        ),
        Option("--once", help="take one job, then end"),
        Option("--until-idle", help="end when nothing is left for this machine"),
    ),
    examples=(
        "stoker work --join http://127.0.0.1:7717",
        "stoker work --name small --slots 2 --declare cores=2,ram=4G,gpus=0",
        "stoker work --until-idle --json",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Work."""
    settings, out = call.parts.settings, call.out
    declared = read_declared(given["declare"])
    found = find_coordinator(given["join"] or "", environment=settings.environment, state=settings.state)
    if found is None:
        raise no_coordinator_known(settings.state)
    out.goes_on_unread = out.is_watched = True
    count = 0

    def tell(kind: str, fields: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if out.is_json:
            out.json_line(event_line(Event(kind, fields), ts=call.parts.clock.wall_s(), seq=count, source="worker"))
        elif not out.is_quiet:
            now = call.parts.clock.now().astimezone()
            out.line(f"{now:%H:%M:%S} {keeping_line(kind, fields)}")

    options = WorkOptions(
        url=found.url,
        token=found.token,
        name=given["name"] or "",
        slots=given["slots"],
        declared=declared,
        is_once=given["once"],
        until_idle=given["until_idle"],
        stop_grace_s=given["grace"],
    )
    return call.parts.work(options, tell)
