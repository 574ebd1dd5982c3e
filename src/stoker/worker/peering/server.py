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
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from stoker.host.http.addresses import is_this_computer
from stoker.host.tls.peer import read_peer
from stoker.model.clock import Clock
from stoker.model.digests import is_digest
from stoker.model.errors import BadInput, Bug, NotFound, StokerError, Unavailable
from stoker.model.fleet_errors import NotAllowed
from stoker.model.json_text import dumps
from stoker.wire.codec import from_json
from stoker.wire.contents import DigestsAsk
from stoker.wire.packs import frame
from stoker.wire.protocol import VERSION, VERSION_HEADER
from stoker.wire.ranges import read_range
from stoker.worker.peering.pace import Pace
from stoker.worker.peering.shelf import Given, Shelf
from stoker.worker.peering.strangers import Strangers, shake_hands

MOST_CONNECTIONS = 16
SILENCE_S = 20.0
"""Without a byte from whoever asked, or of a file that grows."""
HOLD_S = 5.0
"""How long a question for something that is still coming is held."""
_LOOK_S = 0.05
_PIECE_BYTES = 1 << 20
_MOST_BODY_BYTES = 1 << 20
_STATUS = ((NotAllowed, 403), (NotFound, 404), (BadInput, 400), (Unavailable, 503))


class PeerServer:
    """Serves one machine's shelf while it is started."""

    def __init__(  # noqa: PLR0913 - everything is handed in
        self,
        shelf: Shelf,
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
        self._server = _Server(host, port, shelf, clock, contexts, Pace(most_bytes_s, clock))
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
        shelf: Shelf,
        clock: Clock,
        contexts: Callable[[], ssl.SSLContext] | None,
        pace: Pace,
    ) -> None:
        self.shelf = shelf
        self.clock = clock
        self.pace = pace
        self.is_over = threading.Event()
        self._contexts = contexts
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._strangers = Strangers()
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
                raise NotAllowed(self._refused)
            if self._serial and not self.server.admits(self._serial):
                raise NotAllowed("this certificate was taken back, or is of no machine of the fleet")
            act()
        except StokerError as error:
            self._refuse(error)
        except (OSError, ValueError) as error:
            if self._has_begun:
                # It can only break off, so that nobody takes it for whole.
                raise
            self._refuse(Bug(str(error)))

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
            asked = from_json(DigestsAsk, body)
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

    def _pour(self, given: Given, start: int, length: int) -> None:
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
