"""`http.client` over a Unix socket."""

from __future__ import annotations

import http.client
import socket

from stoker.host.sockets import NamedSocket


class UnixConnection(http.client.HTTPConnection):
    """A connection to whatever listens at a socket, asked under the name `localhost`."""

    def __init__(self, path: str, timeout: float = 30.0) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = connect(self._path)
        self.sock.settimeout(self.timeout)


def connect(path: str) -> socket.socket:
    """Return a socket connected to a path, however long it is."""
    folder, _, name = path.rpartition("/")
    link = NamedSocket(folder, name.removesuffix(".sock")).knock()
    assert link is not None, f"nothing listens at {path}"
    return link
