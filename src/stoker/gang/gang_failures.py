"""What has become of a gang, decided from what each rank's page says, who has ended, and the time. Nothing here acts.

    judge(looks, now, limits)  ->  Waiting (look again by then)  |  Ready  |  Failed (cause, collateral, pending)

The cause is the earliest failure by the ranks' own time stamps, after others had 50 ms to report theirs. Three things
would name a victim, and are put right: a report that only tells of a lost peer comes after any that says more; a death
without a report, which we see later than it happened, comes before such echoes; and where there are only echoes, the
others have two seconds. When the time is over and no rank has failed, the cause is the rank that got the least far: the
others wait for it. Of several in one phase, `blame` picks the one that is not itself waiting for others, by what each
says of where it is.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from stoker.core.errors import RankFailed, RankTimeout
from stoker.core.frozen import changed, frozen
from stoker.gang.mailbox import Phase, RankPage, RankState
from stoker.host.identity import ProcessExit

COLLECT_S = 0.05
ECHO_COLLECT_S = 2.0
"""The same while only lost peers are reported: a rank is gone whose end is not seen yet (a core dump takes a while)."""
_NS = 1_000_000_000
# The parent of a process reports how it ended, moments after the end itself is seen.
_EXIT_WAIT_NS = 2 * _NS
_ASK_AGAIN_NS = _NS // 500

# What libraries report when a peer is gone.
_ECHO = re.compile(
    r"connection (was )?(closed|reset)|closed by peer|reset by peer|broken pipe|remote process exited"
    r"|socket (has likely |was )?.{0,20}closed|peer (has )?(gone|exited|closed)|end of file|network error",
    re.IGNORECASE,
)


# Where a rank is that waits for others.
_COLLECTIVE = re.compile(r"torch[/\\]distributed")
_INNERMOST = 4


class RankFailureMode(StrEnum):
    """How a rank failed."""

    RAISED = "raised"
    ENDED = "ended"
    """Without a report: killed, crashed, or left."""
    SILENT = "silent"
    """It is there and does not get on."""


@frozen
class RankSnapshot:
    """One rank as its owner sees it now."""

    rank: int
    device: str
    """For people: `device 3, GPU-…`."""
    page: RankPage = RankPage()
    """The last whole page that was read; a page of zeros before the first."""
    is_torn: bool = False
    """True if the page is incomplete: it was being written, or its writer died."""
    gone_ns: int | None = None
    """When its process was seen to have ended."""
    exit: ProcessExit | None = None
    """How, once that is known."""
    is_done: bool = False
    """True if it has done what is waited for, whatever its page shows."""


@frozen
class GangDeadlines:
    """How long is waited."""

    started_ns: int
    deadline_ns: int | None
    phases_s: Mapping[Phase, float]
    """For how long a rank may stay in a phase, where that is limited."""
    collect_s: float = COLLECT_S


@frozen
class RankFailure:
    """One rank's failure."""

    rank: int
    device: str
    phase: Phase
    how: RankFailureMode
    at_ns: int
    after_s: float
    """Since the gang's start, or the call's."""
    type: str = ""
    text: str = ""
    exit: ProcessExit | None = None
    is_echo: bool = False
    """True if it only reports that a peer is gone."""


@frozen
class PendingRank:
    """One rank that neither failed nor got there."""

    rank: int
    device: str
    phase: Phase
    for_s: float
    """How long it has been in that phase."""


@frozen
class RanksPending:
    """Not decided yet."""

    until_ns: int | None
    """When to look again at the latest; `None`: when something happens."""


@frozen
class RanksReady:
    """Every rank got there."""


@frozen
class GangFailure:
    """The gang is lost."""

    cause: RankFailure
    collateral: tuple[RankFailure, ...]
    pending: tuple[PendingRank, ...]
    ready: int
    """How many had got there."""


GangVerdict = RanksPending | RanksReady | GangFailure


