"""Where a tree comes from: the coordinator, or a machine of the fleet that has it, or is still getting it.

The coordinator says who (`/v1/sources`), nearest first. A machine that does not answer, or sends something else, is
told to it and not asked again; the coordinator itself is always the last resort.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from stoker.host.http.exchange import Transport
from stoker.model.closable import Closable
from stoker.model.digests import Digest
from stoker.model.errors import BadAnswer, NotFound, StokerError
from stoker.model.fleet_errors import NotAllowed
from stoker.model.frozen import frozen
from stoker.wire.contents import Place, Sources, SourcesAsk


class TreeLine(Protocol):
    """A place that has trees, as far as fetching goes. `FleetClient` has it."""

    def tree_listing(self, tree: str) -> bytes:
        """Give a tree's listing."""

    def fetch_contents(self, digests: Sequence[str]) -> AbstractContextManager[Iterator[tuple[Digest, bytes]]]:
        """Fetch small files together, each verified; what is not there does not come."""

    def object_address(self, sha256: str) -> tuple[str, dict[str, str]]:
        """Give where a file's bytes are, and what to say there."""


class SourcesLine(TreeLine, Protocol):
    """A coordinator that says where trees are."""

    def sources(self, asked: SourcesAsk) -> Sources:
        """Ask where to get trees."""


@frozen
class Origin:
    """One place, and the way there."""

    line: TreeLine
    transport: Transport
    machine: str = ""
    """Whose it is; empty: the coordinator's."""
    is_partial: bool = False
    """It is still getting the tree itself."""


class Origins(Protocol):
    """Says where a tree can be had."""

    def find(self, tree: str, failed: frozenset[str]) -> tuple[Origin, ...]:
        """Give places, best first; none: nobody has it. `failed`: machines that were no good.

        Asked again every half minute while the tree comes, so that it is known who still takes it.
        """


class FleetOrigins(Closable):
    """Whatever the coordinator says. Safe to use from several threads. Close it when the trees are here.

    `open_peer` opens the way to a machine: over TLS, by the fleet's CA, to that machine and no other; nothing where
    this worker can't (it has no certificate). See `worker.peering.reaching`.
    """

    def __init__(
        self,
        line: SourcesLine,
        transport: Transport,
        *,
        worker: str,
        open_peer: Callable[[Place], tuple[TreeLine, Transport] | None],
    ) -> None:
        self._line = line
        self._coordinator = Origin(line=line, transport=transport)
        self._worker = worker
        self._open_peer = open_peer
        self._turn = threading.Lock()
        self._peers: dict[tuple[str, str], tuple[TreeLine, Transport]] = {}
        self._failed: frozenset[str] = frozenset()

    def find(self, tree: str, failed: frozenset[str]) -> tuple[Origin, ...]:
        # A machine that could not be reached for one tree is not waited for with the next.
        self._failed = failed = self._failed | failed
        try:
            asked = SourcesAsk(worker=self._worker, trees=(tree,), failed=tuple(sorted(failed))[:100])
            answered = self._line.sources(asked).trees
        except (NotFound, NotAllowed, BadAnswer):
            # One that knows no sources, or does not tell us: it has the tree itself, or nobody has.
            return (self._coordinator,)
        places = next((one.places for one in answered if one.tree == tree), ())
        found = [origin for place in places if (origin := self._origin(place, failed)) is not None]
        return tuple(found)

    def close(self) -> None:
        """Close the ways to other machines; that to the coordinator is its owner's."""
        for _, transport in self._peers.values():
            transport.close()
        self._peers.clear()

    def _origin(self, place: Place, failed: frozenset[str]) -> Origin | None:
        if not place.machine:
            return self._coordinator
        if place.machine in failed:
            return None
        key = (place.machine, place.url)
        with self._turn:
            way = self._peers.get(key)
            if way is None:
                with suppress(StokerError):
                    way = self._open_peer(place)
                if way is None:
                    return None
                self._peers[key] = way
        line, transport = way
        return Origin(line=line, transport=transport, machine=place.machine, is_partial=place.is_partial)
