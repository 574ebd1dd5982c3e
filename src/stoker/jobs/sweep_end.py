"""The end of a sweep: how many trials went how, what its error is, and what a trial that failed leaves behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from stoker.core.errors import InvalidInput, StokerError, TrialsCancelled
from stoker.jobs.trials import TrialEnd
from stoker.store.local_store import LocalStore
from stoker.store.results import SIDECAR, lay_out

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
    """Take away what an older trial of the same point left as plain files; what somebody edited stays."""
    if not os.path.isfile(os.path.join(folder, SIDECAR)):
        return
    lay_out(store, [], folder)
    with suppress(OSError):
        os.unlink(os.path.join(folder, SIDECAR))
        os.rmdir(folder)
