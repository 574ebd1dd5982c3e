"""The client that speaks to a coordinator: blocking, safe to use from several threads, a method for each route.

    client = FleetClient(transport, "http://127.0.0.1:7717", clock=clock)
    client.jobs(state="running").jobs

What the coordinator refuses is raised here as the error it was there; whoever can't be reached is `NoCoordinator`, an
answer that none of ours gives is `BadAnswer`. Questions that may be asked twice are, for as long as `Patience` says.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.host.http.exchange import Transport
from stoker.model.clock import Clock
from stoker.model.frozen import changed
from stoker.wire.content_calls import ContentCalls
from stoker.wire.exec_calls import ExecCalls
from stoker.wire.health_calls import HealthCalls
from stoker.wire.people_calls import PeopleCalls
from stoker.wire.speaking import Patience, Speaker
from stoker.wire.trust_calls import TrustCalls
from stoker.wire.worker_calls import WorkerCalls

FOLLOWING_S = 600.0
"""For so long whoever follows something asks a coordinator again that is away."""


class FleetClient(WorkerCalls, PeopleCalls, ContentCalls, TrustCalls, HealthCalls, ExecCalls):
    """One coordinator, seen from outside. Closing the transport is up to whoever made it."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        clock: Clock,
        token: str = "",
        patience: Patience | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._given = (url, token, chance)
        self._speaker = Speaker(transport, url, clock=clock, token=token, patience=patience, chance=chance)

    def more_patient(self, retry_s: float = FOLLOWING_S) -> FleetClient:
        """Give a client of the same coordinator that asks again for so long: whoever follows outlives a restart."""
        url, token, chance = self._given
        patience = changed(self._speaker.patience, retry_s=retry_s)
        return FleetClient(self._transport, url, clock=self._clock, token=token, patience=patience, chance=chance)

    @property
    def url(self) -> str:
        """Where the coordinator is, without credentials."""
        return self._speaker.url
