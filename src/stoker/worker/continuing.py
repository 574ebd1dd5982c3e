"""What a sweep takes over from earlier jobs: results that serve as they are, so that only the rest runs.

Recipes, and programs with declared inputs, need little of this: for them the cache knows. A program without them goes
on from what its index says; and whoever asks for what failed in an earlier job keeps everything that did not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.model.digests import Digest
from stoker.model.frozen import changed, fresh, frozen
from stoker.plan.cache import Cache
from stoker.store.local import LocalStore
from stoker.store.records import Record
from stoker.worker.ordering import Order
from stoker.worker.ran_code import RanCode, digest_of_code
from stoker.worker.story import Story
from stoker.worker.sweep_index import Decision, Finished, IndexEntry, SweepIndex, Written, decide_kept
from stoker.worker.trials import Trial, TrialEnd, end_of, is_sweep, shared_nodes


@frozen
class Continuation:
    """What a run takes over from earlier ones."""

    kept: Mapping[str, Digest] = fresh(factory=dict)
    """Nodes whose results serve, by their keys."""
    index: IndexEntry | None = None
    """Where the trials of a program that finish are written down."""
    ran_code: RanCode | None = None
    """Of a program's sweep: watches whether it is edited meanwhile."""
    note: str = ""


def go_on(order: Order, cache: Cache, folder: str, *, afresh: bool = False) -> Continuation:
    """Decide what a program's sweep keeps. Writes nothing: `index.begin` does, when it really runs.

    `folder` holds the indexes of all families; `afresh` keeps nothing.
    """
    entry, written = _index_of(order, folder)
    if entry is None:
        return Continuation(ran_code=_ran_code(order, cache))
    wanted = [trial.job_id for trial in order.trials]
    whole = _whole(order, order.trials, written, cache)
    decision = (
        Decision(kept=frozenset(), afresh=frozenset(wanted), why="")
        if afresh
        else decide_kept(wanted, whole, code=entry.code, is_ended=written.is_ended)
    )
    return Continuation(
        kept=_keys(order.trials, decision.kept, whole),
        index=changed(entry, afresh=decision.afresh),
        ran_code=_ran_code(order, cache),
        note=f"{decision.why} (--rerun run runs all of them again)" if decision.kept else decision.why,
    )


def go_on_after(
    order: Order, cache: Cache, folder: str, *, trials: Sequence[Trial], story: Story
) -> tuple[Continuation, int]:
    """Decide what is kept of an earlier job (its trials, its journal) of which only what failed is wanted again.

    Also gives how many trials there are to run.
    """
    shared = shared_nodes(trials)
    ends = {trial.number: end_of(trial, story, shared) for trial in trials}
    kept = _kept_of_job(order, ends, story, cache.store)
    entry, written = _index_of(order, folder)
    if entry is not None:
        # Killed after a result had its name and before the journal told: it is no failure, and need not run again.
        unreached = [trial for trial in order.trials if ends[trial.number].state not in ("completed", "failed")]
        whole = _whole(order, unreached, written, cache)
        usable = frozenset(trial for trial, one in whole.items() if one.code == entry.code)
        kept |= _keys(unreached, usable, whole)
    open_count = sum(trial.nodes.final not in kept for trial in order.trials)
    count = len(order.trials)
    kept_count = count - open_count
    those = "is kept as it is" if kept_count == 1 else "are kept as they are"
    note = f"{kept_count} of {count} trials {those}" if kept_count else ""
    return Continuation(kept=kept, index=entry, ran_code=_ran_code(order, cache), note=note), open_count


def _ran_code(order: Order, cache: Cache) -> RanCode | None:
    if order.program is None or not is_sweep(order.trials):
        return None
    return RanCode(order.program.folder, order.code, cache.digest_of)


def _index_of(order: Order, folder: str) -> tuple[IndexEntry | None, Written]:
    """Give where an order's trials are written down, and what is; nothing where the cache knows by itself."""
    program = order.program
    if program is None or not is_sweep(order.trials) or order.plan.node(order.trials[0].nodes.final).stage.cached:
        return None, Written()
    index = SweepIndex(folder, program.family())
    code = digest_of_code(order.code)
    return IndexEntry(index=index, attempt=order.spec.attempt, code=code), index.read()


def _whole(order: Order, trials: Sequence[Trial], written: Written, cache: Cache) -> dict[str, Finished]:
    """Give which of some trials have finished and lie in the store as they were written down."""
    found: dict[str, Finished] = {}
    if not written.finished and not written.attempts:
        return found
    nodes = {node.id: node for node in order.plan.nodes}
    for trial in trials:
        line = written.finished.get(trial.job_id)
        key = Digest(line.key) if line else cache.action(nodes[trial.nodes.final], {}).key()
        record = cache.store.peek(key)
        if not isinstance(record, Record) or record.is_tombstone:
            continue
        if line is not None and record.digest == line.digest:
            found[trial.job_id] = line
            continue
        # Another line, or a single run of the same program, may have put its own result there meanwhile.
        attempt = str(record.body.get("attempt", ""))
        if attempt in written.attempts:
            code = written.attempts[attempt]
            found[trial.job_id] = Finished(key=key, digest=record.digest, code=code, attempt=attempt)
    return found


def _keys(trials: Sequence[Trial], kept: frozenset[str], whole: Mapping[str, Finished]) -> dict[str, Digest]:
    return {trial.nodes.final: Digest(whole[trial.job_id].key) for trial in trials if trial.job_id in kept}


def _kept_of_job(order: Order, ends: Mapping[int, TrialEnd], story: Story, store: LocalStore) -> dict[str, Digest]:
    """Give the results of an earlier job's good trials, but none that a trial which is to run would read."""
    read_again: set[str] = set()
    good: dict[str, str] = {}
    for trial in order.trials:
        end = ends[trial.number]
        if end.state != "completed":
            read_again.update(trial.nodes.nodes)
            continue
        then, now = end.trial.nodes, trial.nodes
        good.update({name: name for name in now.nodes if name in then.nodes})
        # The recipe may have been rewired since: then only the ends of a trial are known to be the same.
        good.update(zip((then.final, *then.keep), (now.final, *now.keep), strict=False))
    kept: dict[str, Digest] = {}
    for node in story.nodes.values():
        base, bracket, rest = node.node.partition("[")
        name = good.get(base)
        if name is None or name in read_again or node.ending not in ("ran", "hit") or not node.key:
            continue
        record = store.peek(Digest(node.key))
        if isinstance(record, Record) and record.digest == node.digest:
            kept[f"{name}{bracket}{rest}"] = Digest(node.key)
    return kept
