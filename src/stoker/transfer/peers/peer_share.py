"""What a worker gives to the rest of its fleet while it runs: a server for its trees, and word of what it has."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from stoker.core.clock import Clock
from stoker.core.errors import LocalFile, StokerError, Unavailable
from stoker.host.durable import read_regular
from stoker.host.http.http_settings import FleetIdentity
from stoker.host.tls.contexts import load_server, server_context
from stoker.store.local_store import LocalStore
from stoker.transfer.trees.tree_sources import own_address_towards

if TYPE_CHECKING:
    from stoker.transfer.peers.peer_server import PeerServer


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
    from stoker.transfer.peers.peer_server import PeerFiles, PeerServer  # noqa: PLC0415 - only where a server runs

    if identity is None or not identity.certificate_file:
        return "this worker has no certificate of the fleet"
    host = own_address_towards(url)
    if not host:
        return "no network leads to the coordinator"
    try:
        contexts = OwnContext(identity).current
        contexts()
        server = PeerServer(
            PeerFiles(store, clock=clock), clock=clock, host=host, port=port, contexts=contexts, admits=admits
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
        """Return it as it stands now."""
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


# Which machines belong to the fleet now, as its coordinator says: one that was forgotten gets no tree from anybody.
#
# A certificate holds for weeks; who may still show it is asked when somebody shows one, and remembered for a moment.

FRESH_S = 30.0
"""So long an answer counts without being asked again: a machine that was forgotten gets things for no longer."""
STALE_S = 300.0
"""So long it counts while the coordinator can't be asked: a copy that is under way goes on over a short cut."""
AGAIN_S = 2.0
"""Between two questions: a stranger's certificate must not have the coordinator asked with every connection."""


class PeerAdmission:
    """What one worker knows. `ask` gives the numbers of all certificates that count; it may raise `StokerError`."""

    def __init__(self, ask: Callable[[], Iterable[str]], *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._asking = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._heard_s: float | None = None
        self._asked_s: float | None = None

    def admits(self, serial: str) -> bool:
        """Return whether a certificate counts now. `Unavailable` where nobody can say."""
        if not self._is_known(serial):
            # One asks; nobody who is known waits for the answer.
            with self._asking:
                if not self._is_known(serial):
                    self._look()
        if self._heard_s is None or self._clock.monotonic_s() - self._heard_s > STALE_S:
            raise Unavailable("the coordinator can't be asked which machines belong to the fleet")
        return serial in self._known

    def _is_known(self, serial: str) -> bool:
        is_fresh = self._heard_s is not None and self._clock.monotonic_s() - self._heard_s < FRESH_S
        return is_fresh and serial in self._known

    def _look(self) -> None:
        if self._asked_s is not None and self._clock.monotonic_s() - self._asked_s < AGAIN_S:
            return
        try:
            self._known = frozenset(self._ask())
            self._heard_s = self._clock.monotonic_s()
        except StokerError:
            # What was heard last counts for a while.
            pass
        self._asked_s = self._clock.monotonic_s()
