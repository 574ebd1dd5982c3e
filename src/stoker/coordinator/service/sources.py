"""Who has which tree, and who is getting it: remembered while the coordinator runs, told by workers themselves.

Nothing here is durable or has to be: after a restart workers say hello again, and a tree that nobody is known to have
is taken from the coordinator. Inside the event loop, so no locks.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable

from stoker.coordinator.service.source_choice import Choice, Fetcher, Holder, Known, choose_sources
from stoker.model.clock import Clock
from stoker.wire.contents import Place, Sources, SourcesAsk, TreeSources
from stoker.wire.leasing import Hello, Holdings, Renewal

SILENT_S = 180.0
"""A machine that was not heard for so long is nobody's source."""
FETCHING_S = 120.0
"""Whoever brings a tree to itself says so again before this is over."""
_MOST_TREES = 10_000


class _Machine:
    """What one worker said of itself."""

    __slots__ = ("incarnation", "seen_s", "trees", "url")

    def __init__(self, incarnation: str, url: str, trees: frozenset[str], seen_s: float) -> None:
        self.incarnation = incarnation
        self.url = url
        self.trees = trees
        self.seen_s = seen_s


class SourceDesk:
    """Hears workers, and answers where trees are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: dict[str, _Machine] = {}
        self._fetching: OrderedDict[str, dict[str, tuple[Fetcher, float]]] = OrderedDict()
        self._began = itertools.count(1)

    def hear(self, said: Hello | Renewal) -> None:
        """Hear what a machine says of itself."""
        if isinstance(said, Hello):
            self.hello(said)
        else:
            self.renewal(said)

    def hello(self, hello: Hello) -> None:
        """Hear a worker's start: what it has is what it says now."""
        trees = frozenset(hello.holdings.trees if hello.holdings is not None else ())
        now_s = self._clock.monotonic_s()
        self._machines[hello.worker] = _Machine(hello.incarnation, hello.contents_at, trees, now_s)

    def renewal(self, renewal: Renewal) -> None:
        """Hear a heartbeat; most say nothing new."""
        machine = self._machines.get(renewal.worker)
        if machine is None or machine.incarnation != renewal.incarnation:
            return
        machine.seen_s = self._clock.monotonic_s()
        if renewal.holdings is not None:
            self._note(machine, renewal.worker, renewal.holdings)

    def forget(self, worker: str) -> None:
        """Hear that a machine is no longer of the fleet."""
        self._machines.pop(worker, None)

    def answer(self, asked: SourcesAsk, here: Iterable[str]) -> Sources:
        """Say where a worker gets trees from; `here` are those of them that the coordinator has."""
        with_us, failed = frozenset(here), frozenset(asked.failed)
        return Sources(trees=tuple(self._one(asked.worker, tree, tree in with_us, failed) for tree in asked.trees))

    def holders(self, tree: str) -> tuple[Holder, ...]:
        """Give the machines that have a tree whole and can be asked for it."""
        since_s = self._clock.monotonic_s() - SILENT_S
        return tuple(
            Holder(machine=name, url=machine.url)
            for name, machine in self._machines.items()
            if tree in machine.trees and machine.url and machine.seen_s >= since_s
        )

    def machines_with(self, tree: str) -> tuple[str, ...]:
        """Give the machines that have a tree whole, whether or not others can get it from them."""
        return tuple(sorted(name for name, machine in self._machines.items() if tree in machine.trees))

    def _one(self, worker: str, tree: str, is_here: bool, failed: frozenset[str]) -> TreeSources:  # noqa: FBT001
        now_s = self._clock.monotonic_s()
        fetching = self._fetching.setdefault(tree, {})
        self._fetching.move_to_end(tree)
        for name, (_, until_s) in list(fetching.items()):
            if until_s < now_s:
                del fetching[name]
        mine = fetching.get(worker)
        began = mine[0].began if mine is not None else next(self._began)
        fetchers = {name: fetcher for name, (fetcher, _) in fetching.items()}
        known = Known(is_here=is_here, holders=self.holders(tree), fetchers=fetchers)
        choice = self._choose(known, worker, began, failed, mine[0] if mine is not None else None)
        if choice.places:
            machine = self._machines.get(worker)
            url = machine.url if machine is not None else ""
            fetcher = Fetcher(machine=worker, began=began, takes_from=choice.takes_from, url=url)
            fetching[worker] = (fetcher, now_s + FETCHING_S)
        while len(self._fetching) > _MOST_TREES:
            self._fetching.popitem(last=False)
        places = tuple(Place(machine=name, url=url, is_partial=partial) for name, url, partial in choice.places)
        return TreeSources(tree=tree, places=places)

    def _choose(self, known: Known, worker: str, began: int, failed: frozenset[str], mine: Fetcher | None) -> Choice:
        if mine is not None and not mine.takes_from and known.is_here:
            # It asks again while it takes from the coordinator: its place there is its own.
            return choose_sources(Known(is_here=True, holders=known.holders), worker, began=began, failed=failed)
        return choose_sources(known, worker, began=began, failed=failed)

    def _note(self, machine: _Machine, name: str, holdings: Holdings) -> None:
        machine.trees = frozenset(holdings.trees)
        for tree in machine.trees:
            fetching = self._fetching.get(tree)
            if fetching is not None:
                fetching.pop(name, None)
