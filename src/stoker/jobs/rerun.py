"""Results that a sweep keeps from earlier jobs, so that only the rest runs.

Recipes, and programs with declared inputs, have the cache. A program without declared inputs continues from its index.
`run --failed` keeps everything of an earlier job that did not fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.core.digests import Digest
from stoker.core.errors import NotFound, Refused
from stoker.core.frozen import changed, frozen
from stoker.core.text import did_you_mean
from stoker.engine.action import Action
from stoker.engine.execution.schedule import PlanProgress
from stoker.engine.plan import Plan, PlanNode
from stoker.engine.result_cache import Cache, Hit, adopt
from stoker.engine.types import NodeEnding, NodeResult
from stoker.jobs.builder import JobBuild
from stoker.jobs.execution import Continuation
from stoker.jobs.job_history import RunHistory
from stoker.jobs.sweeps import (
    FinishedTrial,
    IndexEntry,
    SweepDecision,
    SweepIndex,
    SweepIndexContent,
    TrialCode,
    decide_kept,
    digest_of_code,
)
from stoker.jobs.trials import Trial, TrialEnd, end_of, is_sweep, shared_nodes
from stoker.store.local_store import LocalStore
from stoker.store.records import Record


def go_on(order: JobBuild, cache: Cache, folder: str, *, afresh: bool = False) -> Continuation:
    """Decide what a program's sweep keeps. Writes nothing: `index.begin` does, when it runs.

    `folder` has the indexes of all families; `afresh` keeps nothing.
    """
    entry, written = _index_of(order, folder)
    if entry is None:
        return Continuation(ran_code=_ran_code(order, cache))
    wanted = [trial.spec.id for trial in order.trials]
    whole = _whole(order, order.trials, written, cache)
    decision = (
        SweepDecision(kept=frozenset(), afresh=frozenset(wanted), why="")
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
    order: JobBuild, cache: Cache, folder: str, *, trials: Sequence[Trial], story: RunHistory
) -> tuple[Continuation, int]:
    """Decide what `run --failed` keeps of an earlier job, from its trials and journal.

    Also return the number of trials to run.
    """
    shared = shared_nodes(trials)
    ends = {trial.spec.number: end_of(trial, story, shared) for trial in trials}
    kept = _kept_of_job(order, ends, story, cache.store)
    entry, written = _index_of(order, folder)
    if entry is not None:
        # Killed after a result had its name and before its event was written: no failure, and need not run again.
        unreached = [trial for trial in order.trials if ends[trial.spec.number].state not in ("completed", "failed")]
        whole = _whole(order, unreached, written, cache)
        usable = frozenset(trial for trial, one in whole.items() if one.code == entry.code)
        kept |= _keys(unreached, usable, whole)
    open_count = sum(trial.nodes.final not in kept for trial in order.trials)
    count = len(order.trials)
    kept_count = count - open_count
    those = "is kept as it is" if kept_count == 1 else "are kept as they are"
    note = f"{kept_count} of {count} trials {those}" if kept_count else ""
    return Continuation(kept=kept, index=entry, ran_code=_ran_code(order, cache), note=note), open_count


def _ran_code(order: JobBuild, cache: Cache) -> TrialCode | None:
    if order.program is None or not is_sweep(order.trials):
        return None
    return TrialCode(order.program.folder, order.code, cache.digest_of)


def _index_of(order: JobBuild, folder: str) -> tuple[IndexEntry | None, SweepIndexContent]:
    """Return the index of a job's trials and its content; None if the cache has the results."""
    program = order.program
    if program is None or not is_sweep(order.trials) or order.plan.node(order.trials[0].nodes.final).stage.cached:
        return None, SweepIndexContent()
    index = SweepIndex(folder, program.family())
    code = digest_of_code(order.code)
    return IndexEntry(index=index, code=code), index.read()


