"""What a worker gives to the rest of its fleet while it runs: a server for its trees, and word of what it has."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.host.durable import read_regular
from stoker.host.http.settings import FleetIdentity
from stoker.host.tls.contexts import load_server, server_context
from stoker.model.clock import Clock
from stoker.model.errors import LocalFile, StokerError
from stoker.store.local import LocalStore
from stoker.worker.peering.reaching import own_address_towards

if TYPE_CHECKING:
    from stoker.worker.peering.server import PeerServer

_MOST_BYTES = 64 * 1024


def share_trees(
    url: str,
    identity: FleetIdentity | None,
    store: LocalStore,
    *,
    clock: Clock,
    admits: Callable[[str], bool],
    port: int = 0,
) -> PeerServer | str:
    """Start giving trees to other machines of the fleet of this coordinator; or say why that can't be.

    Over TLS with the worker's own certificate, at the address from which it reaches the coordinator. A worker without
    one serves nothing: another user of this machine could read its trees. `admits` says whose certificate still counts.
    """
    from stoker.worker.peering.server import PeerServer  # noqa: PLC0415 - a server is only imported where one runs
    from stoker.worker.peering.shelf import Shelf  # noqa: PLC0415

    if identity is None or not identity.certificate_file:
        return "this worker has no certificate of the fleet"
    host = own_address_towards(url)
    if not host:
        return "no network leads to the coordinator"
    try:
        contexts = OwnContext(identity).current
        contexts()
        server = PeerServer(
            Shelf(store, clock=clock), clock=clock, host=host, port=port, contexts=contexts, admits=admits
        )
    except (StokerError, OSError) as error:
        return str(error)
    server.start()
    return server


class OwnContext:
    """What a machine's server shows and whom it lets in; made anew when its certificate's file is another."""

    def __init__(self, identity: FleetIdentity) -> None:
        self._identity = identity
        self._turn = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[int, ...] = ()

    def current(self) -> ssl.SSLContext:
        """Give it as it stands now."""
        own = self._identity.certificate_file
        try:
            info = os.stat(own)
            ca_pem = self._identity.ca_pem or read_regular(self._identity.ca_file, _MOST_BYTES).decode("ascii")
        except (OSError, ValueError) as error:
            raise LocalFile(f"can't read this machine's certificate: {error}", path=own) from None
        stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
        with self._turn:
            if self._context is None:
                self._context = server_context(certificate_file=own, key_file=own, ca_pem=ca_pem)
                # Nobody but machines of this fleet gets any further than the handshake.
                self._context.verify_mode = ssl.CERT_REQUIRED
            elif stamp != self._stamp:
                load_server(self._context, certificate_file=own, key_file=own)
            self._stamp = stamp
            return self._context
