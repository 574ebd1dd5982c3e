"""The rank that this process is, for the code that runs in it.

def step():
    rank = this_rank()
    rank.tensor("x").fill_(rank.rank)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.gang.contexts import Context
from stoker.gang.windows.seam import Block
from stoker.model.errors import NotFound
from stoker.model.frozen import frozen
from stoker.model.gang_errors import GangNotUp


@frozen
class Place:
    """Where a buffer lies, and what it holds."""

    offset: int
    nbytes: int
    dtype: str


class ThisRank:
    """One rank from inside: its context, its buffers and its peers'."""

    def __init__(
        self,
        context: Context,
        places: Sequence[Mapping[str, Place]],
        own: Block | None,
        open_peer: Callable[[int], Block],
        join: Callable[[], None],
    ) -> None:
        """`places` are by rank, the buffers of each by name; `join` makes the communicator if that was put off."""
        self.context = context
        self._places = places
        self._blocks: dict[int, Block] = {} if own is None else {context.rank: own}
        self._open_peer = open_peer
        self._join = join

    @property
    def rank(self) -> int:
        return self.context.rank

    @property
    def nranks(self) -> int:
        return self.context.nranks

    def communicator(self) -> None:
        """See that the process group is there. Only a gang with a lazy communicator has to ask, on every rank."""
        self._join()

    def buffer(self, name: str) -> memoryview:
        """Give a buffer of ours, to read and write. Raises `NotFound`, and `BadInput` for one on a GPU."""
        return self.peer_buffer(self.rank, name)

    def tensor(self, name: str) -> Any:
        """Give a buffer of ours as a torch tensor of its type, over the same bytes."""
        return self.peer_tensor(self.rank, name)

    def peer_buffer(self, rank: int, name: str) -> memoryview:
        """Give a buffer of a peer's, over the same bytes that it sees. When they are there is for both to agree."""
        place = self._place(rank, name)
        return self._block(rank).view(place.offset, place.nbytes)

    def peer_tensor(self, rank: int, name: str) -> Any:
        """Give a buffer of a peer's as a tensor."""
        place = self._place(rank, name)
        return self._block(rank).tensor(place.offset, place.nbytes, place.dtype)

    def close_peers(self) -> None:
        """Give the peers' windows back."""
        for rank in [rank for rank in self._blocks if rank != self.rank]:
            self._blocks.pop(rank).close()

    def close(self) -> None:
        """Give all windows back, the peers' first."""
        self.close_peers()
        while self._blocks:
            self._blocks.popitem()[1].close()

    def _place(self, rank: int, name: str) -> Place:
        if not 0 <= rank < self.nranks:
            raise NotFound(f"there is no rank {rank}", hint=f"ranks go from 0 to {self.nranks - 1}")
        place = self._places[rank].get(name)
        if place is None:
            known = ", ".join(self._places[rank]) or "none"
            raise NotFound(f"rank {rank} has no buffer {name!r}", hint=f"it has: {known}")
        return place

    def _block(self, rank: int) -> Block:
        if rank not in self._blocks:
            self._blocks[rank] = self._open_peer(rank)
        return self._blocks[rank]


_current: ThisRank | None = None


def this_rank() -> ThisRank:
    """Give the rank that this process is. Raises `GangNotUp` in a process that is none."""
    if _current is None:
        raise GangNotUp("this process is not a rank of a gang", hint="call it in a function given to Gang.run")
    return _current


def become(rank: ThisRank | None) -> None:
    """Say which rank this process is."""
    global _current  # noqa: PLW0603 - a process is one rank
    _current = rank
