"""Whether a port of this computer is free to listen on."""

from __future__ import annotations

import errno
import socket

from stoker.model.devices import Answer, Verdict


def is_port_free(port: int) -> Answer:
    """Try it for a moment, on all addresses, as a server would."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        # Connections of a server that has ended keep nobody out.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Answer(verdict=Verdict.NO, why="another program uses it")
            return Answer(verdict=Verdict.UNKNOWN, why=error.strerror or str(error))
    return Answer(verdict=Verdict.YES)