def judge(looks: Sequence[RankSnapshot], now_ns: int, limits: GangDeadlines) -> GangVerdict:
    """Return what has become of the gang; see the top of this file."""
    if any(_is_unclear(look, now_ns) for look in looks):
        return RanksPending(until_ns=now_ns + _ASK_AGAIN_NS)
    reports = sorted(
        (_report(look, now_ns, limits) for look in looks if _has_failed(look)),
        key=lambda report: (report.is_echo, report.at_ns, report.rank),
    )
    if reports:
        return _collected(looks, reports, now_ns, limits)
    waiting = [look for look in looks if not look.is_done]
    if not waiting:
        return RanksReady()
    late = [look for look in waiting if _is_late(look, now_ns, limits)]
    if late:
        slowest, stuck = min(waiting, key=_progress), min(late, key=_progress)
        # A rank that joins the group waits for those that are not there yet.
        cause = slowest if slowest in late or stuck.page.phase is Phase.COMM else stuck
        return _failed(looks, _silent(cause, now_ns, limits), (), now_ns)
    ends = [end for look in waiting if (end := _ends_ns(look, now_ns, limits)) is not None]
    return RanksPending(until_ns=min(ends, default=None))


def blame(failed: GangFailure, where: Mapping[int, str]) -> GangFailure:
    """Of silent ranks that are in one phase, name the one that the others wait for.

    `where` has each one's stack, innermost first, as far as it could say.
    """
    alike = {one.rank: one for one in failed.pending if one.phase is failed.cause.phase}
    guilty = min([failed.cause.rank, *alike], key=lambda rank: _innocence(where.get(rank, "")))
    if guilty == failed.cause.rank:
        return failed
    was, now = failed.cause, alike[guilty]
    freed = PendingRank(rank=was.rank, device=was.device, phase=was.phase, for_s=now.for_s)
    rest = [one for one in failed.pending if one.rank != guilty]
    return changed(
        failed,
        cause=changed(was, rank=now.rank, device=now.device, text=""),
        pending=tuple(sorted([*rest, freed], key=lambda one: one.rank)),
    )


def _innocence(stack: str) -> int:
    if not stack:
        return 1
    frames = [line for line in stack.splitlines() if line.lstrip().startswith("File ")]
    return 2 if any(_COLLECTIVE.search(frame) for frame in frames[:_INNERMOST]) else 0


def is_echo(text: str) -> bool:
    """Return True if an error only reports that a peer is gone."""
    return _ECHO.search(text) is not None


def renumbered(failed: GangFailure, first_rank: int) -> GangFailure:
    """Return the same with ranks as the whole gang numbers them, if there are other hosts before this one."""
    return changed(
        failed,
        cause=changed(failed.cause, rank=failed.cause.rank + first_rank),
        collateral=tuple(changed(one, rank=one.rank + first_rank) for one in failed.collateral),
        pending=tuple(changed(one, rank=one.rank + first_rank) for one in failed.pending),
    )


def _collected(
    looks: Sequence[RankSnapshot], reports: list[RankFailure], now_ns: int, limits: GangDeadlines
) -> GangVerdict:
    # Echoes come last in the order: if the first report is one, all are.
    collect_s = max(limits.collect_s, ECHO_COLLECT_S) if reports[0].is_echo else limits.collect_s
    until_ns = min(report.at_ns for report in reports) + round(collect_s * _NS)
    can_come = any(not _has_failed(look) and not look.is_done for look in looks)
    if now_ns < until_ns and can_come:
        return RanksPending(until_ns=until_ns)
    return _failed(looks, reports[0], tuple(reports[1:]), now_ns)


def _failed(
    looks: Sequence[RankSnapshot], cause: RankFailure, collateral: tuple[RankFailure, ...], now_ns: int
) -> GangFailure:
    reported = {cause.rank, *(report.rank for report in collateral)}
    rest = [look for look in looks if look.rank not in reported]
    pending = tuple(
        PendingRank(
            rank=look.rank,
            device=look.device,
            phase=look.page.phase,
            for_s=_since_s(look.page.stamps_ns[look.page.phase], now_ns),
        )
        for look in rest
        if not look.is_done
    )
    return GangFailure(cause=cause, collateral=collateral, pending=pending, ready=sum(look.is_done for look in rest))


def _has_failed(look: RankSnapshot) -> bool:
    return look.page.state is RankState.ERROR or (look.gone_ns is not None and not look.is_done)


