"""The way by which one tree comes: the best place that is known, another one when it fails, the coordinator in the end.

Machines that fail are not asked again. The coordinator is, with pauses, as long as bytes still come now and then.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from typing import Protocol, TypeVar

from stoker.core.clock import Clock, Closable
from stoker.core.digests import Digest
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
from stoker.core.leases import AttemptToken
from stoker.core.retry import pause_s
from stoker.host.http.addresses import is_this_computer, read_address
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, HttpSettings, Transport
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import PointCheckpoint, WriteResponse
from stoker.protocol.transport import RequestTimeouts
from stoker.protocol.tree_messages import SourcesRequest, SourcesResponse, TreeLocation
from stoker.protocol.view_messages import FileList, UploadResponse
from stoker.transfer.download.types import DownloadStop

# Where a tree comes from: the coordinator, or a machine of the fleet that has it, or is still getting it.
#
# The coordinator says who (`/v1/sources`), nearest first. A machine that does not answer, or sends something else, is
# told to it and not asked again; the coordinator itself is always the last resort.


class TreeConnection(Protocol):
    """A place that has trees, as far as fetching goes. `FleetClient` has it."""

    def tree_listing(self, tree: str) -> bytes:
        """Return a tree's listing."""

    def fetch_contents(self, digests: Sequence[str]) -> AbstractContextManager[Iterator[tuple[Digest, bytes]]]:
        """Fetch small files together, each verified; what is not there does not come."""

    def object_address(self, sha256: str) -> tuple[str, dict[str, str]]:
        """Return where a file's bytes are, and what to say there."""


class SourcesConnection(TreeConnection, Protocol):
    """A coordinator that says where trees are."""

    def sources(self, asked: SourcesRequest) -> SourcesResponse:
        """Ask where to get trees."""


@frozen
class TreeSource:
    """One place, and the way there."""

    line: TreeConnection
    transport: Transport
    machine: str = ""
    """Whose it is; empty: the coordinator's."""
    is_partial: bool = False
    """It is still getting the tree itself."""


class TreeSourceFinder(Protocol):
    """Says where a tree can be had."""

    def find(self, tree: str, failed: frozenset[str]) -> tuple[TreeSource, ...]:
        """Return places, best first; none: nobody has it. `failed`: machines that were no good.

        Asked again every half minute while the tree comes, so that it is known who still takes it.
        """


class FleetTreeSourceFinder(Closable):
    """Whatever the coordinator says. Safe to use from several threads. Close it when the trees are here.

    `open_peer` opens the way to a machine: over TLS, by the fleet's CA, to that machine and no other; nothing where
    this worker can't (it has no certificate). See `transfer.trees.tree_sources`.
    """

    def __init__(
        self,
        line: SourcesConnection,
        transport: Transport,
        *,
        worker: str,
        open_peer: Callable[[TreeLocation], tuple[TreeConnection, Transport] | None],
    ) -> None:
        self._line = line
        self._coordinator = TreeSource(line=line, transport=transport)
        self._worker = worker
        self._open_peer = open_peer
        self._turn = threading.Lock()
        self._peers: dict[tuple[str, str], tuple[TreeConnection, Transport]] = {}
        self._failed: frozenset[str] = frozenset()

    def find(self, tree: str, failed: frozenset[str]) -> tuple[TreeSource, ...]:
        # A machine that could not be reached for one tree is not waited for with the next.
        self._failed = failed = self._failed | failed
        try:
            asked = SourcesRequest(worker=self._worker, trees=(tree,), failed=tuple(sorted(failed))[:100])
            answered = self._line.sources(asked).trees
        except (NotFound, Forbidden, BadAnswer):
            # One that knows no sources, or does not tell us: it has the tree itself, or nobody has.
            return (self._coordinator,)
        places = next((one.places for one in answered if one.tree == tree), ())
        found = [origin for place in places if (origin := self._origin(place, failed)) is not None]
        return tuple(found)

    def close(self) -> None:
        """Close the ways to other machines; that to the coordinator is its owner's."""
        for _, transport in self._peers.values():
            transport.close()
        self._peers.clear()

    def _origin(self, place: TreeLocation, failed: frozenset[str]) -> TreeSource | None:
        if not place.machine:
            return self._coordinator
        if place.machine in failed:
            return None
        key = (place.machine, place.url)
        with self._turn:
            way = self._peers.get(key)
            if way is None:
                with suppress(StokerError):
                    way = self._open_peer(place)
                if way is None:
                    return None
                self._peers[key] = way
        line, transport = way
        return TreeSource(line=line, transport=transport, machine=place.machine, is_partial=place.is_partial)


