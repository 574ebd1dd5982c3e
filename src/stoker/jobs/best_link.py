"""The link `best` in a job's folder: to the best trial of its newest run, if that has one.

Ours leads to a trial's folder right beside it. Whatever else somebody calls `best` there stays.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from stoker.core.text import BEST
from stoker.host.durable import replace_symlink
from stoker.store.results import SIDECAR, is_sidecar, led_beside


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
    """Return whether `best` is a link of ours."""
    name = led_beside(os.path.join(out, BEST))
    if name is None:
        return False
    folder = os.path.join(out, name)
    return name in labels or not os.path.lexists(folder) or is_sidecar(os.path.join(folder, SIDECAR))
