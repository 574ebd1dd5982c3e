"""The way to another machine of the fleet: over TLS, to that machine and no other; plain only on loopback."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from stoker.host.http.addresses import read_address
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


def peer_opener(
    identity: FleetIdentity | None, *, clock: Clock, user_agent: str = "stoker"
) -> Callable[[Place], tuple[TreeLine, Transport] | None]:
    """Give what `FleetOrigins` opens machines with; `identity` is this worker's, nothing if it has none."""

    def open_peer(place: Place) -> tuple[TreeLine, Transport] | None:
        is_secure = place.url.startswith("https://")
        if not is_secure and not is_loopback(read_address(place.url).origin.host):
            return None
        if is_secure and (identity is None or not identity.certificate_file):
            return None
        meant = changed(identity, machine=place.machine) if is_secure and identity is not None else None
        settings = HttpSettings(
            connect_s=CONNECT_S,
            head_s=30.0,
            read_s=20.0,
            # A machine of the same network is asked by itself, never by way of a proxy.
            no_proxy=("*",),
            fleet=meant,
            user_agent=user_agent,
        )
        transport = Urllib3Transport(settings)
        return FleetClient(transport, place.url, clock=clock, patience=_PATIENCE), transport

    return open_peer


def is_loopback(host: str) -> bool:
    """Say whether an address leads nowhere but to this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def own_address_towards(url: str) -> str:
    """Give the address of this machine from which a coordinator is reached: where its neighbours may reach us.

    Nothing is sent. Empty if there is no way there.
    """
    address = read_address(url).origin
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
