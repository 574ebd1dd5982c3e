"""Jobs of a manifest that became others: same name, other values or data. Pure.

What a job reads and its values are part of its id, so such a job is new, and the one before it stays. For people it is
one job that changed: which of the two is told of by which word is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stoker.coordinator.queue.outcomes import Fate
from stoker.model.names import point_name
from stoker.wire.orders import Outcome

_SHORT = 12
_ASKED = ("recipe", "mode", "seed", "split_recipe", "train_hosts")


def replaced(fates: Iterable[Fate], left: Iterable[tuple[str, str, int]]) -> dict[str, str]:
    """Say which new jobs stand for which pending ones that their source no longer names: their ids, by name."""
    new = {(one.draft.order.name, one.draft.order.number): one.draft.order.id for one in fates if _is_new(one)}
    return {new[name, number]: old for old, name, number in left if (name, number) in new}


def what_differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Name what makes one order another job than an earlier one: `lr`, `data.DATA`, `seed`."""
    names = [key for key in _ASKED if (old.get(key) or None) != (new.get(key) or None)]
    before, now = old.get("identity", {}), new.get("identity", {})
    for key in dict.fromkeys((*now, *before)):
        was, is_now = before.get(key), now.get(key)
        # What is ours and no argument stands in brackets there.
        plain = str(key).strip("()")
        if was == is_now:
            continue
        if isinstance(was, dict) and isinstance(is_now, dict):
            inner = dict.fromkeys((*is_now, *was))
            names += [f"{plain}.{one}" for one in inner if was.get(one) != is_now.get(one)]
        else:
            names.append(plain)
    return tuple(names)


def shown_left(fates: Iterable[Fate], left: Iterable[tuple[str, str, int]], taken: Iterable[str]) -> tuple[str, ...]:
    """Give what people call the jobs that nothing stands for; with the id where the source calls another one so."""
    gone, named = set(taken), {one.draft.shown for one in fates}
    shown = ((id, point_name(name, number)) for id, name, number in left if id not in gone)
    return tuple(f"{name} as {id[:_SHORT]}" if name in named else name for id, name in shown)


def _is_new(fate: Fate) -> bool:
    return fate.outcome is Outcome.NEW
