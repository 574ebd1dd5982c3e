"""The end of a sweep: how many trials went how, what its error is, and what a trial that failed leaves behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress

from stoker.core.errors import InvalidInput, StokerError, TrialsCancelled
from stoker.core.text import BEST
from stoker.host.durable import replace_symlink
from stoker.jobs.trials import TrialEnd
from stoker.store.local_store import LocalStore
from stoker.store.results import SIDECAR, is_sidecar, lay_out, led_beside

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
