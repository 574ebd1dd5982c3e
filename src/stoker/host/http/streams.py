"""One connection as a stream of bytes: deadlines that hold however slowly they trickle, large pieces where they flow.

A `Wire` sits between a connected socket (plain or TLS) and whoever reads lines or bodies from it. Outside exceptions
pass through it untouched: the exchange translates them.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Protocol

from stoker.host.http.http_errors import Aborted

# The cord of one exchange: whoever pulls it wakes the thread that waits on its connection, wherever it waits.


class CancelHandle:
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


LINGER_S = 0.1
"""How long a read goes on gathering once it has something to give."""
_BUFFER_BYTES = 32 * 1024


class Stream(Protocol):
    """What is read and written: a socket, a TLS socket, or TLS inside TLS."""

    def recv_into(self, buffer: Any, /) -> int: ...
    def sendall(self, data: bytes, /) -> None: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def close(self) -> None: ...


class IdleState(Enum):
    """What the other side does while nobody asked it anything."""

    QUIET = auto()
    SPEAKS = auto()
    ENDED = auto()


class Wire:
    """A connected socket with a buffer. One thread reads at a time; any thread may pull the cord."""

    def __init__(self, stream: Stream, handle: socket.socket) -> None:
        self._stream = stream
        self._handle = handle
        self._inflow = _Inflow(stream)
        self._reader = io.BufferedReader(self._inflow, _BUFFER_BYTES)

    @property
    def received_bytes(self) -> int:
        """How many bytes have come so far."""
        return self._inflow.received_bytes

    def begin(self, cord: CancelHandle, *, deadline_s: float) -> None:
        """Serve an exchange: the cord cuts it, and until `expect_body` everything must be there by the deadline."""
        self._inflow.cord = cord
        self._inflow.deadline_s = deadline_s
        cord.hold(self._handle)

    def expect_body(self, read_s: float) -> None:
        """From now on, wait at most so long for each next byte, and for no deadline."""
        self._inflow.deadline_s = None
        self._inflow.read_s = read_s

    def expect_by(self, deadline_s: float) -> None:
        """From now on, everything must be there by the deadline."""
        self._inflow.deadline_s = deadline_s

    def finish(self) -> None:
        """The exchange is over; its cord no longer concerns this wire."""
        if self._inflow.cord is not None:
            self._inflow.cord.let_go(self._handle)
            self._inflow.cord = None

    def send(self, data: bytes) -> None:
        """Send all of it before the deadline."""
        self._inflow.set_wait(self._inflow.wait_s())
        self._stream.sendall(data)

    def read_line(self, at_most_bytes: int) -> bytes:
        """Give the next line with its end, or what there is of it when so many bytes have come or the stream ended."""
        return self._reader.readline(at_most_bytes)

    def take(self, at_most_bytes: int) -> bytes:
        """Give the next bytes: waits for the first, then gathers for a moment. Nothing means that the stream ended."""
        self._inflow.lingers = True
        try:
            return self._reader.read1(at_most_bytes)
        finally:
            self._inflow.lingers = False

    def take_at_once(self, at_most_bytes: int) -> bytes:
        """The same without gathering: what one call brings."""
        return self._reader.read1(at_most_bytes)

    def look(self) -> IdleState:
        """See without waiting what the other side does."""
        self._inflow.waits = False
        try:
            is_there = bool(self._reader.peek(1))
        except OSError:
            return IdleState.ENDED
        finally:
            self._inflow.waits = True
        if is_there:
            return IdleState.SPEAKS
        return IdleState.ENDED if self._inflow.has_ended else IdleState.QUIET

    def close(self) -> None:
        """Cut the connection."""
        self.finish()
        self._handle.close()
        self._stream.close()


class _Inflow(io.RawIOBase):
    """The reading end, as the buffer above wants it: `readinto` decides how long to wait."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._set_wait_s: float | None = -1.0
        self.cord: CancelHandle | None = None
        self.deadline_s: float | None = None
        self.read_s = 0.0
        self.lingers = False
        self.waits = True
        self.has_ended = False
        self.received_bytes = 0
        self._held_back: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int | None:
        """Fill a buffer: some bytes, 0 at the end of the stream, None where there are none and nobody waits."""
        if self._held_back is not None:
            raise self._held_back
        try:
            self.set_wait(self.wait_s() if self.waits else 0.0)
            count = self._stream.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if self.waits:
                raise
            return None
        finally:
            if self.cord is not None:
                self.cord.check()
        if count == 0:
            self.has_ended = True
        elif self.lingers and count < len(view):
            count += self._gather(view[count:])
        self.received_bytes += count
        return count

    def wait_s(self) -> float:
        """How long the next call may wait."""
        if self.deadline_s is None:
            return self.read_s
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def set_wait(self, seconds: float) -> None:
        if seconds != self._set_wait_s:
            self._stream.settimeout(seconds)
            self._set_wait_s = seconds

    def _gather(self, view: memoryview) -> int:
        """Take what else comes within a moment. A failure is kept for the next call: what has come is given first."""
        until_s = time.monotonic() + LINGER_S
        gathered = 0
        self.set_wait(LINGER_S)
        while gathered < len(view) and time.monotonic() < until_s:
            try:
                count = self._stream.recv_into(view[gathered:])
            except TimeoutError:
                break
            except OSError as error:
                self._held_back = error
                break
            if count == 0:
                break
            gathered += count
        return gathered
