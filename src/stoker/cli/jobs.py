"""`stoker jobs`: what ran here and what the fleet has, the newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT, reach_if_any
from stoker.cli.fleet_status import JobFilter, JobListItem, first, list_jobs
from stoker.cli.grammar import Grammar, Option, whole
from stoker.cli.job_handle import job_table
from stoker.core.errors import Usage
from stoker.core.job import JobState
from stoker.core.text import did_you_mean
from stoker.devices.host_name import host_name
from stoker.views.fleet_lines import JOB_HEADER
from stoker.views.text_tables import table

if TYPE_CHECKING:
    from stoker.protocol.client import FleetClient

_LISTED = 20
_AT_ONCE = 500


def _states(text: str) -> str:
    known = [str(state) for state in JobState]
    for state in text.split(","):
        if state not in known:
            message = f"there is no state {state!r}; {did_you_mean(state, known) or ', '.join(known)}"
            raise ValueError(message)
    return text


GRAMMAR = Grammar(
    "jobs",
    about=(
        "List jobs, the newest first: those of the fleet, if there is one, and those that ran here. A job of this "
        "machine whose process is gone without a word has failed."
    ),
    options=(
        Option(
            "--status", value="STATE", read=_states, help="only these: pending, running, failed; a comma for several"
        ),
        Option("--recipe", value="NAME", help="only jobs of this recipe"),
        Option("--machine", value="NAME", help="only jobs that run, or ran last, there; `here` is this one"),
        Option("--limit", value="N", read=whole(1), help=f"how many, {_LISTED} unless told"),
        Option("--all", help="every one, page by page"),
        AT,
    ),
    examples=(
        "stoker jobs",
        "stoker jobs --status failed",
        "stoker jobs --status pending,running --machine desk",
        "stoker jobs --all --json",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """List the jobs."""
    if given["all"] and given["limit"]:
        raise Usage("--all and --limit: all of them, or so many?", hint="one of them")
    settings = call.parts.settings
    client = reach_if_any(call, given["at"])
    asked = JobFilter(state=given["status"] or "", recipe=given["recipe"] or "", machine=given["machine"] or "")
    limit = given["limit"] or _LISTED
    page = _AT_ONCE if given["all"] else min(limit + 1, _AT_ONCE)
    jobs = list_jobs(settings.runs, client, asked, here=host_name(settings.environment)[0], page=page)
    if given["all"]:
        count = 0
        while True:
            listed, is_more = first(jobs, _AT_ONCE)
            _show(call, listed, client)
            count += len(listed)
            if not is_more:
                return _none(call, asked, client) if not count else 0
    listed, is_more = first(jobs, limit)
    if not listed:
        return _none(call, asked, client)
    _show(call, listed, client)
    if is_more:
        call.out.note(f"note: older ones are not shown; --limit {limit * 5} shows more")
    return 0


def _show(call: CommandContext, listed: list[JobListItem], client: FleetClient | None) -> None:
    out, now_s = call.out, call.parts.clock.wall_s()
    for one in listed:
        out.object(one.body)
    if client is None:
        lines = job_table([one.body for one in listed], now_s=now_s, columns=out.columns)
    else:
        lines = table([one.row(now_s) for one in listed], header=JOB_HEADER, columns=out.columns)
    for line in lines:
        out.line(line)


def _none(call: CommandContext, asked: JobFilter, client: FleetClient | None) -> int:
    if asked == JobFilter() and client is not None:
        call.out.line("the fleet has no jobs yet, and nothing has run here")
        call.out.note("hint: stoker submit manifest.toml")
    elif asked == JobFilter():
        call.out.line("nothing has run here yet")
        call.out.note("hint: stoker recipes")
    else:
        call.out.line("no job is like that")
    return 0
