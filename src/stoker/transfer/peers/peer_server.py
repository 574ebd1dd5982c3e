"""A small server that gives trees to other machines: three questions, one thread per connection, bounded in every way.

    server = PeerServer(Shelf(store, clock=clock), host="192.168.1.7", contexts=…)
    server.start(); hello.contents_at = server.url; …; server.close()

Beyond loopback only over TLS, and only to machines with a certificate of the same fleet. It answers
`GET /v1/trees/TREE`, `POST /v1/contents/fetch` and `GET|HEAD /v1/objects/DIGEST` (with ranges) as the coordinator does.
A file that is still coming is given on as it comes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import socketserver
import ssl
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, BinaryIO

from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadInput, Forbidden, InternalError, LocalFile, NotFound, StokerError, Unavailable
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps
from stoker.host.durable import open_regular, read_regular
from stoker.host.folders import AnchoredFolder
from stoker.host.http.addresses import is_this_computer
from stoker.host.http.exchange import FleetIdentity
from stoker.host.tls.contexts import load_server, read_peer, server_context
from stoker.protocol.codec import VERSION, VERSION_HEADER, from_json, read_range
from stoker.protocol.tree_messages import (
    HEAD_BYTES,
    MOST_LISTING_BYTES,
    PACK_BYTES,
    PACKED_BYTES,
    DigestsRequest,
    frame,
)
from stoker.store.archives.archive_members import listing_bytes
from stoker.store.local_store import LocalStore
from stoker.store.objects import ObjectStore
from stoker.store.records import Record
from stoker.transfer.download.partial import PART, SIDECAR, Sidecar, read_beside
from stoker.transfer.trees.holdings import named_tree
from stoker.transfer.trees.tree_sources import own_address_towards

# Who has connected and not yet shown a certificate: few at once, few from one address, and none for long.
#
# They take no place of those who have shown theirs.

MOST = 32
MOST_EACH = 6
"""From one address."""
HANDSHAKE_S = 10.0
"""For all of it: who sends a byte now and then is not waited for either."""


class UnverifiedPeers:
    """Counts them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Take a place for somebody; false: there is none."""
        with self._turn:
            if self._by_address.total() >= MOST or self._by_address[address] >= MOST_EACH:
                return False
            self._by_address[address] += 1
            return True

    def leave(self, address: str) -> None:
        """Give the place back."""
        with self._turn:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


def shake_hands(context: ssl.SSLContext, plain: socket.socket, clock: Clock) -> ssl.SSLSocket:
    """Speak TLS with whoever connected. Raises `OSError` for who does not, or is too slow."""
    silence_s, until_s = plain.gettimeout(), clock.monotonic_s() + HANDSHAKE_S
    plain.setblocking(False)
    secure = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
                secure.settimeout(silence_s)
                return secure
            except ssl.SSLWantReadError:
                wanted = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                wanted = selectors.EVENT_WRITE
            _wait(secure, wanted, until_s - clock.monotonic_s())
    except BaseException:
        secure.close()
        raise


def _wait(secure: ssl.SSLSocket, wanted: int, left_s: float) -> None:
    with selectors.DefaultSelector() as waiting:
        waiting.register(secure, wanted)
        if left_s <= 0 or not waiting.select(left_s):
            raise TimeoutError("the handshake took too long")


# How fast bytes leave: so many a second over all connections, or as fast as they go.


class PeerRateLimit:
    """A limit that threads share. Nothing said: no limit."""

    def __init__(self, most_bytes_s: float | None, clock: Clock) -> None:
        self._most_bytes_s = most_bytes_s
        self._clock = clock
        self._turn = threading.Lock()
        self._free_s = 0.0

    def wait(self, size_bytes: int, over: threading.Event) -> None:
        """Wait until so many bytes may leave, or everything is over."""
        if not self._most_bytes_s:
            return
        with self._turn:
            now_s = self._clock.monotonic_s()
            due_s = max(now_s, self._free_s)
            self._free_s = due_s + size_bytes / self._most_bytes_s
        if due_s > now_s:
            over.wait(due_s - now_s)


# What this machine can give to others: files by digest, whole or still growing, and listings of trees.
#
# A file that is still on its way here is given as far as it has come, and on as it comes: whoever takes it verifies it,
# as we do. Nothing is given that does not lie under its digest in this machine's store, or below `incoming`.

_REMEMBERED = 64


@frozen
class ServedFile:
    """A file that is open to be given away, and closed by the caller."""

    file: BinaryIO
    size_bytes: int
    """Of the whole; a growing one has fewer so far."""
    is_growing: bool = False


class PeerFiles:
    """One machine's. Safe to use from several threads."""

    def __init__(self, store: LocalStore, *, clock: Clock) -> None:
        self._store = store
        self._objects = ObjectStore(store, clock=clock)
        self._turn = threading.Lock()
        # Small files that lie in a record and not in a file of their own, of trees that were asked for lately.
        self._inline: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def listing(self, tree: str) -> bytes:
        """Return a tree's listing. `NotFound` if it is neither here nor on its way."""
        if is_digest(tree):
            found = named_tree(self._store, tree)
            if found is not None:
                self._remember(found)
                return listing_bytes(found.tree)
            with suppress(OSError):
                return read_regular(os.path.join(self._store.places.incoming, f"{tree}.listing"), MOST_LISTING_BYTES)
        raise NotFound(f"no tree {tree[:12]} here")

    def is_coming(self) -> bool:
        """Return whether any tree is on its way here: what is not there yet may be soon."""
        try:
            with os.scandir(self._store.places.incoming) as entries:
                return any(entry.name.endswith(".listing") for entry in entries)
        except OSError:
            return False

    def find(self, digest: str) -> ServedFile | None:
        """Open a file; nothing if no byte of it is here."""
        if not is_digest(digest):
            return None
        with suppress(NotFound):
            size_bytes = self._objects.size(Digest(digest))
            if size_bytes is not None:
                return ServedFile(file=self._objects.open(Digest(digest)), size_bytes=size_bytes)
        return self._find_growing(digest)

    def small(self, digests: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
        """Give those of these small files that are here, as many as a pack has room for: who wants more asks again."""
        given_bytes = 0
        for digest in dict.fromkeys(digests):
            data = self._of_record(digest)
            if data is None:
                with suppress(StokerError):
                    size_bytes = self._objects.size(Digest(digest))
                    if size_bytes is not None and size_bytes <= PACKED_BYTES:
                        with self._objects.open(Digest(digest)) as file:
                            data = file.read()
            if data is not None:
                given_bytes += HEAD_BYTES + len(data)
                if given_bytes > PACK_BYTES:
                    return
                yield digest, data

    def _find_growing(self, digest: str) -> ServedFile | None:
        incoming = self._store.places.incoming
        try:
            with AnchoredFolder.open(incoming, makes=False) as folder:
                sidecar = read_beside(folder, f"{digest}{SIDECAR}")
        except StokerError:
            return None
        # Checked, and about to become a blob; or growing, of a size that its record tells.
        for name, is_growing in ((digest, False), (f"{digest}{PART}", True)):
            with suppress(OSError):
                file = open_regular(os.path.join(incoming, name))
                if not is_growing:
                    return ServedFile(file=file, size_bytes=os.fstat(file.fileno()).st_size)
                if isinstance(sidecar, Sidecar) and sidecar.size_bytes is not None:
                    return ServedFile(file=file, size_bytes=sidecar.size_bytes, is_growing=True)
                file.close()
        return None

    def _remember(self, record: Record) -> None:
        by_digest = {
            entry.sha256: record.inline[entry.path] for entry in record.tree.entries if entry.path in record.inline
        }
        with self._turn:
            self._inline[record.digest] = {str(digest): data for digest, data in by_digest.items()}
            self._inline.move_to_end(record.digest)
            while len(self._inline) > _REMEMBERED:
                self._inline.popitem(last=False)

    def _of_record(self, digest: str) -> bytes | None:
        with self._turn:
            return next((files[digest] for files in self._inline.values() if digest in files), None)


MOST_CONNECTIONS = 16
SILENCE_S = 20.0
"""Without a byte from whoever asked, or of a file that grows."""
HOLD_S = 5.0
"""How long a question for something that is still coming is held."""
_LOOK_S = 0.05
_PIECE_BYTES = 1 << 20
_MOST_BODY_BYTES = 1 << 20
_STATUS = ((Forbidden, 403), (NotFound, 404), (BadInput, 400), (Unavailable, 503))


class PeerServer:
    """Serves one machine's shelf while it is started."""

    def __init__(  # noqa: PLR0913 - everything is handed in
        self,
        shelf: PeerFiles,
        *,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        contexts: Callable[[], ssl.SSLContext] | None = None,
        admits: Callable[[str], bool] = lambda _serial: True,
        most_bytes_s: float | None = None,
    ) -> None:
        """Listen at an address of this machine; `contexts` gives what TLS is spoken by, asked for each connection.

        Without that only on loopback: `BadInput` elsewhere. `admits` says of a certificate's number, with every
        question, whether it was not taken back.
        """
        if contexts is None and not is_this_computer(host):
            raise BadInput(f"trees are given to other machines over TLS alone, not at {host}")
        self._server = _Server(host, port, shelf, clock, contexts, PeerRateLimit(most_bytes_s, clock))
        self._server.admits = admits
        bound = self._server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if contexts is None else 'https'}://{shown}:{bound}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name="peers", daemon=True)

    def start(self) -> None:
        """Answer from now on, in threads of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and cut who is connected."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.cut()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    admits: Callable[[str], bool]

    def __init__(
        self,
        host: str,
        port: int,
        shelf: PeerFiles,
        clock: Clock,
        contexts: Callable[[], ssl.SSLContext] | None,
        pace: PeerRateLimit,
    ) -> None:
        self.shelf = shelf
        self.clock = clock
        self.pace = pace
        self.is_over = threading.Event()
        self._contexts = contexts
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._strangers = UnverifiedPeers()
        self._open: set[socket.socket] = set()
        self._turn = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Exchange)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._strangers.enter(client_address[0]):
            # Whoever is turned away goes elsewhere: the coordinator has it too.
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started for it.
            self._strangers.leave(client_address[0])
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._held(request):
            super().process_request_thread(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(SILENCE_S)
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._contexts is not None:
                # In the thread of the connection: who is slow with a handshake holds up nobody.
                request = shake_hands(self._contexts(), request, self.clock)
        finally:
            self._strangers.leave(client_address[0])
        try:
            if self._free.acquire(blocking=False):
                try:
                    super().finish_request(request, client_address)
                finally:
                    self._free.release()
        finally:
            if self._contexts is not None:
                with contextlib.suppress(OSError):
                    request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let a connection end that broke: it is the other side's affair."""

    def cut(self) -> None:
        self.is_over.set()
        with self._turn:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _held(self, request: socket.socket) -> Any:
        # A second descriptor: what wraps the first in TLS takes it along.
        with request.dup() as handle:
            with self._turn:
                self._open.add(handle)
            try:
                yield
            finally:
                with self._turn:
                    self._open.discard(handle)