def _is_unclear(look: RankSnapshot, now_ns: int) -> bool:
    """Return True if a rank has ended and its exit status is not known yet."""
    is_over = look.gone_ns is not None and look.page.state is not RankState.ERROR and not look.is_done
    return is_over and look.exit is None and now_ns < (look.gone_ns or 0) + _EXIT_WAIT_NS


def _report(look: RankSnapshot, now_ns: int, limits: GangDeadlines) -> RankFailure:
    page = look.page
    if page.state is RankState.ERROR:
        # Its own word for the time, as far as that can be.
        at_ns, how = min(max(page.failed_ns, limits.started_ns), now_ns), RankFailureMode.RAISED
        kind, text = page.error_type, page.error_text
    else:
        at_ns, how = look.gone_ns or now_ns, RankFailureMode.ENDED
        kind, text = "", "in the middle of a report" if look.is_torn else ""
    return RankFailure(
        rank=look.rank,
        device=look.device,
        phase=page.phase,
        how=how,
        at_ns=at_ns,
        after_s=_since_s(limits.started_ns, at_ns),
        type=kind,
        text=text,
        exit=look.exit,
        is_echo=how is RankFailureMode.RAISED and is_echo(text),
    )


def _silent(look: RankSnapshot, now_ns: int, limits: GangDeadlines) -> RankFailure:
    return RankFailure(
        rank=look.rank,
        device=look.device,
        phase=look.page.phase,
        how=RankFailureMode.SILENT,
        at_ns=now_ns,
        after_s=_since_s(limits.started_ns, now_ns),
        text="what it wrote last is no page" if look.is_torn else "",
    )


def _progress(look: RankSnapshot) -> tuple[int, int, int]:
    """Return how far a rank got: its phase, and of those in one phase the first to get there has waited longest."""
    page = look.page
    # A script runs before it joins its group, too: then those inside wait for it.
    is_on_its_way = page.phase is Phase.RUN and not page.stamps_ns[Phase.READY]
    return Phase.FORKED if is_on_its_way else page.phase, page.stamps_ns[page.phase], look.rank


def _is_late(look: RankSnapshot, now_ns: int, limits: GangDeadlines) -> bool:
    end_ns = _ends_ns(look, now_ns, limits)
    return end_ns is not None and now_ns >= end_ns


def _ends_ns(look: RankSnapshot, now_ns: int, limits: GangDeadlines) -> int | None:
    """Return when waiting for this rank ends: the gang's own deadline, or that of the phase it is in."""
    ends = [] if limits.deadline_ns is None else [limits.deadline_ns]
    limit_s = limits.phases_s.get(look.page.phase)
    if limit_s is not None:
        said_ns = look.page.stamps_ns[look.page.phase]
        # One that says it begins in the future is not waited for until then.
        began_ns = said_ns if limits.started_ns <= said_ns <= now_ns else limits.started_ns
        ends.append(began_ns + round(limit_s * _NS))
    return min(ends, default=None)


def _since_s(start_ns: int, now_ns: int) -> float:
    return max(0, now_ns - start_ns) / _NS if start_ns else 0.0


# A gang's failure as the one error that its owner raises, and as the lines that people read.

_LINE_CHARS = 400
_FRAME = '  File "'
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OUR_FRAMES = tuple(
    f"{_FRAME}{place}"
    for place in (f"{_PACKAGE}{os.sep}gang{os.sep}", f"{_PACKAGE}{os.sep}host{os.sep}", "<frozen runpy>")
)


def error_of(
    failed: GangFailure, *, nranks: int, traceback: Callable[[int], str], crash: Callable[[int], str]
) -> RankFailed:
    """Return the error; `traceback` and `crash` read a rank's black box.

    In its data `crash` is what a crashed or silent rank's native side wrote; of a pending one that is `where`.
    """
    cause = failed.cause
    kind = RankTimeout if cause.how is RankFailureMode.SILENT else RankFailed
    return kind(
        _line(failed, nranks),
        hint=_hint(cause),
        nranks=nranks,
        ready=failed.ready,
        **_facts(cause),
        traceback=traceback(cause.rank) if cause.how is RankFailureMode.RAISED else "",
        crash=crash(cause.rank),
        collateral=[
            {**_facts(report), "traceback": traceback(report.rank) if report.how is RankFailureMode.RAISED else ""}
            for report in failed.collateral
        ],
        pending=[{**_waits(pending), "where": crash(pending.rank)} for pending in failed.pending],
    )


