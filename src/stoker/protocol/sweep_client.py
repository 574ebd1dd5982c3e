"""What a client asks of several jobs together: sweeps."""

from __future__ import annotations

from stoker.protocol.screen_messages import SweepList, SweepView
from stoker.protocol.transport import CoordinatorClient, part


class SweepClient(CoordinatorClient):
    """The part of a client with the routes about several jobs together."""

    def sweeps(self, *, limit: int = 50) -> SweepList:
        """Return the newest sweeps."""
        return self._get("/v1/sweeps", SweepList, {"limit": limit})

    def sweep(self, name: str, metric: str = "") -> SweepView:
        """Return the trials of a sweep, ranked by a metric; without one, by the most telling."""
        return self._get(f"/v1/sweeps/{part(name)}", SweepView, {"metric": metric})
