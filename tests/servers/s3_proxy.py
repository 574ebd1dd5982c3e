"""A proxy before an S3 store that breaks requests on order, and counts the bytes that pass."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

Fault = Callable[[str, str], str]
"""Returns what happens to a request (method, path).

`pass`; `503`; `drop`: no response; `cut`: half of the response; `flip`: one byte of the body is changed.
"""


class S3Proxy:
    """Listens until the block ends."""

    def __init__(self, endpoint: str) -> None:
        self._behind = urlsplit(endpoint).netloc
        self.fault: Fault = lambda _method, _path: "pass"
        self.put_bytes = 0
        """Of bodies of objects that were passed on whole."""
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
        body = asked.rfile.read(int(asked.headers.get("content-length") or 0))
        with self._lock:
            self.requests.append((asked.command, path))
            fault = self.fault(asked.command, path)
        if fault == "drop":
            asked.close_connection = True
            return
        if fault == "503":
            asked.send_response(503)
            text = b"<Error><Code>SlowDown</Code></Error>"
            asked.send_header("content-length", str(len(text)))
            asked.end_headers()
            asked.wfile.write(text)
            return
        if fault == "flip":
            body = body[:-1] + bytes([body[-1] ^ 1])
        line = http.client.HTTPConnection(self._behind, timeout=60)
        try:
            line.putrequest(asked.command, asked.path, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                line.putheader(name, value)
            line.endheaders(body)
            found = line.getresponse()
            data = found.read()
        finally:
            line.close()
        if asked.command == "PUT" and "/objects/" in path and found.status == http.HTTPStatus.OK:
            with self._lock:
                self.put_bytes += len(body)
        asked.send_response(found.status)
        for name, value in found.getheaders():
            if name.lower() not in {"transfer-encoding", "content-length", "connection", "date", "server"}:
                asked.send_header(name, value)
        length = int(found.getheader("content-length") or 0) if asked.command == "HEAD" else len(data)
        asked.send_header("content-length", str(length))
        asked.end_headers()
        if fault == "cut":
            asked.wfile.write(data[: len(data) // 2])
            asked.close_connection = True
            return
        asked.wfile.write(data)
