"""Whether work goes on of which nobody tells us: a silent compiler's, or another job's that we wait for.

A second counts while the processes of uv compute, or while bytes of the tree arrive. One that hangs counts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from stoker.host.cpu_ticks import group_cpu_ticks
from stoker.host.durable import read_regular
from stoker.host.identity import Liveness, ProcessIdentity, is_alive
from stoker.model.errors import StokerError
from stoker.model.json_text import loads
from stoker.store.local import LocalStore
from stoker.wire.environments import choose
from stoker.wire.orders import EnvironmentChoice
from stoker.worker.environments.making import Maker

_LARGEST_BYTES = 1 << 20


class Pulse(Protocol):
    """Feels whether something goes on."""

    def beats(self) -> bool:
        """Say whether it has got on since it was last asked."""


class TreePulse:
    """Feels the arrival of one tree, whoever brings it."""

    def __init__(self, store: LocalStore, tree: str) -> None:
        self._incoming = store.places.incoming
        self._staging = store.places.staging
        self._mark = tree[:12]
        self._before: tuple[int, int] | None = None

    def beats(self) -> bool:
        """Say whether anything of it has grown since it was last asked."""
        arriving = _looks_of(self._incoming, "")
        staged = _looks_of(self._staging, self._mark)
        now = (arriving[0] + staged[0], max(arriving[1], staged[1]))
        has_moved = self._before is not None and now != self._before
        self._before = now
        return has_moved


class MakingPulse:
    """Feels the making of one environment."""

    def __init__(self, maker: Maker, choices: Sequence[EnvironmentChoice]) -> None:
        choice = choose(choices, maker.platform) if choices else None
        self._path = ""
        if choice is not None and choice.digest:
            place = maker.shelf.place(maker.key_of(choice.digest))
            self._path = os.path.join(place, "building.json")
        self._before = (0, 0)

    def beats(self) -> bool:
        """Say whether its processes have computed since it was last asked."""
        group = self._group()
        ticks = group_cpu_ticks(group.pid) if group is not None else None
        now = (group.pid, ticks) if group is not None and ticks is not None else self._before
        has_moved, self._before = now != self._before, now
        return has_moved

    def _group(self) -> ProcessIdentity | None:
        try:
            told = loads(read_regular(self._path, _LARGEST_BYTES)) if self._path else {}
            group = ProcessIdentity.from_dict(told["group"])
            return group if is_alive(group) is not Liveness.GONE else None
        except (OSError, ValueError, KeyError, TypeError, StokerError):
            return None


def _looks_of(folder: str, part: str) -> tuple[int, int]:
    """Give how much lies in a folder under names that hold a text, and when that last changed."""
    size_bytes, changed_ns = 0, 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if part in entry.name:
                    info = entry.stat(follow_symlinks=False)
                    size_bytes += info.st_size
                    changed_ns = max(changed_ns, info.st_mtime_ns)
    except OSError:
        # It comes and goes under our eyes.
        return size_bytes, changed_ns
    return size_bytes, changed_ns
