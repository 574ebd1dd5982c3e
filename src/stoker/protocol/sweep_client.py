"""What a client asks of several jobs together: sweeps, comparisons, simulations."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.protocol.screen_messages import (
    AdapterBoard,
    ComparisonView,
    ModelPage,
    SimulateRequest,
    SimulationView,
    SweepList,
    SweepView,
)
from stoker.protocol.transport import CoordinatorClient, part

_SIMULATE_S = 60.0


class SweepClient(CoordinatorClient):
    """The part of a client with the routes about several jobs together."""

    def sweeps(self, *, limit: int = 50) -> SweepList:
        """Return the newest sweeps."""
        return self._get("/v1/sweeps", SweepList, {"limit": limit})

    def sweep(self, name: str, metric: str = "") -> SweepView:
        """Return the trials of a sweep, ranked by a metric; without one, by the most telling."""
        return self._get(f"/v1/sweeps/{part(name)}", SweepView, {"metric": metric})

    def compare(self, refs: Sequence[str]) -> ComparisonView:
        """Return jobs side by side, what differs first."""
        return self._get("/v1/compare", ComparisonView, {"ref": tuple(refs)})

    def adapters(self) -> AdapterBoard:
        """Return adapters by base model, the lowest loss first."""
        return self._get("/v1/adapters", AdapterBoard)

    def models(self, after: str = "", *, limit: int = 50) -> ModelPage:
        """Return results with their lineage, the newest first; `after` is the `next` of the page before."""
        return self._get("/v1/models", ModelPage, {"after": after, "limit": limit})

    def simulate(self, request: SimulateRequest) -> SimulationView:
        """Return when all jobs are done, as the fleet is and with machines added or removed."""
        return self._ask("/v1/simulate", SimulationView, request, waits_s=_SIMULATE_S)
