"""`stoker jobs`: what ran here, the newest first."""

from __future__ import annotations

from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, whole
from stoker.faces.cli.job_facts import job_table, newest_jobs

_LISTED = 20

GRAMMAR = Grammar(
    "jobs",
    about="List the jobs of this machine, the newest first. A job whose process is gone without a word has failed.",
    options=(Option("--limit", value="N", read=whole(1), help=f"how many, {_LISTED} unless told"),),
    examples=("stoker jobs", "stoker jobs show last", "stoker jobs --limit 100 --json"),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """List the jobs."""
    out, parts = call.out, call.parts
    limit = given["limit"] or _LISTED
    jobs = newest_jobs(parts.settings.runs, limit + 1)
    for job in jobs[:limit]:
        out.object(job)
    if not jobs:
        out.line("nothing has run here yet")
        out.note("hint: stoker recipes")
        return 0
    for line in job_table(jobs[:limit], now_s=parts.clock.wall_s(), columns=out.columns):
        out.line(line)
    if len(jobs) > limit:
        out.note(f"note: older ones are not shown; --limit {limit * 5} shows more")
    return 0