def _whole(
    order: JobBuild, trials: Sequence[Trial], written: SweepIndexContent, cache: Cache
) -> dict[str, FinishedTrial]:
    """Return the trials that have finished and whose results are in the store as recorded."""
    found: dict[str, FinishedTrial] = {}
    if not written.finished and not written.attempts:
        return found
    nodes = {node.id: node for node in order.plan.nodes}
    for trial in trials:
        line = written.finished.get(trial.spec.id)
        key = Digest(line.key) if line else cache.action(nodes[trial.nodes.final], {}).key()
        record = cache.store.peek(key)
        if not isinstance(record, Record) or record.is_tombstone:
            continue
        if line is not None and record.digest == line.digest:
            found[trial.spec.id] = line
            continue
        # Another sweep, or a single run of the same program, may have put its own result there meanwhile.
        attempt = str(record.body.get("attempt", ""))
        if attempt in written.attempts:
            code = written.attempts[attempt]
            found[trial.spec.id] = FinishedTrial(key=key, digest=record.digest, code=code, attempt=attempt)
    return found


def _keys(trials: Sequence[Trial], kept: frozenset[str], whole: Mapping[str, FinishedTrial]) -> dict[str, Digest]:
    return {trial.nodes.final: Digest(whole[trial.spec.id].key) for trial in trials if trial.spec.id in kept}


def _kept_of_job(
    order: JobBuild, ends: Mapping[int, TrialEnd], story: RunHistory, store: LocalStore
) -> dict[str, Digest]:
    """Return the results of an earlier job's completed trials, except those that a trial to run would read."""
    read_again: set[str] = set()
    good: dict[str, str] = {}
    for trial in order.trials:
        end = ends[trial.spec.number]
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


@frozen
class AdoptionApproval:
    """Author and reason of an adoption."""

    author: str
    reason: str
    at_s: float


@frozen
class AdoptedResult:
    """A result that is now also stored under another key."""

    node: str
    old: Digest
    new: Digest


def adopt_stage(
    cache: Cache, plan: Plan, stage: str, *, old: Mapping[str, Digest], blessing: AdoptionApproval
) -> list[AdoptedResult]:
    """Adopt for one node, or for every instance of a fan-out; `old` has the key to adopt by node or instance.

    Only a person can know that a change has no effect; `engine.result_cache` records author and reason. Results of the
    stages before it must be known: the stage's key is made from them.
    """
    node = next((node for node in plan.nodes if node.id == stage), None)
    if node is None:
        known = [node.id for node in plan.nodes]
        raise NotFound(
            f"the plan has no stage {stage!r}", hint=did_you_mean(stage, known) or f"its stages: {', '.join(known)}"
        )
    progress = _known_before(cache, plan, node)
    adopted = []
    for name in _names(progress, node):
        key = old.get(name)
        if key is None:
            raise NotFound(f"the job has no result of {name} to adopt", hint="name one with --from KEY")
        action = _action(cache, progress, name)
        record = adopt(
            cache, old=key, action=action, author=blessing.author, reason=blessing.reason, at_s=blessing.at_s
        )
        adopted.append(AdoptedResult(node=name, old=key, new=record.key))
    return adopted


def _known_before(cache: Cache, plan: Plan, target: PlanNode) -> PlanProgress:
    """Return the known results of every node before the target. Raises `Refused` if one is not known."""
    needed = _ancestors(plan, target)
    progress = PlanProgress(plan)
    for node in plan.nodes:
        if node.id not in needed:
            continue
        for name in _names(progress, node):
            key = _action(cache, progress, name).key()
            look = cache.look(node.stage, key)
            if not isinstance(look, Hit):
                raise Refused(
                    f"{name} comes before {target.id} and is not known either",
                    hint=f"adopt {node.id} first, or run the job",
                )
            products = cache.products(node.stage, look.record)
            progress.results[name] = NodeResult(ending=NodeEnding.HIT, key=key, products=products)
        if node.fans_out:
            progress.collect(node.id)
    return progress


def _ancestors(plan: Plan, target: PlanNode) -> set[str]:
    by_id = {node.id: node for node in plan.nodes}
    found: set[str] = set()
    waiting = list(target.producers())
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += by_id[name].producers()
    return found


def _names(progress: PlanProgress, node: PlanNode) -> list[str]:
    """Return the node, or the instances of a fan-out."""
    if not node.fans_out:
        return [node.id]
    try:
        return progress.expand(node.id, progress.items_for(node.id))
    except ValueError as error:
        raise Refused(f"{node.id}: {error}") from None


def _action(cache: Cache, progress: PlanProgress, name: str) -> Action:
    inputs = progress.inputs_of(name)
    refs = {port: tuple(product.ref for product in given) for port, given in inputs.items()}
    return cache.action(progress.nodes[name], refs)
