"""Messages with open files attached, between two of our processes on one computer.

A message is a JSON object; descriptors travel beside it over a Unix socket. Both ends are ours and of one version, so
nothing here is negotiated. Messages arrive whole and in order. Sending blocks when the other side does not read.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from stoker.core import jsontext

_HEADER = struct.Struct("!IB")
_READ_BYTES = 1 << 16
MOST_FDS = 24
"""How many descriptors one message may carry."""


class ReceivedMessage(NamedTuple):
    """One message and the descriptors that came with it; whoever receives it closes them."""

    body: dict[str, Any]
    fds: list[int]


class Channel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._bytes = bytearray()
        self._fds: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unclaimed_fds(self) -> tuple[int, ...]:
        """Descriptors that have arrived before their message has."""
        return tuple(self._fds)

    def send(self, body: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message. The descriptors are duplicated; ours stay ours. Raises `OSError` if nobody listens."""
        if len(fds) > MOST_FDS:
            # The kernel would drop the rest without a word.
            message = f"{len(fds)} descriptors are more than the {MOST_FDS} that one message carries"
            raise ValueError(message)
        payload = jsontext.dumps(body).encode()
        frame = _HEADER.pack(len(payload), len(fds)) + payload
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with self._sending:
            sent = self._socket.sendmsg([frame], rights)
            if sent < len(frame):
                self._socket.sendall(memoryview(frame)[sent:])

    def receive(self) -> list[ReceivedMessage] | None:
        """Wait for bytes and give the messages that they complete, perhaps none. `None`: the other end is gone."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            data, ancillary = b"", []
        for level, kind, rights in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
                self._fds.extend(fds)
        if not data:
            return None
        self._bytes += data
        return self._complete()

    def close(self) -> None:
        """Close this end and whatever descriptors have arrived without their message."""
        self._socket.close()
        while self._fds:
            os.close(self._fds.pop())

    def _complete(self) -> list[ReceivedMessage]:
        messages = []
        while len(self._bytes) >= _HEADER.size:
            size, count = _HEADER.unpack_from(self._bytes)
            end = _HEADER.size + size
            if len(self._bytes) < end:
                break
            body = jsontext.loads(bytes(self._bytes[_HEADER.size : end]))
            del self._bytes[:end]
            # Descriptors never arrive later than the first byte of the message that they were sent with.
            messages.append(ReceivedMessage(body, self._fds[:count]))
            del self._fds[:count]
        return messages
