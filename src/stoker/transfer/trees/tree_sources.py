"""From where a tree is fetched: a machine of the fleet that has it, or the coordinator.

A machine that fails is not used again. The coordinator is retried, with pauses, as long as bytes arrive now and then.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Protocol, TypeVar

from stoker.core.clock import Clock, Closable
from stoker.core.errors import (
    BadAnswer,
    Cancelled,
    Forbidden,
    HashMismatch,
    InternalError,
    LocalFile,
    LockHeld,
    NoPermission,
    NoSpace,
    NotFound,
    NotOnServer,
    StokerError,
    Unavailable,
)
from stoker.core.frozen import changed, frozen
from stoker.core.retry import pause_s
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, HttpSettings, is_this_computer, read_address
from stoker.protocol.client import FleetClient
from stoker.protocol.transport import RequestTimeouts
from stoker.protocol.tree_messages import SourcesRequest, TreeLocation
from stoker.transfer.download.types import DownloadStop

# The coordinator returns the sources of a tree (`/v1/sources`), best first: itself, and machines that have the tree or
# are fetching it. A machine that does not respond, or sends wrong bytes, is reported to it and not used again.


@frozen
class TreeSource:
    """One source of a tree."""

    client: FleetClient
    machine: str = ""
    """Its name; empty: the coordinator."""
    is_partial: bool = False
    """It is still fetching the tree itself."""


class TreeSourceFinder(Protocol):
    """Finds the sources of a tree."""

    def find(self, tree: str, failed: frozenset[str]) -> tuple[TreeSource, ...]:
        """Return sources, best first; none if no machine has the tree. `failed`: machines that did not work.

        Called again every 30 s while the tree is fetched, so that the coordinator knows who still fetches it.
        """


class CoordinatorSource:
    """The coordinator as the only source."""

    def __init__(self, client: FleetClient) -> None:
        self._source = TreeSource(client=client)

    def find(self, _tree: str, _failed: frozenset[str]) -> tuple[TreeSource, ...]:
        return (self._source,)


class FleetTreeSourceFinder(Closable):
    """The sources that the coordinator returns. Thread-safe. Caller closes.

    `open_peer` connects to a machine (see `peer_opener`); it returns None if this worker can't.
    """

    def __init__(
        self, client: FleetClient, *, worker: str, open_peer: Callable[[TreeLocation], FleetClient | None]
    ) -> None:
        self._coordinator = TreeSource(client=client)
        self._worker = worker
        self._open_peer = open_peer
        self._lock = threading.Lock()
        self._peers: dict[tuple[str, str], FleetClient] = {}
        self._failed: frozenset[str] = frozenset()

    def find(self, tree: str, failed: frozenset[str]) -> tuple[TreeSource, ...]:
        # A machine that was unreachable for one tree is not waited for with the next.
        self._failed = failed = self._failed | failed
        try:
            request = SourcesRequest(worker=self._worker, trees=(tree,), failed=tuple(sorted(failed))[:100])
            answered = self._coordinator.client.sources(request).trees
        except (NotFound, Forbidden, BadAnswer):
            # It returns no sources to us: it has the tree itself, or no machine has.
            return (self._coordinator,)
        places = next((one.places for one in answered if one.tree == tree), ())
        return tuple(source for place in places if (source := self._source(place, failed)) is not None)

    def close(self) -> None:
        """Close the connections to other machines; the caller closes that to the coordinator."""
        for client in self._peers.values():
            client.http.close()
        self._peers.clear()

    def _source(self, place: TreeLocation, failed: frozenset[str]) -> TreeSource | None:
        if not place.machine:
            return self._coordinator
        if place.machine in failed:
            return None
        key = (place.machine, place.url)
        with self._lock:
            client = self._peers.get(key)
            if client is None:
                with suppress(StokerError):
                    client = self._open_peer(place)
                if client is None:
                    return None
                self._peers[key] = client
        return TreeSource(client=client, machine=place.machine, is_partial=place.is_partial)


# Backoff after failures in a row: longer each time, with jitter, so that a fleet does not retry at once.

FIRST_S = 0.2
LONGEST_S = 15.0


class TransferBackoff:
    """The pauses of one transfer."""

    def __init__(
        self, *, first_s: float = FIRST_S, longest_s: float = LONGEST_S, chance: Callable[[], float] | None = None
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._chance = chance or random.SystemRandom().random
        self._failures = 0

    def worked(self) -> None:
        """Reset after a success."""
        self._failures = 0

    def failed(self) -> float:
        """Count a failure; return how many seconds to wait before the next try."""
        self._failures += 1
        return pause_s(self._failures - 1, self._chance(), first_s=self._first_s, longest_s=self._longest_s)


REFRESH_S = 30.0
"""How often the coordinator is informed that the tree is still being fetched."""
TRIES = 5
"""How often in a row the coordinator may fail without a new byte."""
EARLY_S = 20.0
"""How long a source that is still fetching the tree may lack a file, without a new byte from it."""
_EARLY_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 1.0
"""So that a restored connection is used soon."""
_NOT_YET = 503
_MOST_MISMATCHES = 2
_OURS = (NoSpace, NoPermission, LocalFile, LockHeld, Cancelled, InternalError)

T = TypeVar("T")


class TreeRoute:
    """The sources of one tree while it is fetched. Thread-safe: if one thread finds a source bad, all leave it."""

    def __init__(self, sources: TreeSourceFinder, tree: str, stop: DownloadStop, clock: Clock) -> None:
        self.tree = tree
        self._sources = sources
        self._stop = stop
        self._clock = clock
        self._lock = threading.RLock()
        self._backoff = TransferBackoff(longest_s=_LONGEST_PAUSE_S)
        self._bad: set[str] = set()
        self._current: tuple[TreeSource, ...] = ()
        self._asked_s: float | None = None
        self._failures = 0
        self._mismatches = 0
        self._lacking_since_s: dict[str, float] = {}

    def take(self, fetch: Callable[[TreeSource], T]) -> T:
        """Call `fetch` with the best source, and again with another one if that fails. Raises the last error."""
        while True:
            self._stop.check()
            source = self._best()
            try:
                return fetch(source)
            except StokerError as error:
                self._stop.check()
                if isinstance(error, _OURS):
                    raise
                self._failed(source, error)

    def worked(self) -> None:
        """Reset the failures: bytes arrived. Tells the coordinator now and then."""
        self._failures = 0
        self._lacking_since_s.clear()
        self._backoff.worked()
        if self._is_refresh_due():
            self._refresh()

    def lacks(self, source: TreeSource, digest: str) -> NotFound:
        """Return the error for a source that lacks a file."""
        where = source.machine or "the coordinator"
        return NotFound(f"{where} has no file {digest[:12]} of tree {self.tree[:12]}", hint="submit it again")

    def _best(self) -> TreeSource:
        with self._lock:
            if not self._current:
                self._asked_s = self._clock.monotonic_s()
                self._current = self._sources.find(self.tree, frozenset(self._bad))
            if not self._current:
                raise NotFound(
                    f"tree {self.tree[:12]} not found in the fleet",
                    hint="submit the job again: that sends what it needs",
                    tree=self.tree,
                )
            return self._current[0]

    def _refresh(self) -> None:
        """Tell the coordinator that the tree is still being fetched. The source stays, as long as it works."""
        with self._lock:
            if not self._is_refresh_due():
                return
            self._asked_s = self._clock.monotonic_s()
        # If the coordinator is unreachable, the bytes come from elsewhere perhaps.
        with suppress(StokerError):
            self._sources.find(self.tree, frozenset(self._bad))

    def _is_refresh_due(self) -> bool:
        return self._asked_s is not None and self._clock.monotonic_s() - self._asked_s > REFRESH_S

    def _failed(self, source: TreeSource, error: StokerError) -> None:
        """Leave a source, or wait to try it again; raises the error if neither helps."""
        pause_s = 0.0
        with self._lock:
            if source not in self._current:
                # Another thread left it before.
                return
            if source.machine and self._is_early(source, error):
                pause_s = _EARLY_PAUSE_S
            elif source.machine:
                self._bad.add(source.machine)
                self._current = ()
            else:
                self._failures += 1
                self._mismatches += isinstance(error, HashMismatch)
                is_lasting = isinstance(error, NotFound | NotOnServer | Forbidden) or bool(error.data.get("is_lasting"))
                if is_lasting or self._failures >= TRIES or self._mismatches >= _MOST_MISMATCHES:
                    raise error
                pause_s = self._backoff.failed()
                self._current = ()
        self._stop.sleep(pause_s, self._clock)

    def _is_early(self, source: TreeSource, error: StokerError) -> bool:
        """Return True if a source that is still fetching the tree may have the file in a moment."""
        is_lacking = isinstance(error, NotFound | NotOnServer) or error.data.get("status") == _NOT_YET
        if not source.is_partial or not (is_lacking or type(error) is Unavailable):
            return False
        now_s = self._clock.monotonic_s()
        return now_s - self._lacking_since_s.setdefault(source.machine, now_s) < EARLY_S


# Connections to other machines of the fleet: over TLS, with the certificate of that machine checked; plain HTTP only on
# loopback.

_PATIENCE = RequestTimeouts(answer_s=15.0, silence_s=20.0, retry_s=0.0)
CONNECT_S = 3.0
"""Connect timeout of a machine; after that the coordinator is used."""
UNHEARD_S = 5.0
"""After so long without a packet a connection is opened again: after a long cut the sender retransmits more and more
seldom. It is more than a network takes to lose and repeat some packets."""


def peer_opener(
    identity: FleetIdentity | None, *, clock: Clock, user_agent: str = "stoker"
) -> Callable[[TreeLocation], FleetClient | None]:
    """Return the `open_peer` of `FleetTreeSourceFinder`; `identity` is this worker's, None if it has none."""

    def open_peer(place: TreeLocation) -> FleetClient | None:
        is_secure = place.url.startswith("https://")
        own = identity if identity is not None and identity.certificate_file else None
        # Plain only in a fleet of one machine: in any other, a message could make us send requests to our own services.
        if is_secure is (own is None) or not (is_secure or is_this_computer(read_address(place.url).origin.host)):
            return None
        meant = changed(own, machine=place.machine) if own is not None else None
        settings = HttpSettings(
            connect_s=CONNECT_S,
            head_s=30.0,
            read_s=20.0,
            unheard_s=UNHEARD_S,
            # A machine of the same network is reached directly, never through a proxy.
            no_proxy=("*",),
            fleet=meant,
            user_agent=user_agent,
        )
        return FleetClient(Urllib3Transport(settings), place.url, clock=clock, patience=_PATIENCE)

    return open_peer


