"""A connection between two hosts of a meeting: lines with a limit, each side with a deadline."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from stoker.gang.meeting_lines import MOST_LINE_BYTES, BadLine
from stoker.model.clock import SystemClock

UNHEARD_S = 10.0
"""How long a host may be out of reach before its connection counts as lost."""
_READ_BYTES = 1 << 16


class Talk:
    """One connection. One thread receives, any thread sends, any thread closes."""

    def __init__(self, connection: socket.socket, unheard_s: float = UNHEARD_S) -> None:
        self._socket = connection
        self._rest = bytearray()
        self._turn = threading.Lock()
        self._notice_silence(unheard_s)

    @property
    def own_address(self) -> str:
        return str(self._socket.getsockname()[0])

    @property
    def peer_address(self) -> str:
        return str(self._socket.getpeername()[0])

    def send(self, line: bytes) -> None:
        """Send a line. Raises `OSError` if nobody takes it."""
        with self._turn:
            self._socket.sendall(line)

    def receive(self, *, most_bytes: int = MOST_LINE_BYTES, within_s: float | None = None) -> bytes | None:
        """Wait for a line; `None`: the other side has closed. Raises `OSError`, `TimeoutError`, `BadLine`."""
        clock = SystemClock()
        deadline_s = None if within_s is None else clock.monotonic_s() + within_s
        while (end := self._rest.find(b"\n", 0, most_bytes + 1)) < 0:
            if len(self._rest) > most_bytes:
                message = f"a line of more than {most_bytes} bytes"
                raise BadLine(message)
            left_s = None if deadline_s is None else deadline_s - clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                return None
            self._rest += data
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def close(self) -> None:
        """Close it; whoever receives is told. Twice is fine."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _notice_silence(self, unheard_s: float) -> None:
        """Have the kernel end the connection when the other host is out of reach."""
        quarter_s = max(1, round(unheard_s / 4))
        wanted = {"TCP_KEEPIDLE": quarter_s, "TCP_KEEPINTVL": quarter_s, "TCP_KEEPCNT": 3}
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for name, value in wanted.items():
                if hasattr(socket, name):
                    self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unheard_s * 1000))
            if hasattr(socket, "SO_SNDTIMEO"):
                limit = struct.pack("@ll", max(1, round(unheard_s)), 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
