"""The server of `stoker ui`: the pages on loopback, for one user.

Other users of this machine can connect to the port, so every request needs a session: the browser is opened with a
one-time code, and more can be made. `Host` must be a loopback name, and changes need our own `Origin` and the key of
the session, as at a coordinator. No body is read without a session but that of a log-in. A thread for each connection,
of which there are a limited number; a page needs a few.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stoker.coordinator.http.pages import HARMLESS, PAGE_FIELD, PAGE_HEADER, is_page
from stoker.coordinator.http.sessions import Login, Sessions, judge_page_request, session_ended
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, Forbidden, StokerError, TooLarge, Unavailable
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Principal, Role
from stoker.protocol.refusals import status_of
from stoker.web.assets import Pages
from stoker.web.backend import UiAnswer, UiBackend, UiRequest, json_answer

HOST = "127.0.0.1"
_LOG = logging.getLogger("stoker.ui")
_MOST_BODY_BYTES = 8 * 1024 * 1024
_LOG_IN_BYTES = 4 * 1024
_IDLE_S = 150.0
_STRANGER_S = 10.0
"""Of silence on a connection that has shown no session."""
_MOST_CONNECTIONS = 128
_LONGEST_NUMBER = 12
_SESSIONS = "/v1/sessions"
_ALWAYS = (
    ("x-content-type-options", "nosniff"),
    *((name.decode(), value.decode()) for name, value in HARMLESS),
)
_ONCE = ("host", "origin", "cookie", "content-length", PAGE_HEADER)


class UiServer:
    """Serves the pages until it is closed."""

    def __init__(self, backend: UiBackend, *, pages: Pages, clock: Clock, port: int = 0, user: str = "") -> None:
        """Listen at a port, 0: any free one. Raises `Unavailable` if it is taken."""
        self.backend = backend
        self.pages = pages
        self._login = Login(principal=Principal(name=user, role=Role.ADMIN))

        class Handler(_Handler):
            ui = self

        try:
            self._server = _Server((HOST, port), Handler)
        except OSError as error:
            hint = "another --port, or none for any free one"
            raise Unavailable(f"can't listen at {HOST}:{port}: {error.strerror or error}", hint=hint) from None
        self.port: int = self._server.server_address[1]
        self.sessions = Sessions(clock, instance=f"ui {self.port}")
        self.hosts = frozenset(f"{name}:{self.port}".encode() for name in (HOST, "localhost"))

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}/"

    def link(self) -> str:
        """Return an address that logs in one browser within a minute. No log gets the code: it is in the fragment."""
        return f"{self.url}login#code={self.sessions.make_code(self._login)}"

    def run(self) -> None:
        """Serve until `close` is called in another thread, or an exception such as Ctrl-C."""
        self._server.serve_forever(poll_interval=0.1)

    def start(self) -> None:
        """Serve in a thread of its own."""
        threading.Thread(target=self.run, name="ui", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end open responses."""
        self.backend.close()
        self._server.server_close()

    def stop(self) -> None:
        """End `run` in another thread, and close."""
        self._server.shutdown()
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._guard = threading.Lock()
        self._count = 0
        self._strangers: dict[Any, None] = {}
        """Connections without a session, the oldest first."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread. If there are too many, the oldest one without a session is closed for it."""
        with self._guard:
            is_full = self._count >= _MOST_CONNECTIONS
            oldest = next(iter(self._strangers), None) if is_full else None
            if oldest is not None:
                del self._strangers[oldest]
            if oldest is not None or not is_full:
                self._count += 1
                self._strangers[request] = None
        if is_full:
            with suppress(OSError):
                (oldest or request).shutdown(socket.SHUT_RDWR)
        if is_full and oldest is None:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, here in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._count -= 1
                self._strangers.pop(request, None)

    def keep(self, request: Any) -> None:
        """Keep a connection that has shown a session."""
        with self._guard:
            self._strangers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects in the middle of a response."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    ui: UiServer
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _STRANGER_S
    server_version = "stoker"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class names it
        """Log nothing: paths have names of jobs."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        try:
            answer = self._answer()
        except StokerError as error:
            answer = json_answer(error.to_dict(), _status(error))
            # The body may not have been read.
            self.close_connection = True
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - a page gets any other error, too
            _LOG.exception("a request of a page could not be answered")
            hint = "`stoker ui` has printed the trace; please report it"
            answer = json_answer({"error": "internal", "message": "internal error", "hint": hint}, 500)
            self.close_connection = True
        self._send(answer)

    def _answer(self) -> UiAnswer:
        ui, path = self.ui, self.path.partition("?")[0]
        if any(len(self.headers.get_all(name, ())) > 1 for name in _ONCE):
            raise BadInput("the request has a header field twice")
        headers = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in self.headers.items()}
        host = headers.get(b"host", b"")
        if host.lower() not in ui.hosts:
            hint = f"open {ui.url}"
            raise Forbidden(f"{host[:100].decode('latin-1')!r} is not a name of this server", hint=hint)
        if is_page(path):
            return _page_answer(ui, self.command, path, headers)
        if not path.startswith("/v1/"):
            return json_answer({"error": "not_found", "message": f"there is nothing at {path[:100]}"}, 404)
        if path == _SESSIONS and self.command == "POST":
            judge_page_request(headers, host, None)
            return self._log_in(self._body(_LOG_IN_BYTES))
        session = ui.sessions.find(headers)
        if session is None:
            if path == _SESSIONS and self.command == "GET" and PAGE_FIELD in headers:
                return json_answer({"user": "", "role": "", "expires_s": None})
            raise session_ended()
        if self.command not in ("GET", "HEAD"):
            judge_page_request(headers, host, None, session)
        self.connection.settimeout(_IDLE_S)
        self.server.keep(self.connection)
        body = self._body(_MOST_BODY_BYTES)
        if path == _SESSIONS and self.command == "DELETE":
            return UiAnswer(headers=(("set-cookie", ui.sessions.end(headers)),), body=b"{}")
        plain = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        return ui.backend.answer(UiRequest(method=self.command, path=self.path, headers=plain, body=body))

    def _log_in(self, body: bytes) -> UiAnswer:
        try:
            code = loads(body).get("code", "")
        except (ValueError, AttributeError):
            raise BadInput("a log-in needs a code") from None
        login = self.ui.sessions.redeem(code) if isinstance(code, str) else None
        if login is None:
            hint = "a code is valid once, for 60 s: press Enter where `stoker ui` runs for a new link"
            raise Forbidden("the code is not valid", hint=hint)
        made, who = self.ui.sessions.begin(login), login.principal
        view = {"user": who.name, "role": who.role.value, "expires_s": made.session.expires_s, "key": made.key}
        return UiAnswer(headers=(("set-cookie", made.cookie),), body=dumps(view).encode())

    def _body(self, limit_bytes: int) -> bytes:
        if "transfer-encoding" in self.headers:
            raise BadInput("a request needs its length")
        text = self.headers.get("content-length", "0")
        if not text.isdecimal() or len(text) > _LONGEST_NUMBER or int(text) > limit_bytes:
            raise TooLarge("the request is too large")
        return self.rfile.read(int(text))

    def _send(self, answer: UiAnswer) -> None:
        names = {name for name, _ in answer.headers}
        is_whole = isinstance(answer.body, bytes)
        self.send_response(answer.status)
        if answer.kind:
            self.send_header("content-type", answer.kind)
        for name, value in (*answer.headers, *(pair for pair in _ALWAYS if pair[0] not in names)):
            self.send_header(name, value)
        if "cache-control" not in names:
            self.send_header("cache-control", "no-store")
        is_chunked = not is_whole and "content-length" not in names
        if is_chunked:
            self.send_header("transfer-encoding", "chunked")
        elif isinstance(answer.body, bytes) and "content-length" not in names and answer.status != 304:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        if isinstance(answer.body, bytes):
            if self.command != "HEAD":
                self.wfile.write(answer.body)
        else:
            self._send_pieces(answer.body, is_chunked=is_chunked)

    def _send_pieces(self, pieces: Iterator[bytes], *, is_chunked: bool) -> None:
        try:
            if self.command == "HEAD":
                return
            for piece in pieces:
                if piece:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
                    self.wfile.flush()
            if is_chunked:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()


def _page_answer(ui: UiServer, method: str, path: str, headers: dict[bytes, bytes]) -> UiAnswer:
    page = ui.pages.answer(method, path, headers)
    named = tuple((name.decode(), value.decode()) for name, value in page.headers)
    return UiAnswer(status=page.status, kind="", headers=named, body=page.body)


def _status(error: StokerError) -> int:
    return 401 if isinstance(error, Forbidden) and error.message == session_ended().message else status_of(error)
