"""Jobs that a coordinator knows, as names that a manifest's `after` may give: asked for one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from stoker.model.errors import NotFound

if TYPE_CHECKING:
    from stoker.wire.client import FleetClient


class KnownJobs(Collection[str]):
    """Says whether a job is known; it does not list them, there may be a million."""

    def __init__(self, client: FleetClient) -> None:
        self._client = client
        self._known: dict[object, bool] = {}

    def __contains__(self, name: object) -> bool:
        if name not in self._known:
            self._known[name] = self._is_known(str(name))
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter([str(name) for name, is_known in self._known.items() if is_known])

    def __len__(self) -> int:
        return sum(self._known.values())

    def _is_known(self, name: str) -> bool:
        if self._client.jobs(name=name, limit=1).jobs:
            return True
        try:
            self._client.job(name)
        except NotFound:
            return False
        return True
