"""Who sat beside whom: what a company remembers of a member's time in it, for the record of its attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.core.frozen import changeable, fresh, frozen
from stoker.core.text import one_line

_MOST_NAMED = 16
_LONGEST_NAME = 200


@frozen
class MemberUsage:
    """One member's time in a company, once it is over."""

    process: int
    """Which one worked for all of them."""
    members: int
    """The most that sat there at once, itself among them."""
    others: int
    """How many it shared the process with at any time."""
    named: tuple[str, ...]
    """The first of those, each by its job and stage."""

    def to_json(self) -> dict[str, Any]:
        return {"process": self.process, "members": self.members, "others": self.others, "with": list(self.named)}


def read_stay(told: object) -> MemberUsage | None:
    """Read what `to_json` gave; nothing of what is none."""
    if not isinstance(told, Mapping):
        return None
    counts = [one for name in ("process", "members", "others") if type(one := told.get(name)) is int and one >= 0]
    named = told.get("with")
    if len(counts) < 3 or not isinstance(named, list):
        return None
    process, members, others = counts
    return MemberUsage(process=process, members=members, others=others, named=tuple(map(_name, named[:_MOST_NAMED])))


@changeable
class _Seated:
    name: str
    members: int
    others: int = 0
    named: list[str] = fresh(factory=list)

    def meet(self, another: _Seated, members: int) -> None:
        self.others += 1
        self.members = max(self.members, members)
        if len(self.named) < _MOST_NAMED:
            self.named.append(another.name)


class MemberUsageTracker:
    """All who sit in one company, by seat."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._seated: dict[int, _Seated] = {}

    def came(self, seat: int, name: object) -> None:
        """Somebody takes a seat."""
        members = len(self._seated) + 1
        newcomer = _Seated(name=_name(name), members=members)
        for one in self._seated.values():
            one.meet(newcomer, members)
            newcomer.meet(one, members)
        self._seated[seat] = newcomer

    def left(self, seat: int) -> MemberUsage:
        """Somebody leaves it; gives how it was."""
        one = self._seated.pop(seat)
        return MemberUsage(process=self._process, members=one.members, others=one.others, named=tuple(one.named))


def _name(told: object) -> str:
    return one_line(str(told), _LONGEST_NAME)
