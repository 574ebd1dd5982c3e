"""A proxy before an S3 store that breaks requests on order, and counts the bytes that pass."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

Fault = Callable[[str, str], str]
"""Returns what happens to a request (method, path with its query): `pass`, or one of `FAULTS`."""

_REFUSALS = {
    "403": "AccessDenied",
    "404": "NoSuchKey",
    "412": "PreconditionFailed",
    "503": "SlowDown",
    "skewed": "RequestTimeTooSkewed",
}
FAULTS = (*_REFUSALS, "stalled", "drop", "cut", "flip", "short", "long", "swap")
"""`stalled`: the response comes late; `drop`: no response; `cut`: half of the response.

`flip`, `short`, `long`: one byte of the body is changed, gone, added; `swap`: the body of another object. Of a PUT the
body on its way to the store, else the response's.
"""


class S3Proxy:
    """Listens until the block ends."""

    def __init__(self, endpoint: str) -> None:
        self._behind = urlsplit(endpoint).netloc
        self.fault: Fault = lambda _method, _path: "pass"
        self.put_bytes = 0
        """Of bodies of objects that were stored."""
        self.received_bytes = 0
        """Of bodies of objects, also of those that were not sent to their end."""
        self.delay_s = 0.0
        """How much later than the store the proxy answers."""
        self.stall_s = 2.0
        self._other = b""
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on  # noqa: N815 - as the library calls them

            def log_message(self, *_args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(self, asked: BaseHTTPRequestHandler) -> None:
        path = urlsplit(asked.path).path
        is_object = "/objects/" in path
        length = int(asked.headers.get("content-length") or 0)
        body = asked.rfile.read(length)
        with self._lock:
            self.requests.append((asked.command, path))
            self.received_bytes += len(body) if is_object else 0
            fault = self.fault(asked.command, asked.path)
        if self.delay_s:
            time.sleep(self.delay_s)
        if fault == "drop" or len(body) < length:
            asked.close_connection = True
            return
        if fault in _REFUSALS:
            _answer(asked, 403 if fault == "skewed" else int(fault), f"<Error><Code>{_REFUSALS[fault]}</Code></Error>")
            return
        if asked.command == "PUT":
            body = self._spoiled(body, fault)
        found, data = self._ask_store(asked, body)
        if asked.command == "PUT" and is_object and found.status == http.HTTPStatus.OK:
            with self._lock:
                self.put_bytes += len(body)
        if asked.command == "GET":
            data = self._spoiled(data, fault)
        if fault == "stalled":
            time.sleep(self.stall_s)
        # A sender that does not wait any longer has closed the connection.
        with suppress(OSError):
            _pass_back(asked, found, data, is_cut=fault == "cut")

    def _ask_store(self, asked: BaseHTTPRequestHandler, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        line = http.client.HTTPConnection(self._behind, timeout=60)
        try:
            line.putrequest(asked.command, asked.path, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                line.putheader(name, str(len(body)) if name.lower() == "content-length" else value)
            line.endheaders(body)
            found = line.getresponse()
            return found, found.read()
        finally:
            line.close()

    def _spoiled(self, data: bytes, fault: str) -> bytes:
        with self._lock:
            other, self._other = self._other, data
        if fault == "flip" and data:
            return data[:-1] + bytes([data[-1] ^ 1])
        if fault == "short":
            return data[:-1]
        if fault == "long":
            return data + b"x"
        if fault == "swap":
            return other if len(other) == len(data) else data[::-1]
        return data


def _pass_back(asked: BaseHTTPRequestHandler, found: http.client.HTTPResponse, data: bytes, *, is_cut: bool) -> None:
    asked.send_response(found.status)
    for name, value in found.getheaders():
        if name.lower() not in {"transfer-encoding", "content-length", "connection", "date", "server"}:
            asked.send_header(name, value)
    length = int(found.getheader("content-length") or 0) if asked.command == "HEAD" else len(data)
    asked.send_header("content-length", str(length))
    asked.end_headers()
    asked.wfile.write(data[: len(data) // 2] if is_cut else data)
    asked.close_connection |= is_cut


def _answer(asked: BaseHTTPRequestHandler, status: int, text: str) -> None:
    asked.send_response(status)
    asked.send_header("content-length", str(len(text)))
    asked.end_headers()
    if asked.command != "HEAD":
        asked.wfile.write(text.encode())