def own_address_towards(url: str) -> str:
    """Return the address of this machine on the network of a coordinator; empty if there is no route. Sends nothing."""
    address = read_address(url).origin
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        family, _, _, _, target = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


# Several pieces of one transfer at the same time: all of them, or the first failure.

CREW = 3
"""How many at once."""


def do_all(pieces: Iterable[Callable[[], None]], *, name: str, give_up: Callable[[], None]) -> None:
    """Do all pieces, in threads of that name. If one fails, call `give_up`, which ends the others, and raise its error.

    No thread of it runs when this returns or raises.
    """
    crew = ThreadPoolExecutor(CREW, thread_name_prefix=name)
    try:
        done, _ = wait([crew.submit(piece) for piece in pieces], return_when=FIRST_EXCEPTION)
        for one in done:
            one.result()
    except BaseException:
        give_up()
        raise
    finally:
        crew.shutdown(wait=True, cancel_futures=True)


class StopEvent(Protocol):
    """What `threading.Event` has to stop a transfer."""

    def is_set(self) -> bool:
        """Return True if the transfer is to stop."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the transfer is to stop, at most so many seconds; return `is_set()`."""


def is_later(error: StokerError) -> bool:
    """Return True if the request may work later: the coordinator is unreachable, full, busy, or has a bug."""
    # `LocalFile`: the coordinator has too many files open.
    return isinstance(error, Unavailable | InternalError | LocalFile)
