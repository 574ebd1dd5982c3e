"""How a coordinator is reached from other machines: TLS from the fleet's own CA, under all names that it goes by.

CA and certificate lie below `state/authority`; both are made at the first start that listens beyond loopback.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from stoker.coordinator.service.options import ServeOptions
from stoker.host.own_addresses import own_addresses, own_names
from stoker.model.clock import Clock
from stoker.model.errors import BadInput

if TYPE_CHECKING:
    from stoker.coordinator.authority.enrolment import Enrolment
    from stoker.coordinator.service.running import Tls

FOLDER = "authority"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - to be told from others
_LOCAL = ("localhost", "127.0.0.1", "::1")


class SecureServing:
    """One coordinator's way to speak TLS at one address."""

    def __init__(self, state: str, options: ServeOptions, *, host: str, port: int, clock: Clock) -> None:
        from stoker.coordinator.authority.ca_files import open_ca
        from stoker.coordinator.authority.server_certificate import ServerCertificate
        from stoker.host.tls.authority import MACHINE_LIFE_S
        from stoker.host.tls.contexts import server_context

        self._host, self._port = host, port
        self._advertised = read_names(options.advertise)
        self._life_s = options.certificate_life_s or MACHINE_LIFE_S
        self._ca = open_ca(os.path.join(state, FOLDER), fleet=socket.gethostname(), now_s=clock.wall_s())
        self._certificate = ServerCertificate(self._ca, self._certified, clock=clock)
        self._certificate.ensure()
        path = self._certificate.path
        self._context = server_context(certificate_file=path, key_file=path, ca_pem=self._ca.certificate_pem)

    @property
    def ca_file(self) -> str:
        """Where the CA's certificate lies, for whoever is to trust it."""
        return self._ca.certificate_file

    @property
    def local_url(self) -> str:
        """Where commands of this machine ask it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 - as above
        return f"https://{_with_port(host, self._port)}"

    @property
    def url(self) -> str:
        """Where others find it, as far as it knows."""
        return f"https://{self.names()[0]}"

    def names(self) -> tuple[str, ...]:
        """Give every `HOST:PORT` by which others may reach it, those that were named first."""
        here = [self._host] if self._host not in _ANY else []
        own = [name for name in own_names() if name not in _LOCAL]
        # Of names without a dot, those that a second machine resolves most often: mDNS.
        own.sort(key=lambda name: not name.endswith(".local"))
        found = dict.fromkeys((*self._advertised, *here, *own))
        return tuple(_with_port(name, self._port) for name in found) or (_with_port(_LOCAL[1], self._port),)

    def enrolment(self) -> Enrolment:
        """Give what lets others in."""
        from stoker.coordinator.authority.enrolment import Enrolment

        return Enrolment(ca=self._ca, names=self.names, life_s=self._life_s)

    def tls(self) -> Tls:
        """Give what the server speaks."""
        from stoker.coordinator.service.running import Tls

        return Tls(context=self._context, refresh=self.refresh)

    def refresh(self) -> bool:
        """Have a certificate that holds, and show it to whoever connects from now on; true: it is a new one."""
        from stoker.host.tls.contexts import load_server

        is_new = self._certificate.ensure()
        if is_new:
            load_server(self._context, certificate_file=self._certificate.path, key_file=self._certificate.path)
        return is_new

    def _certified(self) -> tuple[str, ...]:
        here = [self._host] if self._host not in _ANY else []
        return (*self._advertised, *here, *own_names(), *own_addresses())


def read_names(text: str) -> tuple[str, ...]:
    """Read `NAME[,NAME]`: host names or addresses, without ports."""
    names = tuple(part.strip().strip("[]").lower() for part in text.split(",") if part.strip())
    for name in names:
        if "/" in name or " " in name or (":" in name and not _is_ipv6(name)):
            raise BadInput(f"{name!r} is no name of a host", hint="--advertise desk.example.org,192.0.2.7")
    return names


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ipv6(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        return False
    return True
