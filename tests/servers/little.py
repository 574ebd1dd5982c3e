"""A real web server of a few lines: each request, with its body, goes to a function that says what to answer.

    with LittleServer(lambda asked: Said(body=b"{}")) as server: ...

`asked` has what came, in order. Bodies are read whole before the function is called; a server that is told not to
answers at once, and listens to nothing more on that connection.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from stoker.core.jsontext import dumps, loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    port: int
    """Of the other side: which connection it came on."""
    shown: dict[str, Any] | None = None
    """Over TLS: what the certificate of the other side says, if it showed one."""

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def json(self) -> object:
        return loads(self.body)


@dataclass(slots=True, kw_only=True)
class Said:
    """What to answer. Without a length the pieces go out chunked."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    pieces: Iterable[bytes] | None = None
    cuts: bool = False
    """Close the connection without a word."""


def said(value: object, status: int = 200, **headers: str) -> Said:
    """Answer with JSON, as a coordinator does."""
    return Said(status=status, headers={"X-Stoker-Protocol": "1", **headers}, body=dumps(value).encode())


Answers = Callable[[Got], Said]


class LittleServer:
    """Listens on loopback from the moment it is made until it is closed; `with` closes it."""

    def __init__(
        self, answers: Answers, *, port: int = 0, reads_bodies: bool = True, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answers = answers
        self.asked: list[Got] = []
        self.links: set[socket.socket] = set()
        self.reads_bodies = reads_bodies
        self._server = _Listener(("127.0.0.1", port), _Conversation)
        self._server.little = self
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        if tls is not None:
            # Hands are shaken in the thread of the connection, not in the one that all wait for.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for link in list(self.links):
            # Threads that wait for another request end with their connection.
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    little: LittleServer
    request_queue_size = 128


class _Conversation(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.server.little.links.add(self.connection)

    def finish(self) -> None:
        self.server.little.links.discard(self.connection)
        try:
            super().finish()
        except OSError:
            return

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        if is_whole:
            self._converse()
        return False

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def _converse(self) -> None:
        little = self.server.little
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if little.reads_bodies else b""
        got = Got(
            method=self.command,
            target=self.path,
            headers=dict(self.headers.items()),
            body=body,
            port=self.client_address[1],
            shown=self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None,
        )
        little.asked.append(got)
        answer = little.answers(got)
        if answer.cuts:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(answer)
        while not little.reads_bodies and self.connection.recv(1 << 16):
            """Whatever else comes belongs to the body that nobody wanted."""

    def _answer(self, answer: Said) -> None:
        self.send_response_only(answer.status)
        headers = dict(answer.headers)
        if answer.pieces is not None:
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers.setdefault("Content-Length", str(len(answer.body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if answer.pieces is None:
            self.wfile.write(answer.body)
            return
        for piece in answer.pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_words: object) -> None:
        """Say nothing."""
