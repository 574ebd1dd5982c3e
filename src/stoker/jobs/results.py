"""The end of a sweep, and a finished job's results, found again by their keys: to be copied out, or pinned."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress

from stoker.core.digests import Digest
from stoker.core.errors import CorruptBytes, InvalidInput, NotFound, StokerError, TrialsCancelled
from stoker.core.text import BEST, did_you_mean
from stoker.host.durable import replace_symlink
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import RunHistory
from stoker.jobs.program import RECIPE
from stoker.jobs.trials import TrialEnd, end_of, is_sweep, read_trials, shared_nodes, trial_numbered
from stoker.store.local_store import LocalStore, RecordHit
from stoker.store.records import Record
from stoker.store.results import SIDECAR, ResultPart, is_sidecar, lay_out, led_beside


def keys_of_job(folder: JobFolder, story: RunHistory) -> dict[str, Digest]:
    """Return the key of each node that has a result: as the end says, or as far as the journal goes."""
    end = folder.ended()
    if end is not None and end.keys:
        return {name: Digest(key) for name, key in end.keys.items()}
    return {name: Digest(node.key) for name, node in story.nodes.items() if node.ending in ("hit", "ran") and node.key}


def keys_of_stage(folder: JobFolder, story: RunHistory, stage: str) -> dict[str, Digest]:
    """Return the keys of one node, or of the instances of a fan-out."""
    keys = keys_of_job(folder, story)
    found = {name: key for name, key in keys.items() if name == stage or name.startswith(f"{stage}[")}
    if not found:
        hint = did_you_mean(stage, keys) or f"stages with results: {', '.join(list(keys)[:12]) or 'none'}"
        raise NotFound(f"job {folder.spec().name} has no result of a stage {stage!r}", hint=hint)
    return found


def parts_of_job(
    store: LocalStore, folder: JobFolder, story: RunHistory, *, stage: str = "", trial: str = ""
) -> list[ResultPart]:
    """Return what of a job is worth copying out: its result and what its plan keeps, or all that one stage made.

    Of a sweep, every trial's in a folder of its own, or that of one trial by its number.
    """
    trials = read_trials(folder)
    chosen = trial_numbered(trials, trial, folder.spec().name) if trial else None
    recipe = folder.spec().recipe
    if stage:
        name = f"{trial}.{stage}"
        found = keys_of_stage(folder, story, name if chosen and name in chosen.nodes.nodes else stage)
        return [
            part_of(store, name, key, below="" if len(found) == 1 else name, recipe=recipe, digest=_digest(story, name))
            for name, key in found.items()
        ]
    if is_sweep(trials):
        shared = shared_nodes(trials)
        return [
            part
            for one in trials
            if chosen in (None, one)
            for part in parts_of_trial(
                store, end_of(one, story, shared), below="" if chosen else one.spec.label, recipe=recipe
            )
        ]
    keys = keys_of_job(folder, story)
    end = folder.ended()
    parts = []
    for position, node in enumerate(end.parts if end else ()):
        for name, key in keys.items():
            if name == node or name.startswith(f"{node}["):
                below = "" if position == 0 and name == node else name
                parts.append(part_of(store, name, key, below=below, recipe=recipe, digest=_digest(story, name)))
    return parts


def parts_of_trial(store: LocalStore, end: TrialEnd, *, below: str, recipe: str) -> list[ResultPart]:
    """Return what a trial made: its result at the top of `below`, what its plan keeps in folders under that."""
    parts = []
    for name, key in end.keys.items():
        is_result = name == end.trial.nodes.final
        folder = "/".join(filter(None, (below, "" if is_result else name)))
        digest = end.digest if is_result else ""
        parts.append(part_of(store, name, Digest(key), below=folder, recipe=recipe, digest=digest))
    return parts


def part_of(store: LocalStore, node: str, key: Digest, *, below: str, recipe: str, digest: str = "") -> ResultPart:
    """Find what a node made; `NotFound` or `CorruptBytes` if its bytes are not there any more.

    A stage that is never cached puts its newest result where the one before was: `digest` says which one is meant.
    """
    again = "the line that ran it makes it again"
    if recipe != RECIPE:
        again = f"`stoker run {recipe}` with the same arguments makes it again"
    found = _found(store, key, what=f"what {node} made", again=again, digest=digest)
    return _part(found.record, node=node, below=below)


def part_of_record(store: LocalStore, key: Digest, *, name: str, again: str) -> ResultPart:
    """Return the record of a key. Raises `NotFound` or `CorruptBytes` if its bytes are missing."""
    return _part(_found(store, key, what=name, again=again).record, node=name, below="")


def _found(store: LocalStore, key: Digest, *, what: str, again: str, digest: str = "") -> RecordHit:
    found = store.lookup(key)
    if not isinstance(found, RecordHit) or found.record.is_tombstone:
        raise NotFound(f"{what} {'was pruned' if isinstance(found, RecordHit) else 'is gone'}", hint=again, key=key)
    if digest and found.record.digest != digest:
        raise NotFound(f"{what} was replaced by a later run of it", hint=again, key=key)
    if found.lost:
        raise CorruptBytes(f"{what} is damaged: {', '.join(found.lost)}", hint=again, key=key)
    return found


def _part(record: Record, *, node: str, below: str) -> ResultPart:
    body = record.body
    kind, _, version = str(body.get("kind", "")).partition("@")
    return ResultPart(
        record=record,
        folder=below,
        sidecar={
            "node": node,
            "kind": kind,
            "version": int(version) if version.isdigit() else None,
            "digest": record.digest,
            "stage": body.get("stage"),
            "key": record.key,
            "made_at": body.get("made_at"),
        },
    )


def _digest(story: RunHistory, name: str) -> str:
    node = story.nodes.get(name)
    return node.digest if node is not None else ""


# The end of a sweep: how many trials went how, what its error is, and what a trial that failed leaves behind.


_MOST_NAMED = 5


def count_ends(ends: Sequence[TrialEnd], total: int) -> dict[str, int]:
    """Count trials by how they ended; `kept` are those of the completed that ran nothing."""
    counts = Counter(end.state for end in ends)
    return {
        "completed": counts["completed"],
        "kept": sum(end.is_kept for end in ends),
        "failed": counts["failed"],
        "cancelled": counts["cancelled"],
        "not_run": total - len(ends),
    }


def error_of_sweep(error: StokerError | None, ends: Sequence[TrialEnd], total: int) -> StokerError | None:
    """Return the error of a sweep: a stage's failure with its trials named, or the trials that were cancelled.

    Why a whole run was stopped stays as it is.
    """
    if error is None:
        return _error_of_cancelled([end for end in ends if end.state == "cancelled"], total)
    failed = [end for end in ends if end.state == "failed"]
    if "node" not in error.data or isinstance(error, InvalidInput) or not failed:
        return error
    first = failed[0]
    if len(failed) == 1:
        message = f"{first.trial.spec.label}: {first.message}"
    else:
        message = f"{len(failed):,} of {total:,} trials failed, the first, {first.trial.spec.label}: {first.message}"
    return type(error)(message, hint=error.hint, **error.data)


def _error_of_cancelled(cancelled: Sequence[TrialEnd], total: int) -> StokerError | None:
    if not cancelled:
        return None
    labels = ", ".join(end.trial.spec.label for end in cancelled[:_MOST_NAMED]) + ", …" * (len(cancelled) > _MOST_NAMED)
    verb = "was" if len(cancelled) == 1 else "were"
    return TrialsCancelled(f"{len(cancelled):,} of {total:,} trials {verb} cancelled: {labels}")


def clear_away(store: LocalStore, folder: str) -> None:
    """Remove the plain files of an older trial of the same point; edited files stay."""
    if not os.path.isfile(os.path.join(folder, SIDECAR)):
        return
    lay_out(store, [], folder)
    with suppress(OSError):
        os.unlink(os.path.join(folder, SIDECAR))
        os.rmdir(folder)


# The link `best` in a job's folder, to the best trial of its newest run. A file of another origin called `best` stays.


def settle_best(out: str, label: str | None, labels: Collection[str]) -> str:
    """Make `best` lead to the trial of a label, or be no more; give what is in the way, if something is.

    `labels` are all trials of the run: what it cleared away was a trial's, too.
    """
    link = os.path.join(out, BEST)
    is_free = not os.path.lexists(link)
    if not is_free and not has_best(out, labels):
        return link if label is not None else ""
    if label is not None:
        replace_symlink(label, link)
    elif not is_free:
        os.unlink(link)
    return ""


def has_best(out: str, labels: Collection[str] = ()) -> bool:
    """Return True if `best` is a link of ours."""
    name = led_beside(os.path.join(out, BEST))
    if name is None:
        return False
    folder = os.path.join(out, name)
    return name in labels or not os.path.lexists(folder) or is_sidecar(os.path.join(folder, SIDECAR))
