"""The way to another machine of the fleet: over TLS, to that machine and no other; plain only on loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable

from stoker.host.http.addresses import is_this_computer, read_address
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import Transport
from stoker.host.http.settings import FleetIdentity, HttpSettings
from stoker.model.clock import Clock
from stoker.model.frozen import changed
from stoker.wire.client import FleetClient
from stoker.wire.contents import Place
from stoker.wire.speaking import Patience
from stoker.worker.shipping.origins import TreeLine

_PATIENCE = Patience(answer_s=15.0, silence_s=20.0, retry_s=0.0)
CONNECT_S = 3.0
"""A machine that can't be reached costs so much: then the coordinator is asked."""
UNHEARD_S = 5.0
"""After a long cut, whoever sends tries again ever more seldom: who receives must not wait for that, but connect anew.
So long is less than what a slow program may take, and more than a network takes to lose and repeat some packets."""


def peer_opener(
    identity: FleetIdentity | None, *, clock: Clock, user_agent: str = "stoker"
) -> Callable[[Place], tuple[TreeLine, Transport] | None]:
    """Give what `FleetOrigins` opens machines with; `identity` is this worker's, nothing if it has none."""

    def open_peer(place: Place) -> tuple[TreeLine, Transport] | None:
        is_secure = place.url.startswith("https://")
        own = identity if identity is not None and identity.certificate_file else None
        # Plain only in a fleet of one machine: in any other, somebody's word could have us ask at an address of ours.
        if is_secure is (own is None) or not (is_secure or is_this_computer(read_address(place.url).origin.host)):
            return None
        meant = changed(own, machine=place.machine) if own is not None else None
        settings = HttpSettings(
            connect_s=CONNECT_S,
            head_s=30.0,
            read_s=20.0,
            unheard_s=UNHEARD_S,
            # A machine of the same network is asked by itself, never by way of a proxy.
            no_proxy=("*",),
            fleet=meant,
            user_agent=user_agent,
        )
        transport = Urllib3Transport(settings)
        return FleetClient(transport, place.url, clock=clock, patience=_PATIENCE), transport

    return open_peer


def own_address_towards(url: str) -> str:
    """Give the address of this machine from which a coordinator is reached: where its neighbours may reach us.

    Nothing is sent. Empty if there is no way there.
    """
    address = read_address(url).origin
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
