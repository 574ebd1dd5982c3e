"""A small server that sends trees to other machines: three routes, one thread per connection, all of it limited.

    server = PeerServer(PeerFiles(store, clock=clock), host="192.168.1.7", contexts=…)
    server.start(); hello.contents_at = server.url; …; server.close()

On other addresses than loopback only over TLS, and only to machines with a certificate of the same fleet. It serves
`GET /v1/trees/TREE`, `POST /v1/contents/fetch` and `GET|HEAD /v1/objects/DIGEST` (with ranges) as the coordinator does.
A file that is still arriving is sent on as it arrives.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import socketserver
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from stoker.core.clock import Clock
from stoker.core.digests import is_digest
from stoker.core.errors import BadInput, Forbidden, InternalError, LocalFile, NotFound, StokerError, Unavailable
from stoker.core.jsontext import dumps
from stoker.host.durable import read_regular
from stoker.host.http.exchange import FleetIdentity, is_this_computer
from stoker.host.tls_contexts import load_server, read_peer, server_context
from stoker.protocol.codec import VERSION, VERSION_HEADER, from_json, read_range
from stoker.protocol.tree_messages import (
    DigestsRequest,
    frame,
)
from stoker.store.local_store import LocalStore
from stoker.transfer.peer_files import PeerFiles, ServedFile
from stoker.transfer.trees.tree_sources import own_address_towards

# Connections that have not shown a certificate yet: limited in number, per address, and in time.
#
# They do not count against the limit of verified connections.

MOST = 32
MOST_EACH = 6
"""From one address."""
HANDSHAKE_S = 10.0
"""For the whole handshake: a client that sends a byte now and then times out too."""


class UnverifiedPeers:
    """Counts unverified connections. Thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count one more connection; return False if the limit is reached."""
        with self._turn:
            if self._by_address.total() >= MOST or self._by_address[address] >= MOST_EACH:
                return False
            self._by_address[address] += 1
            return True

    def leave(self, address: str) -> None:
        """Count one connection less."""
        with self._turn:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


def shake_hands(context: ssl.SSLContext, plain: socket.socket, clock: Clock) -> ssl.SSLSocket:
    """Do the TLS handshake with a client. Raises `OSError` if it fails or is too slow."""
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


# Send rate: bytes per second over all connections, or unlimited.


class PeerRateLimit:
    """A limit that threads share. None: no limit."""

    def __init__(self, most_bytes_s: float | None, clock: Clock) -> None:
        self._most_bytes_s = most_bytes_s
        self._clock = clock
        self._turn = threading.Lock()
        self._free_s = 0.0

    def wait(self, size_bytes: int, over: threading.Event) -> None:
        """Wait until so many bytes may be sent, or `over` is set."""
        if not self._most_bytes_s:
            return
        with self._turn:
            now_s = self._clock.monotonic_s()
            due_s = max(now_s, self._free_s)
            self._free_s = due_s + size_bytes / self._most_bytes_s
        if due_s > now_s:
            over.wait(due_s - now_s)


MOST_CONNECTIONS = 16
SILENCE_S = 20.0
"""Without a byte from the client, or of a file that grows."""
HOLD_S = 5.0
"""How long a request for a file that is still arriving is held."""
_LOOK_S = 0.05
_PIECE_BYTES = 1 << 20
_MOST_BODY_BYTES = 1 << 20
_STATUS = ((Forbidden, 403), (NotFound, 404), (BadInput, 400), (Unavailable, 503))


class PeerServer:
    """Serves one machine's files while it is started."""

    def __init__(  # noqa: PLR0913 - everything is handed in
        self,
        files: PeerFiles,
        *,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        contexts: Callable[[], ssl.SSLContext] | None = None,
        admits: Callable[[str], bool] = lambda _serial: True,
        most_bytes_s: float | None = None,
    ) -> None:
        """Listen at an address of this machine; `contexts` returns the TLS context, called for each connection.

        Without it only on loopback: raises `BadInput` elsewhere. `admits` is called with a certificate's serial at
        every request, and returns False if the certificate was revoked.
        """
        if contexts is None and not is_this_computer(host):
            raise BadInput(f"trees are served to other machines only over TLS, not at {host}")
        self._server = _Server(host, port, files, clock, contexts, PeerRateLimit(most_bytes_s, clock))
        self._server.admits = admits
        bound = self._server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if contexts is None else 'https'}://{shown}:{bound}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name="peers", daemon=True)

    def start(self) -> None:
        """Serve from now on, in threads of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close all connections."""
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
        files: PeerFiles,
        clock: Clock,
        contexts: Callable[[], ssl.SSLContext] | None,
        pace: PeerRateLimit,
    ) -> None:
        self.files = files
        self.clock = clock
        self.pace = pace
        self.is_over = threading.Event()
        self._contexts = contexts
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._unverified = UnverifiedPeers()
        self._open: set[socket.socket] = set()
        self._turn = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Exchange)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._unverified.enter(client_address[0]):
            # A rejected client uses another source: the coordinator has the tree too.
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started for it.
            self._unverified.leave(client_address[0])
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._held(request):
            super().process_request_thread(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(SILENCE_S)
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._contexts is not None:
                # In the thread of the connection: a slow handshake delays no other client.
                request = shake_hands(self._contexts(), request, self.clock)
        finally:
            self._unverified.leave(client_address[0])
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
        """Ignore a broken connection: the client handles it."""

    def cut(self) -> None:
        self.is_over.set()
        with self._turn:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _held(self, request: socket.socket) -> Any:
        # A second descriptor: TLS takes over the first one.
        with request.dup() as handle:
            with self._turn:
                self._open.add(handle)
            try:
                yield
            finally:
                with self._turn:
                    self._open.discard(handle)


class _Exchange(BaseHTTPRequestHandler):
    """One connection, request after request."""

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
                self._refused = "for machines of the fleet only: no client certificate"
            else:
                self._serial = found.serial

    def do_GET(self) -> None:
        self._answer(self._get)

    do_HEAD = do_GET  # noqa: N815 - as `http.server` calls it

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as `http.server` calls it
        """Log nothing: the client knows the response."""

    def _answer(self, act: Callable[[], None]) -> None:
        self._has_begun = False
        try:
            if self._refused:
                raise Forbidden(self._refused)
            if self._serial and not self.server.admits(self._serial):
                raise Forbidden("certificate revoked, or not of a machine of this fleet")
            act()
        except StokerError as error:
            self._refuse(error)
        except (OSError, ValueError) as error:
            if self._has_begun:
                # Only closing the connection shows the client that the body is incomplete.
                raise
            self._refuse(InternalError(str(error)))

    def _get(self) -> None:
        kind, _, name = self.path.removeprefix("/v1/").partition("/")
        if kind == "trees" and is_digest(name):
            data = self.server.files.listing(name)
            self._begin(HTTPStatus.OK, len(data), kind="application/json")
            self._send(data)
        elif kind == "objects" and is_digest(name):
            self._give(name)
        else:
            raise NotFound(f"not found: {self.path[:120]}")

    def _post(self) -> None:
        said = self.headers.get("Content-Length", "")
        length = int(said) if said.isascii() and said.isdigit() and len(said) < 12 else -1
        if not 0 <= length <= _MOST_BODY_BYTES:
            self.close_connection = True
            raise BadInput("request without a length, or too long")
        body = self.rfile.read(length)
        if self.path != "/v1/contents/fetch":
            raise NotFound(f"not found: {self.path[:120]}")
        try:
            asked = from_json(DigestsRequest, body)
        except ValueError as error:
            raise BadInput(f"invalid request: {error}") from None
        frames = self._wait_for(
            lambda: [frame(digest, data) for digest, data in self.server.files.small(asked.digests)]
        )
        self._begin(HTTPStatus.OK, sum(map(len, frames or ())))
        for one in frames or ():
            self._send(one)

    def _give(self, digest: str) -> None:
        given = self._wait_for(lambda: self.server.files.find(digest))
        if not given:
            if self.server.files.is_coming():
                raise Unavailable(f"file {digest[:12]} has not arrived here yet")
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
                raise OSError("the file does not grow")
            if server.is_over.wait(_LOOK_S):
                raise OSError("the server is closing")

    def _wait_for(self, look: Callable[[], Any]) -> Any:
        """Call `look` until it returns something, for a limited time, while a tree is arriving here."""
        server, until_s = self.server, self.server.clock.monotonic_s() + HOLD_S
        while not (found := look()):
            if not server.files.is_coming() or server.clock.monotonic_s() > until_s or server.is_over.wait(_LOOK_S):
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


# A worker's server for the rest of its fleet, while the worker runs.

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
    """Start serving trees to other machines of this coordinator's fleet; or return why that is not possible.

    Over TLS with the worker's own certificate, at the address from which it reaches the coordinator. A worker without
    one serves nothing: another user of this machine could read its trees. `admits` says which certificates are valid.
    """
    if identity is None or not identity.certificate_file:
        return "this worker has no certificate"
    host = own_address_towards(url)
    if not host:
        return "no route to the coordinator"
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
    """The TLS context of a machine's server; made again when its certificate file changes."""

    def __init__(self, identity: FleetIdentity) -> None:
        self._identity = identity
        self._turn = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[int, ...] = ()

    def current(self) -> ssl.SSLContext:
        """Return the context for the present certificate."""
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
                # Only machines of this fleet complete the handshake.
                self._context.verify_mode = ssl.CERT_REQUIRED
            elif stamp != self._stamp:
                load_server(self._context, certificate_file=own, key_file=own)
            self._stamp = stamp
            return self._context


# Which machines belong to the fleet now, as its coordinator reports: a forgotten machine gets no tree from others.
#
# A certificate is valid for weeks. Whether it is still accepted is queried when a client shows it, and cached briefly.

FRESH_S = 30.0
"""How long a response is valid without a new query: a forgotten machine is served no longer than that."""
STALE_S = 300.0
"""How long it is valid while the coordinator is unreachable: a running copy survives a short outage."""
AGAIN_S = 2.0
"""Between two queries: an unknown certificate must not cause a query with every connection."""


class PeerAdmission:
    """What one worker knows. `ask` returns the serials of all valid certificates; it may raise `StokerError`."""

    def __init__(self, ask: Callable[[], Iterable[str]], *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._asking = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._heard_s: float | None = None
        self._asked_s: float | None = None

    def admits(self, serial: str) -> bool:
        """Return True if a certificate is valid now. Raises `Unavailable` if that can't be found out."""
        if not self._is_known(serial):
            # One thread queries; known machines do not wait for the response.
            with self._asking:
                if not self._is_known(serial):
                    self._look()
        if self._heard_s is None or self._clock.monotonic_s() - self._heard_s > STALE_S:
            raise Unavailable("coordinator unreachable: can't check which machines belong to the fleet")
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
            # The last response stays valid for a while.
            pass
        self._asked_s = self._clock.monotonic_s()
