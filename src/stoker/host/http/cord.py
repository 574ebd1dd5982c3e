"""The cord of one exchange: whoever pulls it wakes the thread that waits on its connection, wherever it waits."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from stoker.host.http.failures import Aborted


class Cord:
    """The sockets that one exchange waits on. Pulling is safe from any thread and from a signal handler.

    Shutting a socket down, not closing it, is what wakes a thread that waits on it. A TLS socket is shut down below
    TLS, on a descriptor of its own: the `shutdown` of `ssl` would make the waiting thread read ciphertext as if it
    were text.
    """

    def __init__(self) -> None:
        # Reentrant: a signal may come while its own thread holds it. Held only for calls that never wait.
        self._lock = threading.RLock()
        self._sockets: list[socket.socket] = []
        self.is_pulled = False

    def hold(self, sock: socket.socket) -> None:
        """Cut this socket too when the cord is pulled. Raises `Aborted` if it has been."""
        self._sockets.append(sock)
        self.check()

    def let_go(self, sock: socket.socket) -> None:
        """The exchange waits on this socket no longer; it may be closed."""
        with self._lock, suppress(ValueError):
            self._sockets.remove(sock)

    def check(self) -> None:
        """Raise `Aborted` if the cord has been pulled."""
        if self.is_pulled:
            raise Aborted

    def pull(self) -> None:
        """Cut everything that is held now or later."""
        self.is_pulled = True
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
