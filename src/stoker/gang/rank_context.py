"""The rank that this process is, for the code that runs in it.

def step():
    rank = this_rank()
    rank.tensor("x").fill_(rank.rank)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

from stoker.core.errors import GangNotUp, NotFound, WindowMismatch
from stoker.core.frozen import frozen
from stoker.gang.mailbox import Phase, RankPage
from stoker.gang.rank_config import RankConfig
from stoker.gang.windows import WindowBlock

# What the owner of a gang learns of each rank once all are up.

_NS = 1_000_000_000


class RankPointer(int):
    """An address in another process: to compare, to add to, to hand to that process; never to read from here."""

    rank: int

    def __new__(cls, value: int, rank: int) -> Self:
        made = super().__new__(cls, value)
        made.rank = rank
        return made

    def __repr__(self) -> str:
        return f"<{int(self):#x} in rank {self.rank}>"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[RankPointer], tuple[int, int]]:
        return type(self), (int(self), self.rank)


@frozen
class Context:
    """One rank that is up."""

    device_id: int
    rank: int
    nranks: int
    device_ctx: RankPointer
    local_window_base: RankPointer
    actual_window_size: int
    """At least what was asked for."""
    buffer_ptrs: Mapping[str, RankPointer]
    phases_s: Mapping[str, float]
    """How long each phase of its bring-up took."""
    pid: int


def context_of(config: RankConfig, page: RankPage, rank: int, nranks: int) -> Context:
    """Read the context from the page of a rank that is up. Raises `WindowMismatch` if it is not as promised."""
    promised = [buffer.nbytes for buffer in config.buffers]
    returned = [slot.nbytes for slot in page.slots]
    if len(promised) != len(returned):
        raise WindowMismatch(
            f"rank {rank} was promised {len(promised)} buffers and returned {len(returned)}",
            rank=rank,
            expected=len(promised),
            got=len(returned),
        )
    end = max((slot.offset + slot.nbytes for slot in page.slots), default=0)
    if promised != returned or page.actual_bytes < max(end, config.wanted_bytes):
        raise WindowMismatch(
            f"rank {rank} returned a window of {page.actual_bytes} bytes with buffers up to {end}, "
            f"and was asked for {config.wanted_bytes}",
            rank=rank,
            expected=promised,
            got=returned,
        )
    return Context(
        device_id=config.device_id,
        rank=rank,
        nranks=nranks,
        device_ctx=RankPointer(page.device_ctx, rank),
        local_window_base=RankPointer(page.window_base, rank),
        actual_window_size=page.actual_bytes,
        buffer_ptrs={
            buffer.name: RankPointer(page.window_base + slot.offset, rank)
            for buffer, slot in zip(config.buffers, page.slots, strict=True)
        },
        phases_s=phases_of(page.stamps_ns),
        pid=page.pid,
    )


def phases_of(stamps_ns: Sequence[int]) -> dict[str, float]:
    """Return how long each phase up to READY took, of those that were gone through."""
    begun = [(phase, stamps_ns[phase]) for phase in Phase if phase <= Phase.READY and stamps_ns[phase]]
    return {phase.name: max(0, after - before) / _NS for (phase, before), (_, after) in pairwise(begun)}


@frozen
class BufferPlace:
    """Where a buffer lies, and what it holds."""

    offset: int
    nbytes: int
    dtype: str


class ThisRank:
    """One rank from inside: its context, its buffers and its peers'."""

    def __init__(
        self,
        context: Context,
        places: Sequence[Mapping[str, BufferPlace]],
        own: WindowBlock | None,
        open_peer: Callable[[int], WindowBlock],
        join: Callable[[], None],
    ) -> None:
        """`places` are by rank, the buffers of each by name; `join` makes the communicator if that was put off."""
        self.context = context
        self._places = places
        self._blocks: dict[int, WindowBlock] = {} if own is None else {context.rank: own}
        self._open_peer = open_peer
        self._join = join

    @property
    def rank(self) -> int:
        return self.context.rank

    @property
    def nranks(self) -> int:
        return self.context.nranks

    def communicator(self) -> None:
        """Create the process group if there is none. Only ranks of a gang with a lazy communicator need this."""
        self._join()

    def buffer(self, name: str) -> memoryview:
        """Return a buffer of ours, to read and write. Raises `NotFound`, and `BadInput` for one on a GPU."""
        return self.peer_buffer(self.rank, name)

    def tensor(self, name: str) -> Any:
        """Return a buffer of ours as a torch tensor of its type, over the same bytes."""
        return self.peer_tensor(self.rank, name)

    def peer_buffer(self, rank: int, name: str) -> memoryview:
        """Return a buffer of a peer's, over the same bytes that it sees. When they are there is for both to agree."""
        place = self._place(rank, name)
        return self._block(rank).view(place.offset, place.nbytes)

    def peer_tensor(self, rank: int, name: str) -> Any:
        """Return a buffer of a peer's as a tensor."""
        place = self._place(rank, name)
        return self._block(rank).tensor(place.offset, place.nbytes, place.dtype)

    def close_peers(self) -> None:
        """Release the peers' windows."""
        for rank in [rank for rank in self._blocks if rank != self.rank]:
            self._blocks.pop(rank).close()

    def close(self) -> None:
        """Release all windows, the peers' first."""
        self.close_peers()
        while self._blocks:
            self._blocks.popitem()[1].close()

    def _place(self, rank: int, name: str) -> BufferPlace:
        if not 0 <= rank < self.nranks:
            raise NotFound(f"there is no rank {rank}", hint=f"ranks go from 0 to {self.nranks - 1}")
        place = self._places[rank].get(name)
        if place is None:
            known = ", ".join(self._places[rank]) or "none"
            raise NotFound(f"rank {rank} has no buffer {name!r}", hint=f"it has: {known}")
        return place

    def _block(self, rank: int) -> WindowBlock:
        if rank not in self._blocks:
            self._blocks[rank] = self._open_peer(rank)
        return self._blocks[rank]


_current: ThisRank | None = None


def this_rank() -> ThisRank:
    """Return the rank that this process is. Raises `GangNotUp` in a process that is none."""
    if _current is None:
        raise GangNotUp("this process is not a rank of a gang", hint="call it in a function given to Gang.run")
    return _current


def become(rank: ThisRank | None) -> None:
    """Set which rank this process is."""
    global _current  # noqa: PLW0603 - a process is one rank
    _current = rank
