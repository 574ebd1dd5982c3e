"""How who waits learns that something changed.

A socket of its own that anybody may knock at, and descriptors of the processes that stand in its way. Both only say
"look again"; what is true stands in the folder.

Sockets have names outside of any folder, which vanish with their process (Linux only). Where they can't reach, as
between containers, and on other systems, whoever waits looks again every few seconds anyway.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from stoker.hardware.ledger.living import liveness_of
from stoker.host.identity import Liveness, ProcessIdentity

POLL_S = 5.0 if sys.platform == "linux" else 0.5
"""How often is looked again although nobody knocked."""
_LONGEST_WORD = 64


class Bell:
    """A socket that rings; its name is the id of a place in line."""

    def __init__(self, ticket_id: str) -> None:
        self._socket: socket.socket | None = None
        if sys.platform == "linux":
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            try:
                made.bind(_address(ticket_id))
            except OSError:
                made.close()
            else:
                self._socket = made

    def fileno(self) -> int:
        """Give what becomes readable when it rings; -1 where it never does."""
        return -1 if self._socket is None else self._socket.fileno()

    def quieten(self) -> None:
        """Forget that it rang."""
        with suppress(BlockingIOError):
            while self._socket is not None:
                self._socket.recv(_LONGEST_WORD)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def ring(ticket_ids: Iterable[str]) -> None:
    """Knock at each place in line; who is not there does not hear it."""
    ids = list(ticket_ids)
    if not ids or sys.platform != "linux":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ours:
        for ticket_id in ids:
            # Not there, or its queue is full: then it rings already.
            with suppress(OSError):
                ours.sendto(b"look", _address(ticket_id))


def listen(bell: Bell, processes: Iterable[ProcessIdentity], pids: Iterable[int], wait_s: float) -> bool:
    """Wait until the bell rings or one of the processes ends, at most so long; say whether anything happened.

    `pids` are processes known by number only; they just cause a look.
    """
    with ExitStack() as opened:
        poller = select.poll()
        if bell.fileno() >= 0:
            poller.register(bell.fileno(), select.POLLIN)
        if sys.platform == "linux":
            for identity in processes:
                fd = _watch(opened, poller, identity.pid)
                # Only now that its end can't be missed is it certain that it has not ended before.
                if fd is None or liveness_of(identity) is Liveness.GONE:
                    return True
            for pid in pids:
                _watch(opened, poller, pid)
        happened = bool(poller.poll(max(0.0, wait_s) * 1000))
    bell.quieten()
    return happened


def _watch(opened: ExitStack, poller: select.poll, pid: int) -> int | None:
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        # Out of descriptors or not allowed: looking every few seconds has to do.
        return None if isinstance(error, ProcessLookupError) else -1
    opened.callback(os.close, fd)
    poller.register(fd, select.POLLIN)
    return fd


def _address(ticket_id: str) -> str:
    return f"\0stoker-ledger/{ticket_id}"
