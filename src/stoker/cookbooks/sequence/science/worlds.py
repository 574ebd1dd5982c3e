"""The ranks that train together, as the training sees them: who it is, how many there are, adding up, waiting.

One training function works alone and as one of N: alone, adding up over ranks changes nothing.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch
from torch import distributed


class World(Protocol):
    """The ranks of one training."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, values: torch.Tensor) -> None:
        """Put the sum over all ranks in place of this rank's values. Every rank has to call it."""

    def barrier(self) -> None:
        """Wait until every rank is here."""


class Solo:
    """A world of one."""

    rank = 0
    size = 1

    def all_reduce(self, values: torch.Tensor) -> None:
        return

    def barrier(self) -> None:
        return


class Group:
    """The process group that torch.distributed was initialised with."""

    def __init__(self) -> None:
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()

    def all_reduce(self, values: torch.Tensor) -> None:
        distributed.all_reduce(values)

    def barrier(self) -> None:
        distributed.barrier()


SOLO: Final = Solo()
_SAME = 1e-9


def world_here() -> World:
    """Give the ranks that this process was brought up with; itself alone if there are no others."""
    return Group() if distributed.is_available() and distributed.is_initialized() else SOLO


def agree(world: World, what: str, value: float, device: Any = "cpu") -> None:
    """Raise `RuntimeError` on every rank unless all of them have the same number here, to nine digits."""
    # A place for each rank: ranks that differ can't hide in a sum.
    told = torch.zeros(world.size, dtype=torch.float64, device=device)
    told[world.rank] = value
    world.all_reduce(told)
    if float(told.max() - told.min()) > _SAME * float(told.abs().max()):
        raise RuntimeError(f"the ranks have different {what}; rank {world.rank} has {value:.12g}")
