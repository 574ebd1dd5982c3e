"""A relay before a server that cuts connections where it is told to, and counts what passes.

with Relay(port) as relay:        # or the path of a Unix socket: whoever connects is then this process's user
    relay.cuts = [100, 5000]      # the first connection ends after 100 bytes of answers, the second after 5000
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.servers.unix_http import connect

_PIECE_BYTES = 64 * 1024


class Relay:
    """Passes bytes on in both directions."""

    def __init__(self, target: int | str) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.cuts: list[int] = []
        """How many bytes of answers each next connection may bring; those after are not cut."""
        self.asked_cuts: list[int] = []
        """The same for bytes of requests."""
        self.came_bytes = 0
        self.cut_count = 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for one in self._open:
            _end(one)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = self._reach()
            self._open += [near, far]
            down = self.cuts.pop(0) if self.cuts else None
            up = self.asked_cuts.pop(0) if self.asked_cuts else None
            # Whoever is asked by another address than its own refuses: it hears its own.
            # Over a Unix socket any port will do.
            port = self._target if isinstance(self._target, int) else self.port
            names = (f"Host: 127.0.0.1:{self.port}".encode(), f"Host: 127.0.0.1:{port}".encode())
            for source, target, most, told in ((near, far, up, names), (far, near, down, (b"", b""))):
                threading.Thread(target=self._pass, args=(source, target, most, told), daemon=True).start()

    def _reach(self) -> socket.socket:
        if isinstance(self._target, str):
            return connect(self._target)
        return socket.create_connection(("127.0.0.1", self._target))

    def _pass(self, source: socket.socket, target: socket.socket, most: int | None, names: tuple[bytes, bytes]) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                data = data.replace(*names) if names[0] else data
                if most is not None and passed + len(data) >= most:
                    target.sendall(data[: most - passed])
                    self.cut_count += 1
                    break
                target.sendall(data)
                passed += len(data)
                self.came_bytes += len(data)
        _end(source)
        _end(target)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
