"""What a word means that may be a job, the name of something that was put, or the beginning of a digest."""

from __future__ import annotations

from stoker.cli.context import CommandContext
from stoker.core.errors import Ambiguous, NotFound
from stoker.core.frozen import frozen
from stoker.jobs.job_folder import JobFolder
from stoker.store.prune import resolve
from stoker.store.records import Record
from stoker.store.refs import find_ref

_MEANT = "did you mean"


@frozen
class StoredItem:
    """Something in the store that is not a job's: what people call it, and every record that holds it."""

    name: str
    records: tuple[Record, ...]


def job_or_kept(call: CommandContext, word: str) -> JobFolder | StoredItem:
    """Find what a word stands for. A job wins, and if something was put under the same name, that is said."""
    store = call.parts.store
    ref = find_ref(store.places, word)
    try:
        folder = call.find_job(word)
    except NotFound as error:
        try:
            records = resolve(store, word)
        except NotFound as other:
            if word == "last":
                raise error from None
            hint = error.hint if error.hint.startswith(_MEANT) else other.hint
            raise NotFound(f"there is no job {word!r}, and nothing was put under that name", hint=hint) from None
        return StoredItem(name=ref.name if ref else records[0].digest[:12], records=tuple(records))
    except Ambiguous:
        if ref is None:
            raise
        return StoredItem(name=ref.name, records=tuple(resolve(store, word)))
    if ref is not None:
        call.out.note(f"note: the job {word} is meant; what was put as {word} goes by its digest, {ref.digest[:12]}")
    return folder
