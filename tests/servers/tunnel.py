"""A proxy that makes tunnels: CONNECT, perhaps with a password, perhaps over TLS. It remembers what it was asked."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from types import TracebackType
from typing import Self


class TunnelProxy:
    """Leads every CONNECT to `to`, whatever host it names. Listens from the moment it is made until it is closed."""

    def __init__(self, to: tuple[str, int], *, password: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._to = to
        self._password = password
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.heads: list[str] = []
        self.origin = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        with self._lock:
            for link in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(link, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self._threads), "a tunnel does not end"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link = self._listener.accept()[0]
                thread = threading.Thread(target=self._serve, args=(link,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            near = stack.enter_context(link if self._tls is None else self._tls.wrap_socket(link, server_side=True))
            self._watch(near)
            head = b""
            while b"\r\n\r\n" not in head:
                more = near.recv(4096)
                if not more:
                    return
                head += more
            self.heads.append(head.decode("latin-1"))
            if self._password and f"Basic {self._password}" not in self.heads[-1]:
                near.sendall(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
                return
            far = stack.enter_context(socket.create_connection(self._to))
            self._watch(far)
            near.sendall(b"HTTP/1.1 200 Here you are\r\nVia: us\r\n\r\n")
            _pump(near, far)

    def _watch(self, link: socket.socket) -> None:
        with self._lock:
            self._open.append(link)


def _pump(near: socket.socket, far: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)
        while True:
            for key, _ in selector.select():
                source = key.fileobj
                assert isinstance(source, socket.socket)
                data = source.recv(65536)
                if not data:
                    return
                key.data.sendall(data)
