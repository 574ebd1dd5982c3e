"""Real stores for the tests of `store`: made, filled and looked into."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.core.clock import Clock, FakeClock
from stoker.core.digests import Digest, digest_value
from stoker.core.jsontext import loads
from stoker.host.durable import NO_STEP, remove_tree
from stoker.store.local_store import LocalStore, PublishedRecord, RecordHit
from stoker.store.prune import GRACE_S, PruneResult, carry_out, decide_prune, resolve
from stoker.store.put import PutRequest, StoredTree, StoreWriter, survey
from stoker.store.records import Record

# Past what goes inline, so that it becomes a blob.
BIG = 5000
DAY_S = 86400.0


def clock_of_now() -> FakeClock:
    """Return a clock that stands still, a little after every file that exists already."""
    return FakeClock(start_s=time.time() + 10)


def make_store(root: Path | str, *, clock: Clock | None = None, on_step: Callable[[str], None] = NO_STEP) -> LocalStore:
    store = LocalStore(str(root), clock=clock or clock_of_now(), on_step=on_step)
    store.open()
    return store


def key_of(name: object) -> Digest:
    return digest_value("key", str(name))


def fill(folder: Path | str, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        target = Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def stage_and_take_in(store: LocalStore, files: Mapping[str, bytes]) -> tuple[Any, dict[str, bytes], str]:
    staging = store.new_staging("attempt")
    fill(staging, files)
    tree, inline = store.take_in(staging)
    return tree, inline, staging


def commit(
    store: LocalStore,
    name: object,
    files: Mapping[str, bytes],
    *,
    replace: bool = False,
    body: dict[str, Any] | None = None,
) -> PublishedRecord:
    """Do what a run does with a finished stage."""
    tree, inline, staging = stage_and_take_in(store, files)
    published = store.publish(Record.of(key=key_of(name), tree=tree, inline=inline, body=body or {}), replace=replace)
    remove_tree(staging)
    return published


def found(store: LocalStore, name: object) -> RecordHit:
    outcome = store.lookup(key_of(name))
    assert isinstance(outcome, RecordHit), outcome
    return outcome


def contents(store: LocalStore, record: Record) -> dict[str, bytes]:
    return {entry.path: store.read_bytes(record, entry.path) for entry in record.tree.entries if entry.link_to is None}


def blob_of(store: LocalStore, name: object, path: str) -> Path:
    entry = next(entry for entry in found(store, name).record.tree.entries if entry.path == path)
    return Path(store.places.blob(entry.sha256))


def record_of(store: LocalStore, name: object) -> Path:
    return Path(store.places.record(key_of(name)))


def quarantined(store: LocalStore) -> list[str]:
    """Return the reasons that lie in quarantine, each of which must have its evidence beside it."""
    reasons = []
    folder = Path(store.places.quarantine)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".reason.json"):
            assert os.path.lexists(folder / name.removesuffix(".reason.json")), f"{name} has no evidence"
            reasons.append(loads((folder / name).read_bytes())["reason"])
        else:
            assert (folder / f"{name}.reason.json").exists(), f"{name} has no reason"
    return reasons


def files_below(folder: Path | str) -> dict[str, bytes]:
    top = Path(folder)
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def sweep(store: LocalStore, *, clock: Clock, grace_s: float = GRACE_S) -> PruneResult:
    """Prune without letting go of any record: only what nobody names goes."""
    nothing = decide_prune((), now_s=clock.wall_s(), max_bytes=None, older_than_s=None)
    return carry_out(store, nothing, clock=clock, grace_s=grace_s)


def put_in(
    store: LocalStore, path: Path | str, name: str, *, replace: bool = False, clock: Clock | None = None
) -> StoredTree:
    """Put a file or a folder, as the command does, without its screen."""
    wish = PutRequest(name=name, replace=replace, source=str(path))
    return StoreWriter(store, clock=clock or clock_of_now(), heed=lambda _: None).put(survey(str(path)), wish)


def put_contents(store: LocalStore, name: str) -> dict[str, bytes]:
    """Return the files of what a name stands for."""
    (record,) = resolve(store, name)
    return contents(store, record)
