"""Find what is kept by what people call it: the name it was put under, or the beginning of a digest."""

from __future__ import annotations

from stoker.model.errors import Ambiguous, CorruptBytes, NotFound
from stoker.model.suggest import did_you_mean
from stoker.store.local import LocalStore
from stoker.store.prune import all_records
from stoker.store.records import Record
from stoker.store.refs import find_ref, list_refs

_SHORTEST_PREFIX = 4


def resolve(store: LocalStore, text: str) -> list[Record]:
    """Find what a name, or the beginning of a digest or a key, stands for: every record of that one tree.

    `NotFound`, `Ambiguous`, or `CorruptBytes` for a name that can't be read.
    """
    ref = find_ref(store.places, text)
    if ref is not None:
        if ref.damage:
            raise CorruptBytes(f"the ref {text} can't be read: {ref.damage}", hint="`stoker store verify` mends it")
        record = store.peek(ref.key)
        if not isinstance(record, Record):
            raise CorruptBytes(f"what {text} stands for is gone", hint="put it again", digest=ref.digest)
        return [record]
    found = [] if len(text) < _SHORTEST_PREFIX else [
        record for record, _ in all_records(store) if record.digest.startswith(text) or record.key.startswith(text)
    ]  # fmt: skip
    trees = {record.digest for record in found}
    if len(trees) > 1:
        raise Ambiguous(f"{text!r} begins the digests of {len(trees)} things", hint="type more of it")
    if not found:
        names = [ref.name for ref in list_refs(store.places)]
        hint = did_you_mean(text, names) or "`stoker store refs` lists what was put, `stoker jobs` what was run"
        raise NotFound(f"nothing goes by {text!r} here", hint=hint)
    return found
