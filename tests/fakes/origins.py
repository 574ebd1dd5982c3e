"""Trees from one place alone, for tests that do not ask who else has them."""

from __future__ import annotations

from stoker.host.http.exchange import Transport
from stoker.transfer.trees.tree_sources import TreeConnection, TreeSource


class CoordinatorAlone:
    """Everything from the coordinator, or whoever plays it."""

    def __init__(self, line: TreeConnection, transport: Transport) -> None:
        self._origin = TreeSource(line=line, transport=transport)

    def find(self, tree: str, failed: frozenset[str]) -> tuple[TreeSource, ...]:
        return (self._origin,)
