"""Expected failures: a comparison that is known to fail, with the reason and the day until which that is accepted.

Without a reason or a date there is no expected failure, and after that day it fails again. A comparison that passes
although a failure is expected is reported, so that the entry can go.
"""

from __future__ import annotations

from datetime import date

from stoker.core.errors import Usage, WorkFailed
from stoker.core.frozen import frozen
from stoker.crossval.ladder import Outcome, Parity

MOST_DAYS = 366
_SHAPE = "--xfail 'REASON until YYYY-MM-DD'"


@frozen
class ExpectedFailure:
    """Why a comparison may fail, and until when (that day included)."""

    reason: str
    until: date


@frozen
class Accepted:
    """What an expected failure makes of a verdict."""

    is_pass: bool
    note: str


def parse_xfail(text: str, today: date) -> ExpectedFailure:
    """Parse `REASON until YYYY-MM-DD`. Raises `Usage` if the reason or the date is missing, or the date is far away."""
    reason, joint, day = text.rpartition(" until ")
    if not joint or not reason.strip():
        raise Usage(f"--xfail needs a reason and a date: {text!r}", hint=_SHAPE)
    try:
        until = date.fromisoformat(day.strip())
    except ValueError:
        raise Usage(f"--xfail: {day.strip()!r} is not a date", hint=_SHAPE) from None
    if (until - today).days > MOST_DAYS:
        raise Usage(f"--xfail: {until} is more than a year away", hint="choose a day on which somebody looks again")
    return ExpectedFailure(reason=reason.strip(), until=until)


def accept_failed_run(code: int, expected: ExpectedFailure | None, today: date) -> Accepted:
    """Decide whether a run counts as a pass that failed with an exit code: a runtime that can't load the model (C-39).

    Only failed work is expected (exit code 1); a full disk, a damaged file or an interruption never is.
    """
    if expected is None or code != WorkFailed.exit_code:
        return Accepted(is_pass=False, note="")
    return _accepted(expected, today)


def accept(parity: Parity, expected: ExpectedFailure | None, today: date) -> Accepted:
    """Decide whether the verdict counts as a pass."""
    if parity.outcome is Outcome.PASSED:
        note = f"passed although a failure was expected ({expected.reason}): remove --xfail" if expected else ""
        return Accepted(is_pass=True, note=note)
    if parity.outcome is not Outcome.FAILED or expected is None:
        return Accepted(is_pass=False, note="")
    return _accepted(expected, today)


def _accepted(expected: ExpectedFailure, today: date) -> Accepted:
    if today > expected.until:
        return Accepted(is_pass=False, note=f"the expected failure ({expected.reason}) ended on {expected.until}")
    return Accepted(is_pass=True, note=f"expected failure until {expected.until}: {expected.reason}")
