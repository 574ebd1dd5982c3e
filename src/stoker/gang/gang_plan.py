"""The plan of a gang, worked out from its configs, and the request that each rank gets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stoker.core.clock import Closable
from stoker.core.frozen import fresh, frozen
from stoker.gang.mailbox import read_at, unnamed_memory, write_at
from stoker.gang.rank_config import RankConfig, lay_out
from stoker.gang.rank_context import BufferPlace
from stoker.gang.rendezvous_types import HostRanks
from stoker.gang.windows import regions

CALLS, STORE, WINDOWS, STAGING, OUT, ERR = "calls", "store", "windows", "staging", "out", "err"
"""The names of the descriptors that a rank of a `Gang` is handed beside its own; the last four where there is need."""

StagedAt = tuple[tuple[str, int], ...]
"""Names of buffers, and where their bytes lie in the staging memory."""


@frozen
class GangPlan:
    """A whole gang."""

    configs: tuple[RankConfig, ...]
    backend: str
    device_kind: str
    names: tuple[str, ...]
    """How people know each rank's device."""
    timeout_s: float
    phases_s: Mapping[Any, float] = fresh(factory=dict)
    is_lazy: bool = False
    on_phase: str = ""
    grace_s: float = 10.0
    host_ranks: HostRanks | None = None
    """Its place among other hosts, once they have met."""

    @property
    def first_rank(self) -> int:
        return 0 if self.host_ranks is None else self.host_ranks.first_rank

    @property
    def nranks(self) -> int:
        return len(self.configs) if self.host_ranks is None else self.host_ranks.nranks


@frozen
class RankPlan:
    """One rank."""

    rank: int
    nranks: int
    device_id: int
    device_kind: str
    backend: str
    is_lazy: bool
    deadline_ns: int
    window_bytes: int
    store_address: str
    """Where this host is reached by others with which it shares a store; empty: all ranks have the store's memory."""
    on_phase: str
    """`module:function` to call with each phase's name, and the rank, as it begins."""
    region: tuple[int, int]
    """Its place and size in the memory that all host windows share."""
    places: tuple[Mapping[str, BufferPlace], ...]
    """All ranks' buffers by name."""
    staged_in: StagedAt
    staged_out: StagedAt

    def to_request(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "region": list(self.region),
            "places": [[[name, p.offset, p.nbytes, p.dtype] for name, p in of.items()] for of in self.places],
            "staged_in": [list(pair) for pair in self.staged_in],
            "staged_out": [list(pair) for pair in self.staged_out],
        }

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> RankPlan:
        return cls(
            **{name: request[name] for name in _PLAIN},
            region=(request["region"][0], request["region"][1]),
            places=tuple(
                {name: BufferPlace(offset=offset, nbytes=nbytes, dtype=dtype) for name, offset, nbytes, dtype in of}
                for of in request["places"]
            ),
            staged_in=tuple((name, at) for name, at in request["staged_in"]),
            staged_out=tuple((name, at) for name, at in request["staged_out"]),
        )


_PLAIN = (
    "rank", "nranks", "device_id", "device_kind", "backend", "is_lazy", "deadline_ns", "window_bytes", "store_address",
    "on_phase",
)  # fmt: skip


def rank_plans(gang: GangPlan, staged: Sequence[tuple[StagedAt, StagedAt]], started_ns: int) -> list[RankPlan]:
    """Return what each rank is to become; `staged` has what goes into and out of each one's buffers."""
    placed = regions([config.wanted_bytes for config in gang.configs])
    first = gang.first_rank
    after = gang.nranks - first - len(gang.configs)
    # Windows are of one host: of others' buffers nothing is known.
    places = (*({},) * first, *map(_places, gang.configs), *({},) * after)
    return [
        RankPlan(
            rank=first + index,
            nranks=gang.nranks,
            device_id=config.device_id,
            device_kind=gang.device_kind,
            backend=gang.backend,
            is_lazy=gang.is_lazy,
            deadline_ns=started_ns + round(gang.timeout_s * 1e9),
            window_bytes=config.wanted_bytes,
            store_address="" if gang.host_ranks is None else gang.host_ranks.address,
            on_phase=gang.on_phase,
            region=placed[index],
            places=places,
            staged_in=staged[index][0],
            staged_out=staged[index][1],
        )
        for index, config in enumerate(gang.configs)
    ]


@contextmanager
def memory_of_all(plans: Sequence[RankPlan]) -> Iterator[dict[str, int]]:
    """Return the memory that all ranks are handed: the store's, and that of host windows. It lives on in them."""
    fds = {STORE: unnamed_memory("stoker-store", 0, may_grow=True)}
    try:
        windows_bytes = max(offset + room for offset, room in (plan.region for plan in plans))
        if plans[0].device_kind == "cpu" and windows_bytes:
            fds[WINDOWS] = unnamed_memory("stoker-windows", windows_bytes)
        yield fds
    finally:
        for fd in fds.values():
            os.close(fd)


def _places(config: RankConfig) -> dict[str, BufferPlace]:
    return {
        buffer.name: BufferPlace(offset=slot.offset, nbytes=slot.nbytes, dtype=buffer.dtype)
        for buffer, slot in zip(config.buffers, config.layout.slots, strict=True)
    }


# Bytes on their way between an owner and its ranks' buffers: memory without a name, one piece for each rank.


class Staging(Closable):
    """All pieces of a gang; inputs are in there when it is made. A rank without any has none."""

    def __init__(self, configs: Sequence[RankConfig]) -> None:
        self._configs = configs
        self._places: list[dict[str, int]] = []
        self._fds: dict[int, int] = {}
        self.has_outputs = any(buffer.store_to_host for config in configs for buffer in config.buffers)
        try:
            for rank, config in enumerate(configs):
                self._fill(rank, config)
        except BaseException:
            self.close()
            raise

    def fds(self, rank: int) -> dict[str, int]:
        """Return the descriptor that this rank is handed, by name."""
        return {STAGING: self._fds[rank]} if rank in self._fds else {}

    def orders(self, rank: int) -> tuple[StagedAt, StagedAt]:
        """Return which buffers of a rank come from where, and which go where."""
        buffers, places = self._configs[rank].buffers, self._places[rank]
        return (
            tuple((buffer.name, places[buffer.name]) for buffer in buffers if buffer.load_from_host),
            tuple((buffer.name, places[buffer.name]) for buffer in buffers if buffer.store_to_host),
        )

    def read_all(self) -> list[dict[str, bytes]]:
        """Return what ranks have brought out, by rank and name."""
        return [
            {
                buffer.name: bytes(read_at(self._fds[rank], buffer.nbytes, self._places[rank][buffer.name]))
                for buffer in config.buffers
                if buffer.store_to_host
            }
            for rank, config in enumerate(self._configs)
        ]

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _fill(self, rank: int, config: RankConfig) -> None:
        staged = [buffer for buffer in config.buffers if buffer.load_from_host or buffer.store_to_host]
        layout = lay_out([buffer.nbytes for buffer in staged])
        self._places.append({buffer.name: slot.offset for buffer, slot in zip(staged, layout.slots, strict=True)})
        if not staged:
            return
        self._fds[rank] = unnamed_memory(f"stoker-staging-{rank}", layout.needed_bytes)
        for buffer in staged:
            if buffer.load_from_host:
                data = memoryview(config.inputs[buffer.name])
                write_at(self._fds[rank], data, self._places[rank][buffer.name])
