"""From where a machine takes a tree: decided purely.

Whoever has it whole comes first, the least busy of them. While nobody has, one machine takes it from the coordinator
and the others from each other in a chain: each from one that began before it and that nobody else takes from yet. So a
tree leaves the coordinator once, however many machines want it at the same time. Behind every machine stands the
coordinator, should that one fail.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model.frozen import fresh, frozen

FROM_COORDINATOR = 1
"""So many may take one tree from the coordinator at once."""
FROM_HOLDER = 4
"""So many may take one tree from a machine that has it; beyond, the coordinator helps."""


@frozen
class Holder:
    """A machine that has a tree whole, and says where others can get it."""

    machine: str
    url: str


@frozen
class Fetcher:
    """A machine that is bringing a tree to itself."""

    machine: str
    began: int
    """In the order of beginning; an earlier one is further along."""
    takes_from: str
    """A machine; empty: the coordinator."""
    url: str = ""
    """Where others can get from it what has come; empty: nowhere."""


@frozen
class Choice:
    """Where to take it from, best first; the name is empty for the coordinator."""

    places: tuple[tuple[str, str, bool], ...]
    """Machine, address, and whether it is still getting it itself."""
    takes_from: str = ""
    """Whom this counts for."""
    why: str = ""


@frozen
class Known:
    """What is known of one tree."""

    is_here: bool
    """The coordinator has it."""
    holders: tuple[Holder, ...] = ()
    fetchers: Mapping[str, Fetcher] = fresh(factory=dict)


def choose_sources(
    known: Known,
    asker: str,
    *,
    began: int,
    failed: frozenset[str] = frozenset(),
    most_from_coordinator: int = FROM_COORDINATOR,
    most_from_holder: int = FROM_HOLDER,
) -> Choice:
    """Choose for a machine that asks; `began` is its own place in the order of beginning."""
    others = [fetcher for fetcher in known.fetchers.values() if fetcher.machine != asker]
    busy: dict[str, int] = {}
    for fetcher in others:
        busy[fetcher.takes_from] = busy.get(fetcher.takes_from, 0) + 1
    last = (("", "", False),) if known.is_here else ()
    holders = sorted(
        (one for one in known.holders if one.machine not in failed | {asker} and one.url),
        key=lambda one: (busy.get(one.machine, 0), one.machine),
    )
    holders = [one for one in holders if busy.get(one.machine, 0) < most_from_holder] or (
        [] if known.is_here else holders
    )
    if holders:
        places = tuple((one.machine, one.url, False) for one in holders[:3])
        return Choice(places=(*places, *last), takes_from=holders[0].machine, why="it has the tree")
    if known.is_here and busy.get("", 0) < most_from_coordinator:
        return Choice(places=last, why="nobody else takes it from the coordinator")
    chain = sorted(
        (
            one
            for one in others
            if one.url and one.began < began and one.machine not in failed and not _leads_to(known, one, asker)
        ),
        # Last in the chain first: nobody takes from it yet.
        key=lambda one: (busy.get(one.machine, 0), one.began),
    )
    if chain:
        best = chain[0]
        return Choice(
            places=((best.machine, best.url, True), *last), takes_from=best.machine, why="it is further along"
        )
    return Choice(places=last, why="no machine that has begun can pass it on" if last else "nobody has it")


def _leads_to(known: Known, one: Fetcher, asker: str) -> bool:
    """Whether a machine gets its bytes, in the end, from the one that asks."""
    seen: set[str] = set()
    while one.takes_from and one.takes_from not in seen:
        if one.takes_from == asker:
            return True
        seen.add(one.takes_from)
        further = known.fetchers.get(one.takes_from)
        if further is None:
            return False
        one = further
    return False
