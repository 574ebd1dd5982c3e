"""A man in the middle: ends TLS with a certificate of his own, and passes on what he hears, changed if he likes."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from stoker.host.tls_contexts import unproven_context
from tests.servers.tls_line import Line


class Middle:
    """Stands between whoever asks here and the real one. `replace` is a text in answers, and what to make of it.

    `at` is an address of his own, where he is not on this computer alone.
    """

    def __init__(
        self,
        real: str,
        context: ssl.SSLContext,
        *,
        replace: tuple[str, str] | None = None,
        at: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        middle = self
        self.heard_finish = False
        self.heard: list[str] = []

        class Passing(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                middle.heard_finish |= self.path.endswith("/finish")
                body = self.rfile.read(int(self.headers["content-length"]))
                line = Line(real, unproven_context(), address="" if at[0] == "127.0.0.1" else at[0])
                status, answer = line.ask("POST", self.path, body)
                line.close()
                if replace is not None:
                    answer = {name: replace[1] if value == replace[0] else value for name, value in answer.items()}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_args: object) -> None:
                middle.heard.append(self.requestline)

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_args: object) -> None: ...

            def get_request(self) -> tuple[socket.socket, object]:
                sock, address = self.socket.accept()
                return context.wrap_socket(sock, server_side=True), address

        self._server = Server(at, Passing)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.url = f"https://{at[0]}:{self._server.server_address[1]}"

    def _serve(self) -> None:
        with suppress(OSError, ValueError):
            self._server.serve_forever(poll_interval=0.02)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
