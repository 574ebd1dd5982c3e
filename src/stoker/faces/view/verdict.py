"""The history checker's verdict as lines: every promise, kept or broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from stoker.faces.view.signs import Signs
from stoker.faces.view.tables import table
from stoker.model.printable import one_line

if TYPE_CHECKING:
    from stoker.wire.health import Verdict

PROMISES = {
    "one_lease": "at most one live lease per job, at any time",
    "epochs_grow": "epochs strictly grow, and never return",
    "no_stale_write": "nothing was accepted under an old epoch, attempt or generation",
    "terminal_is_final": "a terminal state is only left by a requeue",
    "waits_with_reason": "every job has ended, or waits for something that can be named",
    "within_budgets": "no job was granted again after its attempts were used up",
    "bundle_has_bytes": "no result is recorded whose bytes are not there",
    "events_replay": "the events alone lead to the state that each job's row shows",
    "one_event_per_move": "every move is exactly one event",
    "time_goes_on": "stored time never goes back",
    "counters": "counters say what rows do",
}
_SHOWN = 10


def verdict_lines(verdict: Verdict, signs: Signs, *, columns: int) -> Iterator[str]:
    """Say it."""
    rows = [
        [
            signs.failed if broken else signs.ran,
            rule,
            PROMISES.get(rule, ""),
            f"broken {broken} times" if broken else "",
        ]
        for rule, broken in verdict.rules.items()
    ]
    yield from table(rows, columns=columns)
    for one in verdict.violations[:_SHOWN]:
        yield one_line(f"  {one.get('rule', '')}: job {str(one.get('job', ''))[:12]}: {one.get('message', '')}")


def counts_lines(tried: Mapping[str, int], refused: Mapping[str, int], *, columns: int) -> list[str]:
    """Say what was tried, and how much of it was refused, as some of it must be."""
    rows = [[what, f"{count:,}", f"{refused.get(what, 0):,} refused"] for what, count in tried.items()]
    return table(rows, columns=columns)
