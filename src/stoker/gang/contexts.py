"""What the owner of a gang learns of each rank once all are up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Self

from stoker.gang.configs import RankConfig
from stoker.gang.page import Page
from stoker.gang.states import Phase
from stoker.model.frozen import frozen
from stoker.model.gang_errors import WindowMismatch

_NS = 1_000_000_000


class Address(int):
    """An address in another process: to compare, to add to, to hand to that process; never to read from here."""

    rank: int

    def __new__(cls, value: int, rank: int) -> Self:
        made = super().__new__(cls, value)
        made.rank = rank
        return made

    def __repr__(self) -> str:
        return f"<{int(self):#x} in rank {self.rank}>"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[Address], tuple[int, int]]:
        return type(self), (int(self), self.rank)


@frozen
class Context:
    """One rank that is up."""

    device_id: int
    rank: int
    nranks: int
    device_ctx: Address
    local_window_base: Address
    actual_window_size: int
    """At least what was asked for."""
    buffer_ptrs: Mapping[str, Address]
    phases_s: Mapping[str, float]
    """How long each phase of its bring-up took."""
    pid: int


def context_of(config: RankConfig, page: Page, rank: int, nranks: int) -> Context:
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
        device_ctx=Address(page.device_ctx, rank),
        local_window_base=Address(page.window_base, rank),
        actual_window_size=page.actual_bytes,
        buffer_ptrs={
            buffer.name: Address(page.window_base + slot.offset, rank)
            for buffer, slot in zip(config.buffers, page.slots, strict=True)
        },
        phases_s=phases_of(page.stamps_ns),
        pid=page.pid,
    )


def phases_of(stamps_ns: Sequence[int]) -> dict[str, float]:
    """Give how long each phase up to READY took, of those that were gone through."""
    begun = [(phase, stamps_ns[phase]) for phase in Phase if phase <= Phase.READY and stamps_ns[phase]]
    return {phase.name: max(0, after - before) / _NS for (phase, before), (_, after) in pairwise(begun)}
