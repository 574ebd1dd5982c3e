"""Serve the folder you are in on a free port of this machine: each connection is cut after 4 MB, and ranges work."""

import hashlib
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CUT_BYTES = 4_000_000


class Cutting(BaseHTTPRequestHandler):
    """A server on a bad line."""

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(self._data())

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _data(self) -> bytes:
        with open(os.path.basename(self.path), "rb") as file:
            return file.read()

    def _answer(self, body: bytes) -> None:
        whole = self._data()
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(whole) - start))
        self.send_header("ETag", f'"{hashlib.sha256(whole).hexdigest()[:16]}"')
        self.end_headers()
        self.wfile.write(body[start : start + CUT_BYTES])
        self.close_connection = True


server = ThreadingHTTPServer(("127.0.0.1", 0), Cutting)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
threading.Timer(120, os._exit, [0]).start()
server.serve_forever()
