"""A finished job's results, found again by their keys: to be copied out, or pinned."""

from __future__ import annotations

from stoker.model.digests import Digest
from stoker.model.errors import CorruptBytes, NotFound
from stoker.model.suggest import did_you_mean
from stoker.store.local import Found, LocalStore
from stoker.store.results import Part
from stoker.worker.job_folder import JobFolder
from stoker.worker.story import Story


def keys_of_job(folder: JobFolder, story: Story) -> dict[str, Digest]:
    """Give the key of each node that has a result: as the end says, or as far as the journal goes."""
    end = folder.ended()
    if end is not None and end.keys:
        return {name: Digest(key) for name, key in end.keys.items()}
    return {name: Digest(node.key) for name, node in story.nodes.items() if node.ending in ("hit", "ran") and node.key}


def keys_of_stage(folder: JobFolder, story: Story, stage: str) -> dict[str, Digest]:
    """Give the keys of one node, or of the instances of a fan-out."""
    keys = keys_of_job(folder, story)
    found = {name: key for name, key in keys.items() if name == stage or name.startswith(f"{stage}[")}
    if not found:
        hint = did_you_mean(stage, keys) or f"stages with results: {', '.join(list(keys)[:12]) or 'none'}"
        raise NotFound(f"job {folder.spec().name} has no result of a stage {stage!r}", hint=hint)
    return found


def parts_of_job(store: LocalStore, folder: JobFolder, story: Story, *, stage: str = "") -> list[Part]:
    """Give what of a job is worth copying out: its result and what its plan keeps, or all that one stage made."""
    if stage:
        found = keys_of_stage(folder, story, stage)
        return [_part(store, folder, name, key, "" if len(found) == 1 else name) for name, key in found.items()]
    keys = keys_of_job(folder, story)
    end = folder.ended()
    parts = []
    for position, node in enumerate(end.parts if end else ()):
        for name, key in keys.items():
            if name == node or name.startswith(f"{node}["):
                parts.append(_part(store, folder, name, key, "" if position == 0 and name == node else name))
    return parts


def _part(store: LocalStore, folder: JobFolder, node: str, key: Digest, below: str) -> Part:
    again = f"`stoker run {folder.spec().recipe}` with the same arguments makes it again"
    found = store.lookup(key)
    if not isinstance(found, Found) or found.record.is_tombstone:
        what = "was pruned" if isinstance(found, Found) else "is gone"
        raise NotFound(f"what {node} made {what}", hint=again, key=key)
    if found.lost:
        raise CorruptBytes(f"what {node} made is damaged: {', '.join(found.lost)}", hint=again, key=key)
    body = found.record.body
    kind, _, version = str(body.get("kind", "")).rpartition("@")
    return Part(
        record=found.record,
        folder=below,
        sidecar={
            "node": node,
            "kind": kind,
            "version": int(version) if version.isdigit() else None,
            "digest": found.record.digest,
            "stage": body.get("stage"),
            "key": key,
            "made_at": body.get("made_at"),
        },
    )