class _Exchange(BaseHTTPRequestHandler):
    """One connection, question after question."""

    protocol_version = "HTTP/1.1"
    server_version = "stoker"
    sys_version = ""
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._refused = self._serial = ""
        if isinstance(self.connection, ssl.SSLSocket):
            found = read_peer(self.connection.getpeercert())
            if found is None or not found.machine:
                self._refused = "this is for machines of the fleet: no certificate of one was shown"
            else:
                self._serial = found.serial

    def do_GET(self) -> None:
        self._answer(self._get)

    do_HEAD = do_GET  # noqa: N815 - as `http.server` calls it

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as `http.server` calls it
        """Say nothing: whoever asked knows what came of it."""

    def _answer(self, act: Callable[[], None]) -> None:
        self._has_begun = False
        try:
            if self._refused:
                raise Forbidden(self._refused)
            if self._serial and not self.server.admits(self._serial):
                raise Forbidden("this certificate was taken back, or is of no machine of the fleet")
            act()
        except StokerError as error:
            self._refuse(error)
        except (OSError, ValueError) as error:
            if self._has_begun:
                # It can only break off, so that nobody takes it for whole.
                raise
            self._refuse(InternalError(str(error)))

    def _get(self) -> None:
        kind, _, name = self.path.removeprefix("/v1/").partition("/")
        if kind == "trees" and is_digest(name):
            data = self.server.shelf.listing(name)
            self._begin(HTTPStatus.OK, len(data), kind="application/json")
            self._send(data)
        elif kind == "objects" and is_digest(name):
            self._give(name)
        else:
            raise NotFound(f"there is nothing at {self.path[:120]}")

    def _post(self) -> None:
        said = self.headers.get("Content-Length", "")
        length = int(said) if said.isascii() and said.isdigit() and len(said) < 12 else -1
        if not 0 <= length <= _MOST_BODY_BYTES:
            self.close_connection = True
            raise BadInput("a question without a length, or a very long one")
        body = self.rfile.read(length)
        if self.path != "/v1/contents/fetch":
            raise NotFound(f"there is nothing at {self.path[:120]}")
        try:
            asked = from_json(DigestsRequest, body)
        except ValueError as error:
            raise BadInput(f"that is no question: {error}") from None
        frames = self._wait_for(
            lambda: [frame(digest, data) for digest, data in self.server.shelf.small(asked.digests)]
        )
        self._begin(HTTPStatus.OK, sum(map(len, frames or ())))
        for one in frames or ():
            self._send(one)

    def _give(self, digest: str) -> None:
        given = self._wait_for(lambda: self.server.shelf.find(digest))
        if not given:
            if self.server.shelf.is_coming():
                raise Unavailable(f"file {digest[:12]} has not come here yet")
            raise NotFound(f"no file {digest[:12]} here")
        with given.file:
            start, length, is_partial = read_range(self.headers.get("Range", ""), given.size_bytes)
            if length < 0:
                self._begin(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, range=f"bytes */{given.size_bytes}")
                return
            status = HTTPStatus.PARTIAL_CONTENT if is_partial else HTTPStatus.OK
            span = f"bytes {start}-{start + length - 1}/{given.size_bytes}" if is_partial else ""
            self._begin(status, length, range=span, etag=f'"{digest}"')
            if self.command != "HEAD":
                self._pour(given, start, length)

    def _pour(self, given: ServedFile, start: int, length: int) -> None:
        at, end, server = start, start + length, self.server
        silent_since_s = server.clock.monotonic_s()
        while at < end:
            data = os.pread(given.file.fileno(), min(_PIECE_BYTES, end - at), at)
            if data:
                self._send(data)
                at += len(data)
                silent_since_s = server.clock.monotonic_s()
                continue
            is_gone = not os.fstat(given.file.fileno()).st_nlink
            if not given.is_growing or is_gone or server.clock.monotonic_s() - silent_since_s > SILENCE_S:
                raise OSError("the file does not go on")
            if server.is_over.wait(_LOOK_S):
                raise OSError("the server ends")

    def _wait_for(self, look: Callable[[], Any]) -> Any:
        """Look until there is something, for a while, as long as a tree is on its way here."""
        server, until_s = self.server, self.server.clock.monotonic_s() + HOLD_S
        while not (found := look()):
            if not server.shelf.is_coming() or server.clock.monotonic_s() > until_s or server.is_over.wait(_LOOK_S):
                return look()
        return found

    def _begin(self, status: HTTPStatus, length: int, *, kind: str = "", range: str = "", etag: str = "") -> None:  # noqa: A002
        self._has_begun = True
        self.send_response_only(status)
        headers = {
            "Content-Type": kind or "application/octet-stream",
            "Content-Length": str(length),
            "Content-Range": range,
            "ETag": etag,
            "Accept-Ranges": "bytes",
            VERSION_HEADER: str(VERSION),
        }
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()

    def _send(self, data: bytes) -> None:
        if self.command == "HEAD":
            return
        self.server.pace.wait(len(data), self.server.is_over)
        self.wfile.write(data)

    def _refuse(self, error: StokerError) -> None:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        body = dumps(error.to_dict()).encode()
        self._begin(HTTPStatus(status), len(body), kind="application/json")
        self._send(body)


# What a worker gives to the rest of its fleet while it runs: a server for its trees, and word of what it has.

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
    """What a machine's server shows and whom it lets in; made again when its certificate's file is another."""

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
"""So long it counts while the coordinator can't be asked: a copy that is under way continues over a short cut."""
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
