"""`stoker admin torture`: prove on one's own fleet that its queue keeps its promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.coordinator_access import AT, reach
from stoker.cli.grammar import Grammar, Option, duration, whole
from stoker.core.errors import Usage
from stoker.jobs.submitter import who_asks

if TYPE_CHECKING:
    from stoker.cli.queue_torture import StressTest
    from stoker.protocol.operator_messages import HistoryCheck

_FOR_S = 180.0
_JOBS = 200
_MOST_JOBS = 10_000
_CHECKED = 20_000

GRAMMAR = Grammar(
    "admin torture",
    about=(
        "Make trouble on this very fleet, for some minutes: jobs that do nothing, random cancels, requeues and "
        "priorities, submissions twice, words of attempts that are over. Then the coordinator's history checker goes "
        "through its newest jobs, and every promise is listed as kept or broken. The jobs stand behind all others; "
        "when it ends, by Ctrl-C too, those that have not ended are cancelled. Exit code 1 if a promise is broken."
    ),
    options=(
        Option("--for", value="TIME", read=duration, help="how long, 3m unless told"),
        Option("--jobs", value="N", read=whole(1), help=f"how many jobs at most, {_JOBS} unless told"),
        Option("--seed", value="N", read=whole(0), help="the same draw again"),
        AT,
    ),
    examples=("stoker admin torture", "stoker admin torture --for 20s --jobs 50", "stoker admin torture --json"),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Make trouble, tidy up, ask for the verdict, and say it."""
    from stoker.cli.progress import ElapsedSeconds, counted
    from stoker.cli.queue_torture import StressTest

    for_s = _FOR_S if given["for"] is None else given["for"]
    jobs = given["jobs"] or _JOBS
    if jobs > _MOST_JOBS:
        raise Usage(f"--jobs {jobs}: {_MOST_JOBS:,} at most", hint="they are used again and again")
    client = reach(call, given["at"])
    # Whoever may not ask for it is told before there is any trouble.
    client.verdict(jobs=1)
    seed = call.parts.entropy() if given["seed"] is None else given["seed"]
    by = who_asks(call.parts.settings.environment)
    torture = StressTest(client, clock=call.parts.clock, seed=seed, jobs=jobs, by=by)
    began_s = call.parts.clock.monotonic_s()
    with counted(call, "torturing", int(for_s), ElapsedSeconds) as count:
        try:
            torture.run(for_s, lambda _done: count.reach(int(call.parts.clock.monotonic_s() - began_s)))
        finally:
            left = torture.tidy()
    verdict = client.verdict(jobs=_CHECKED)
    is_well = verdict.is_clean and not torture.troubles and not left
    _show(call, torture, verdict, seed=seed, left=left, is_well=is_well)
    return 0 if is_well else 1


def _show(
    call: CommandContext, torture: StressTest, verdict: HistoryCheck, *, seed: int, left: int, is_well: bool
) -> None:
    from stoker.views.fleet_lines import counts_lines, verdict_lines
    from stoker.views.text_tables import ASCII, UNICODE

    out = call.out
    signs = UNICODE if out.is_unicode else ASCII
    out.object(
        {
            "is_well": is_well,
            "seed": seed,
            "name": torture.name,
            "tried": dict(torture.tried),
            "refused": dict(torture.refused),
            "jobs": len(torture.jobs),
            "left": left,
            "troubles": torture.troubles,
            "verdict": verdict.model_dump(mode="json"),
        }
    )
    out.line(f"{torture.name}: {torture.tried.total():,} things tried on {len(torture.jobs):,} jobs (seed {seed})")
    for line in counts_lines(torture.tried, torture.refused, columns=out.columns):
        out.line(f"  {line}")
    whole_text = "all" if verdict.is_whole else "the newest"
    out.line(f"\nthe history checker on {whole_text} {verdict.jobs:,} jobs, in {verdict.seconds:.1f} s:")
    for line in verdict_lines(verdict, signs, columns=out.columns):
        out.line(f"  {line}")
    for trouble in torture.troubles:
        out.line(f"  {signs.failed} {trouble}")
    if left:
        out.line(f"  {signs.failed} {left} jobs had not ended a minute after they were cancelled: stoker jobs")
    out.line(f"{signs.ran} every promise was kept" if is_well else f"{signs.failed} something is wrong")
