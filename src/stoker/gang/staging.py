"""Bytes on their way between an owner and its ranks' buffers: memory without a name, one piece for each rank."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stoker.gang.configs import RankConfig
from stoker.gang.layout import lay_out
from stoker.gang.memory import read_at, unnamed_memory, write_at
from stoker.gang.plans import STAGING, StagedAt
from stoker.model.closable import Closable


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
        """Give the descriptor that this rank is handed, by name."""
        return {STAGING: self._fds[rank]} if rank in self._fds else {}

    def orders(self, rank: int) -> tuple[StagedAt, StagedAt]:
        """Say which buffers of a rank come from where, and which go where."""
        buffers, places = self._configs[rank].buffers, self._places[rank]
        return (
            tuple((buffer.name, places[buffer.name]) for buffer in buffers if buffer.load_from_host),
            tuple((buffer.name, places[buffer.name]) for buffer in buffers if buffer.store_to_host),
        )

    def read_all(self) -> list[dict[str, bytes]]:
        """Give what ranks have brought out, by rank and name."""
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
