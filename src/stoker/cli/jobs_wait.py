"""`stoker jobs wait`: until a job has ended; its end is the command's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT
from stoker.cli.grammar import Grammar, Option, Positional, duration
from stoker.cli.job_handle import job_facts
from stoker.cli.job_names import FleetJob, meant
from stoker.cli.screens import LineScreen, Screen
from stoker.cli.watch import ended_text
from stoker.core.job import JobState
from stoker.core.text import format_duration
from stoker.views.text_tables import ASCII, UNICODE, span

if TYPE_CHECKING:
    from stoker.cli.output import CliOutput
    from stoker.core.clock import Clock
    from stoker.jobs.job_folder import JobFolder
    from stoker.protocol.view_messages import JobView

_LOOK_AGAIN_S = 0.2

GRAMMAR = Grammar(
    "jobs wait",
    about=(
        "Wait until a job has ended, or all points of a sweep. Ends with 0 if everything completed and with 1 if "
        "something did not, or if the time that was given is over first."
    ),
    positionals=(Positional("NAME", help="a job's name, `name/3`, `last`, or the beginning of an id"),),
    options=(Option("--timeout", value="TIME", read=duration, help="wait no longer: 90s, 15m, 8h"), AT),
    examples=("stoker jobs wait resnet", "stoker jobs wait last --timeout 10m"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Wait."""
    found = meant(call, given["name"], given["at"])
    if isinstance(found, FleetJob):
        return _wait_for_fleet(call, found, given["timeout"])
    return _wait_here(call, found, given["timeout"])


def _wait_for_fleet(call: CommandContext, job: FleetJob, limit_s: float | None) -> int:
    from stoker.cli.job_wait import wait_for

    out = call.out
    signs = UNICODE if out.is_unicode else ASCII
    points = job.points()
    is_good = True
    clock, ends = call.parts.clock, list[str]()
    began_s = clock.monotonic_s()

    def ended(view: JobView) -> None:
        nonlocal is_good
        is_good = is_good and view.state == JobState.COMPLETED
        ends.append(view.name)
        out.object({**view.model_dump(mode="json"), "where": "fleet"})
        sign = signs.ran if view.state == JobState.COMPLETED else signs.failed
        screen.lasting(f"{sign} {ended_text(view, JobState(view.state))}")

    def waiting(_now_s: float, _at_least_s: float) -> list[str]:
        done = len(ends)
        on = f"{done:,} of {len(points):,} ended" if len(points) > 1 else f"waits for {points[0].name}"
        return [_waits(on, clock.monotonic_s() - began_s)]

    screen = _screen(out, clock)
    screen.begin(waiting)
    try:
        found = wait_for(job.client, points, clock=clock, limit_s=limit_s, ended=ended)
    finally:
        screen.close()
    left = len(points) - len(found)
    if left:
        who = points[0].name if len(points) == 1 else f"{left:,} of {len(points):,} points of {job.ref}"
        out.complain(f"{who} had not ended after {format_duration(limit_s or 0.0)}")
        return 1
    return 0 if is_good else 1


def _waits(what: str, waited_s: float) -> str:
    return f"{what}  {span(waited_s)}  (Ctrl-C stops waiting, not the job)"


def _screen(out: CliOutput, clock: Clock) -> Screen:
    """Return a line that lives on a terminal; elsewhere only what lasts is written."""
    if out.is_terminal and not (out.is_json or out.is_quiet):
        from stoker.cli.screens import LiveScreen

        return LiveScreen(out, clock)
    return LineScreen(out)


def _wait_here(call: CommandContext, folder: JobFolder, limit_s: float | None) -> int:
    clock, out = call.parts.clock, call.out
    began_s = clock.monotonic_s()
    name, screen = folder.spec().name, _screen(out, clock)
    screen.begin(lambda _now_s, _at_least_s: [_waits(f"waits for {name}", clock.monotonic_s() - began_s)])
    try:
        while folder.may_be_running():
            if limit_s is not None and clock.monotonic_s() >= began_s + limit_s:
                out.complain(f"{name} had not ended after {format_duration(limit_s)}")
                return 1
            clock.sleep(_LOOK_AGAIN_S)
    finally:
        screen.close()
    facts = job_facts(folder)
    out.object({**facts, "where": "here"})
    why = f": {facts['why']}" if facts["why"] else ""
    out.line(f"{facts['name']} {facts['state']} {span(facts['elapsed_s'])}{why}")
    return 0 if facts["state"] == JobState.COMPLETED else 1
