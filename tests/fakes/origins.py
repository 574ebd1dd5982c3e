"""Trees from one place alone, for tests that do not ask who else has them."""

from __future__ import annotations

from stoker.host.http.exchange import Transport
from stoker.worker.shipping.origins import Origin, TreeLine


class CoordinatorAlone:
    """Everything from the coordinator, or whoever plays it."""

    def __init__(self, line: TreeLine, transport: Transport) -> None:
        self._origin = Origin(line=line, transport=transport)

    def find(self, tree: str, failed: frozenset[str]) -> tuple[Origin, ...]:
        return (self._origin,)
