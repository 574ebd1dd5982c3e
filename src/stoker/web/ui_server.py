"""The server of `stoker ui`: the pages on loopback, for one user.

Other users of this machine can connect to the port, so every request needs a session: the browser is opened with a
one-time code, and more can be made. `Host` must be a loopback name, and changes need our own `Origin` and header, as at
a coordinator. A thread for each connection; a page needs a few.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stoker.coordinator.http.pages import is_page
from stoker.coordinator.http.sessions import Login, Sessions, judge_page_request, session_ended
from stoker.coordinator.http.statuses import status_of
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, Forbidden, StokerError, TooLarge, Unavailable
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Principal, Role
from stoker.web.assets import Pages
from stoker.web.backend import UiAnswer, UiBackend, UiRequest, json_answer

HOST = "127.0.0.1"
_MOST_BODY_BYTES = 8 * 1024 * 1024
_IDLE_S = 150.0
_SESSIONS = "/v1/sessions"
_ALWAYS = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    # A file of a job that a browser shows by itself runs nothing.
    ("content-security-policy", "default-src 'none'; sandbox; frame-ancestors 'none'"),
)


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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects in the middle of a response."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    ui: UiServer
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
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
        self._send(answer)

    def _answer(self) -> UiAnswer:
        ui, path = self.ui, self.path.partition("?")[0]
        headers = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in self.headers.items()}
        host = headers.get(b"host", b"")
        if host.lower() not in ui.hosts:
            hint = f"open {ui.url}"
            raise Forbidden(f"{host[:100].decode('latin-1')!r} is not a name of this server", hint=hint)
        if is_page(path):
            return _page_answer(ui, self.command, path, headers)
        if not path.startswith("/v1/"):
            return json_answer({"error": "not_found", "message": f"there is nothing at {path[:100]}"}, 404)
        is_read = self.command in ("GET", "HEAD")
        if not is_read:
            judge_page_request(headers, host, None)
        body = self._body()
        if path == _SESSIONS and self.command == "POST":
            return self._log_in(body)
        if ui.sessions.find(headers) is None:
            raise session_ended()
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
        cookie, session = self.ui.sessions.begin(login)
        who = {"user": login.principal.name, "role": login.principal.role.value, "expires_s": session.expires_s}
        return UiAnswer(headers=(("set-cookie", cookie),), body=dumps(who).encode())

    def _body(self) -> bytes:
        if "transfer-encoding" in self.headers:
            raise BadInput("a request needs its length")
        text = self.headers.get("content-length", "0")
        if not text.isdecimal() or int(text) > _MOST_BODY_BYTES:
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