def story_of(error: RankFailed) -> list[str]:
    """Return all that is known, in lines: the failure, its traceback, who was dragged along, who was still pending."""
    lines = [str(error)]
    lines += error.traceback.rstrip().splitlines() or _theirs(str(error.data.get("crash", "")))
    if error.collateral:
        lines.append("dragged along:")
        lines += [f"  {_dragged(report)}" for report in error.collateral]
    if error.pending:
        lines.append("still pending:")
        lines += [f"  rank {one['rank']} ({one['device']}) in {one['phase']}" for one in error.pending]
    return lines


def _theirs(crash: str) -> list[str]:
    """Return where native code was, without the frames of ours through which the work was reached."""
    lines = crash.rstrip().splitlines()
    # The outermost one is the command by which the interpreter was started.
    kept = len(lines) - bool(lines and lines[-1].startswith(f"{_FRAME}<string>"))
    while kept and lines[kept - 1].startswith(_OUR_FRAMES):
        kept -= 1
    return lines[:kept] if kept and lines[kept - 1].startswith(_FRAME) else lines


def _line(failed: GangFailure, nranks: int) -> str:
    cause = failed.cause
    who = f"rank {cause.rank} ({cause.device})"
    after = f"{cause.phase.name} after {seconds(cause.after_s)}"
    if cause.how is RankFailureMode.SILENT:
        torn = f"; {cause.text}" if cause.text else ""
        return f"{who} is silent in {after}; {failed.ready} of {nranks} are ready{torn}"
    return f"{who} failed in {after}: {_what(cause)}"


def _what(report: RankFailure) -> str:
    if report.how is RankFailureMode.SILENT:
        return "silent"
    if report.how is RankFailureMode.ENDED:
        how = "how is not known" if report.exit is None else str(report.exit)
        return f"ended without a report: {how}" + (f", {report.text}" if report.text else "")
    first = next((line.strip() for line in report.text.splitlines() if line.strip()), "")
    first = first if len(first) <= _LINE_CHARS else first[:_LINE_CHARS] + "…"
    said = f"{report.type}: {first}" if first else report.type
    # Every rank that reports leaves with 1 or says with what, so only another end is news.
    is_expected = report.exit is None or report.exit.status == 1 or report.type == f"exit {report.exit.status}"
    return said if is_expected else f"{said} ({report.exit})"


def _hint(cause: RankFailure) -> str:
    if cause.how is RankFailureMode.SILENT:
        return "data.crash has where it was; raise timeout_s if it only needs longer"
    number = None if cause.exit is None else cause.exit.signal
    if cause.how is RankFailureMode.ENDED and number == signal.SIGKILL:
        return "check whether it was killed for memory: dmesg"
    if cause.how is RankFailureMode.ENDED and number in {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE}:
        return "data.crash has where it was when it crashed"
    return ""


def _facts(report: RankFailure) -> dict[str, Any]:
    return {
        "rank": report.rank,
        "device": report.device,
        "phase": report.phase.name,
        "how": str(report.how),
        "type": report.type,
        "text": report.text,
        "exit": None if report.exit is None else str(report.exit),
        "after_s": round(report.after_s, 6),
    }


def _waits(pending: PendingRank) -> dict[str, Any]:
    return {
        "rank": pending.rank,
        "device": pending.device,
        "phase": pending.phase.name,
        "for_s": round(pending.for_s, 6),
    }


def _dragged(facts: Mapping[str, Any]) -> str:
    text = f"{facts['type']}: {facts['text']}" if facts["type"] and facts["text"] else facts["type"]
    said = text.splitlines()[0] if text else facts["exit"] or "gone"
    return f"rank {facts['rank']} ({facts['device']}) in {facts['phase']} after {seconds(facts['after_s'])}: {said}"


def seconds(value_s: float) -> str:
    """Return a duration as it stands in a sentence: `0.4 s`, `120 s`."""
    return f"{value_s:.0f} s" if value_s >= 10 else f"{value_s:.1f} s"