# How long to wait after failures in a row: longer each time, with jitter, so that a fleet does not come at once.

FIRST_S = 0.2
LONGEST_S = 15.0


class TransferBackoff:
    """The pauses of one conversation."""

    def __init__(
        self, *, first_s: float = FIRST_S, longest_s: float = LONGEST_S, chance: Callable[[], float] | None = None
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._chance = chance or random.SystemRandom().random
        self._failures = 0

    def worked(self) -> None:
        """Something went well: the next failure is a first one."""
        self._failures = 0

    def failed(self) -> float:
        """Return how long to wait before it is tried again."""
        self._failures += 1
        return pause_s(self._failures - 1, self._chance(), first_s=self._first_s, longest_s=self._longest_s)


REFRESH_S = 30.0
"""How often the coordinator hears that the tree still comes."""
TRIES = 5
"""How often in a row the coordinator may fail without a new byte."""
EARLY_S = 20.0
"""How long a place may lack what it is about to get itself, without a new byte from it."""
_EARLY_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 1.0
"""A link that is back is to be found soon."""
_NOT_YET = 503
_WRONG_TRIES = 2
_OURS = (NoSpace, NoPermission, LocalFile, LockHeld, Cancelled, InternalError)

T = TypeVar("T")


class TreeRoute:
    """Safe to use from several threads: whichever finds a place bad, all leave it."""

    def __init__(self, origins: TreeSourceFinder, tree: str, stop: DownloadStop, clock: Clock) -> None:
        self.tree = tree
        self._origins = origins
        self._stop = stop
        self._clock = clock
        self._turn = threading.RLock()
        self._pauses = TransferBackoff(longest_s=_LONGEST_PAUSE_S)
        self._bad: set[str] = set()
        self._now: tuple[TreeSource, ...] = ()
        self._asked_s: float | None = None
        self._failures = 0
        self._wrong = 0
        self._lacking_since_s: dict[str, float] = {}

    def take(self, ask: Callable[[TreeSource], T]) -> T:
        """Do something at the best place, and again at another where that one fails. Raises the last one's error."""
        while True:
            self._stop.check()
            origin = self._best()
            try:
                return ask(origin)
            except StokerError as error:
                self._stop.check()
                if isinstance(error, _OURS):
                    raise
                self._failed(origin, error)

    def worked(self) -> None:
        """Bytes came: what failed before does not count any more. Tells the coordinator now and then."""
        self._failures = 0
        self._lacking_since_s.clear()
        self._pauses.worked()
        if self._is_refresh_due():
            self._refresh()

    def lacks(self, origin: TreeSource, digest: str) -> NotFound:
        """Make the error of a place that has not what it should."""
        where = origin.machine or "the coordinator"
        return NotFound(f"{where} has no file {digest[:12]} of tree {self.tree[:12]}", hint="submit it again")

    def _best(self) -> TreeSource:
        with self._turn:
            if not self._now:
                self._find()
            return self._now[0]

    def _find(self) -> None:
        self._asked_s = self._clock.monotonic_s()
        self._now = self._origins.find(self.tree, frozenset(self._bad))
        if not self._now:
            raise NotFound(
                f"nobody in the fleet has tree {self.tree[:12]}",
                hint="submit the job again: what it needs is sent anew",
                tree=self.tree,
            )

    def _refresh(self) -> None:
        """Say that it still comes. Where it comes from stays, as long as that works; nobody waits for the answer."""
        with self._turn:
            if not self._is_refresh_due():
                return
            self._asked_s = self._clock.monotonic_s()
        try:
            self._origins.find(self.tree, frozenset(self._bad))
        except StokerError:
            # It can't be reached just now; what comes, comes from elsewhere perhaps.
            return

    def _is_refresh_due(self) -> bool:
        return self._asked_s is not None and self._clock.monotonic_s() - self._asked_s > REFRESH_S

    def _failed(self, origin: TreeSource, error: StokerError) -> None:
        """Leave a place, or wait and try it again; raises where there is no use."""
        pause_s = 0.0
        with self._turn:
            if origin not in self._now:
                # Another thread found out before.
                return
            if origin.machine and self._is_early(origin, error):
                pause_s = _EARLY_PAUSE_S
            elif origin.machine:
                self._bad.add(origin.machine)
                self._now = ()
            else:
                self._failures += 1
                self._wrong += isinstance(error, HashMismatch)
                is_lasting = isinstance(error, NotFound | NotOnServer | Forbidden) or bool(error.data.get("is_lasting"))
                if is_lasting or self._failures >= TRIES or self._wrong >= _WRONG_TRIES:
                    raise error
                pause_s = self._pauses.failed()
                self._now = ()
        self._stop.sleep(pause_s, self._clock)

    def _is_early(self, origin: TreeSource, error: StokerError) -> bool:
        """Return whether a place that is still getting the tree itself may have what it lacks in a moment."""
        is_lacking = isinstance(error, NotFound | NotOnServer) or error.data.get("status") == _NOT_YET
        if not origin.is_partial or not (is_lacking or type(error) is Unavailable):
            return False
        now_s = self._clock.monotonic_s()
        return now_s - self._lacking_since_s.setdefault(origin.machine, now_s) < EARLY_S


# The way to another machine of the fleet: over TLS, to that machine and no other; plain only on loopback.

_PATIENCE = RequestTimeouts(answer_s=15.0, silence_s=20.0, retry_s=0.0)
CONNECT_S = 3.0
"""A machine that can't be reached costs so much: then the coordinator is asked."""
UNHEARD_S = 5.0
"""After a long cut, whoever sends tries again ever more seldom: who receives must not wait for that, but connect again.
So long is less than what a slow program may take, and more than a network takes to lose and repeat some packets."""


def peer_opener(
    identity: FleetIdentity | None, *, clock: Clock, user_agent: str = "stoker"
) -> Callable[[TreeLocation], tuple[TreeConnection, Transport] | None]:
    """Return what `FleetTreeSourceFinder` opens machines with; `identity` is this worker's, nothing if it has none."""

    def open_peer(place: TreeLocation) -> tuple[TreeConnection, Transport] | None:
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
    """Return the address of this machine from which a coordinator is reached: where its neighbours may reach us.

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


# Several pieces of one transfer at the same time: all of them, or the first failure.

CREW = 3
"""So many at once."""


def do_all(pieces: Iterable[Callable[[], None]], *, name: str, give_up: Callable[[], None]) -> None:
    """Do all pieces, in threads of that name. Where one fails, `give_up` ends the others, and its error is raised.

    Nothing of it runs any more when this returns or raises.
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


# What shipping needs of the line to a coordinator. `wire.client.FleetClient` has it; tests bring their own.
#
# Every call may be made again after a lost answer. `Unavailable` means later, `StaleLease` means never again; what is
# refused for its offset carries the right one in its data.


class IncomingObject(Protocol):
    """The bytes of one object, from `offset` on."""

    offset: int

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes; nothing at the end."""


class FleetConnection(Protocol):
    """One coordinator, as far as bytes go."""

    def put_file(self, token: AttemptToken, path: str, data: bytes, *, offset: int) -> int:
        """Add to a mirrored file, and give its size there."""

    def files(self, ref: str, *, attempt: int | None = None) -> FileList:
        """Return what lies there of an attempt's folder, and how much of each file."""

    def begin_upload(self, digest: str, size_bytes: int) -> UploadResponse:
        """Begin or go on with an upload."""

    def append_upload(self, upload: str, data: bytes, *, offset: int) -> int:
        """Send the next bytes of an upload, and give how many lie there now."""

    def finish_upload(self, upload: str) -> UploadResponse:
        """Have the bytes checked and kept."""

    def get_object(self, sha256: str, *, offset: int = 0) -> AbstractContextManager[IncomingObject]:
        """Open an object's bytes from an offset on, or from 0 where the server knows no ranges."""

    def checkpoint(self, job: str, said: PointCheckpoint) -> WriteResponse:
        """Point the job at a checkpoint that lies there."""


class StopEvent(Protocol):
    """What `threading.Event` is: somebody may say stop, and waiting ends early then."""

    def is_set(self) -> bool:
        """Return whether it was said."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is said, at most so long."""


@frozen
class TransferConnection:
    """A line, and how whoever sends or fetches something over it waits."""

    line: FleetConnection
    stop: StopEvent
    clock: Clock
    tries: int = 5
    """How often in a row something may be fetched without a new byte."""
    chance: Callable[[], float] | None = None


def is_later(error: StokerError) -> bool:
    """Return whether what failed may work later: the coordinator is away, full, busy, or has a bug."""
    # A file of the coordinator's own that it can't open just now: too many are.
    return isinstance(error, Unavailable | InternalError | LocalFile)
