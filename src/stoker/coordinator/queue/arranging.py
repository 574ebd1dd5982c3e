"""Who comes after whom in a submission: names become jobs, of this submission first, else of those known already."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from stoker.coordinator.queue.outcomes import Fate
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.model.errors import Faults
from stoker.model.faults import Fault
from stoker.model.frozen import frozen
from stoker.model.lifecycle import JobState
from stoker.model.suggest import did_you_mean
from stoker.wire.orders import Outcome


@frozen
class Arrangement:
    """Numbers of jobs, and what they wait for."""

    seqs: dict[str, int]
    """By id; new ones are numbered on."""
    befores: dict[int, tuple[int, ...]]
    """What a job is to come after, where that is to be written down."""
    blockers: dict[int, int]
    """How many of those are not complete."""


def arrange(turn: Turn, fates: list[Fate], *, may_lack: bool = False) -> Arrangement:
    """Number new jobs and find what each is to come after; with `may_lack`, names of jobs that are not known may occur.

    Raises `Faults` for names that nothing goes by, and for jobs that would wait for themselves.
    """
    seqs: dict[str, int] = {}
    newest = turn.book.seq
    for fate in fates:
        newest += fate.row is None
        seqs[fate.draft.order.id] = newest if fate.row is None else fate.row.seq
    arranged = [fate for fate in fates if fate.draft.order.after and _is_written(fate)]
    dropped = [fate for fate in fates if not fate.draft.order.after and "after" in fate.changes]
    befores: dict[int, tuple[int, ...]] = {seqs[fate.draft.order.id]: () for fate in dropped}
    blockers: dict[int, int] = {}
    if arranged:
        words = {word for fate in arranged for word in fate.draft.order.after}
        named = _named(turn, fates, seqs, words, may_lack=may_lack)
        for fate in arranged:
            at = seqs[fate.draft.order.id]
            found = {before: state for word in fate.draft.order.after for before, state in named.get(word, {}).items()}
            found.pop(at, None)
            befores[at] = tuple(sorted(found))
            blockers[at] = sum(1 for state in found.values() if state != JobState.COMPLETED.value)
    if any(fate.row is not None for fate in arranged):
        _refuse_circles(turn, fates, seqs, befores)
    return Arrangement(seqs=seqs, befores=befores, blockers=blockers)


def _refuse_circles(turn: Turn, fates: list[Fate], seqs: dict[str, int], befores: dict[int, tuple[int, ...]]) -> None:
    """Find a circle through jobs that are known already; one among new jobs alone was found when they were drafted."""
    ways = dict(befores)
    ahead = {before for some in befores.values() for before in some} - ways.keys()
    while ahead:
        ways.update(dict.fromkeys(ahead, ()))
        for seq, before, _ in turn.read(turn.queries.before, seqs=turn.many(sorted(ahead))):
            ways[seq] = (*ways[seq], before)
        ahead = {before for seq in ahead for before in ways[seq]} - ways.keys()
    try:
        TopologicalSorter(ways).prepare()
    except CycleError as error:
        circle: list[int] = error.args[1][::-1]
        shown = {seqs[fate.draft.order.id]: fate.draft.shown for fate in fates}
        known = turn.read(turn.queries.jobs_by_seq, seqs=turn.many(sorted(set(circle) - shown.keys())))
        shown |= {row.seq: row.shown for row in (JobRow(*row) for row in known)}
        names = [shown[seq] for seq in circle]
        raise Faults(
            "jobs would wait for themselves",
            faults=(Fault(names[0], f"waits for itself: {' → '.join(names)}"),),
            hint="nothing was submitted",
        ) from None


def _is_written(fate: Fate) -> bool:
    return fate.outcome is Outcome.NEW or "after" in fate.changes


def _named(
    turn: Turn, fates: list[Fate], seqs: dict[str, int], words: set[str], *, may_lack: bool
) -> dict[str, dict[int, str]]:
    """Give the jobs that each word stands for, with their states."""
    named: dict[str, dict[int, str]] = {}
    for fate in fates:
        for word in {fate.draft.order.name, fate.draft.shown}:
            named.setdefault(word, {})[seqs[fate.draft.order.id]] = fate.state
    elsewhere = words - named.keys()
    if elsewhere:
        bases = elsewhere | {word.rpartition("/")[0] for word in elsewhere}
        newest: dict[tuple[str, int], tuple[int, str]] = {}
        for seq, name, number, state in turn.read(turn.queries.names, names=turn.many(sorted(bases))):
            newest[name, number] = max(newest.get((name, number), (0, "")), (seq, state))
        for (name, number), (seq, state) in newest.items():
            for word in {name, f"{name}/{number}"} & elsewhere:
                named.setdefault(word, {})[seq] = state
    missing = sorted(words - named.keys())
    if missing and not may_lack:
        raise Faults(
            f"{len(missing)} name{'s' * (len(missing) != 1)} in `after` stand for no job",
            faults=tuple(Fault("after", f"there is no job {word!r}", did_you_mean(word, named)) for word in missing),
            hint="name a job of this submission, or one that was submitted before",
        )
    return named
