"""Which records of the ledger still count.

Memory is held while a process lives, so a reservation of a process that we see alive counts, however late its lease is:
a stopped or suspended holder still has the memory. What can't be seen from here (another container) counts until its
lease expires. When an owner has ended, the rest of the group and session that it led may still hold the memory, so the
reservation counts until they are gone, too. Another boot ended all processes.

Any user may write a record, so it is believed for the processes of its own user only. For another user's process (a
program that changed its user, or a false record) it counts until its lease expires; the length of a lease is limited.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress

from stoker.core.frozen import changed
from stoker.devices.ledger.reservations import LONGEST_LEASE_S, QueueTicket, Reservation
from stoker.host.identity import (
    Liveness,
    ProcessIdentity,
    are_numbers_ours,
    is_alive,
    living_rows,
    mine,
    read_row,
    users_of,
)

SEEN_S = 30.0
"""A queued request that was not polled for so long blocks no other."""
_ROOT = 0
# Of adding and subtracting the same number of seconds.
_ROUNDING_S = 0.001
_LONGEST_CHAIN = 64
_MOST_ENDED = 1024
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot_s() -> float:
    """Return seconds since boot, suspend included: the same for every process, and no clock change moves it."""
    return time.clock_gettime(_BOOT_CLOCK)


class ReservationLiveness:
    """Decides by their processes whether reservations and queued requests count."""

    def __init__(
        self,
        since_boot_s: Callable[[], float] = since_boot_s,
        liveness: Callable[[ProcessIdentity], Liveness] | None = None,
        users_of: Callable[[int], frozenset[int]] = users_of,
    ) -> None:
        self.since_boot_s = since_boot_s
        self.liveness = liveness or liveness_of
        self._users_of = users_of
        self._left_behind: dict[ProcessIdentity, ProcessIdentity] = {}
        self._ended: set[ProcessIdentity] = set()

    def holds(self, entry: Reservation) -> bool:
        """Return True if a reservation counts."""
        alive = self.liveness(entry.owner)
        holder = entry.owner if alive is Liveness.ALIVE else None
        if alive is Liveness.GONE:
            holder = self.left_behind(entry.owner)
            if holder is None:
                return False
        if holder is not None and self.speaks_for(entry.user, holder.pid):
            return True
        left_s = entry.lease_until_s - self.since_boot_s()
        return 0 < left_s <= min(entry.lease_s, LONGEST_LEASE_S) + _ROUNDING_S

    def speaks_for(self, user: int, pid: int) -> bool:
        """True if a record of that user is believed about this process: it is the user's own, as far as is known."""
        if user == _ROOT:
            return True
        users = self._users_of(pid)
        return not users or user in users

    def waits(self, ticket: QueueTicket) -> bool:
        """Return True if a request still waits."""
        alive = self.liveness(ticket.owner)
        return alive is Liveness.ALIVE or (alive is Liveness.UNKNOWN and not self.is_asleep(ticket))

    def is_asleep(self, ticket: QueueTicket) -> bool:
        """Return True if a request was not polled for so long that it blocks no other."""
        return not 0 < ticket.seen_until_s - self.since_boot_s() <= SEEN_S + _ROUNDING_S

    def is_late(self, entry: Reservation) -> bool:
        """Return True if its lease was not renewed in time."""
        return self.since_boot_s() >= entry.lease_until_s

    def is_here(self, owner: ProcessIdentity) -> bool:
        """Return True if this very process is seen alive from here."""
        return self.liveness(owner) is Liveness.ALIVE

    def left_behind(self, owner: ProcessIdentity) -> ProcessIdentity | None:
        """Return a living process of the group or session that an ended owner led."""
        known = self._left_behind.get(owner)
        if known is not None and self.liveness(known) is Liveness.ALIVE:
            return known
        # An empty group stays empty, and a search for it reads the whole table of processes.
        found = None if owner in self._ended else _survivor(owner)
        if found is None:
            self._left_behind.pop(owner, None)
            if len(self._ended) >= _MOST_ENDED:
                self._ended.clear()
            self._ended.add(owner)
        else:
            self._left_behind[owner] = found
        return found


def liveness_of(identity: ProcessIdentity) -> Liveness:
    """Return True if that very process still runs; of another boot none does, whatever its host was called."""
    here = mine()
    if identity.boot_id and here.boot_id and identity.boot_id != here.boot_id:
        return Liveness.GONE
    if not are_numbers_ours():
        # The table would show another process of that number.
        return Liveness.ALIVE if identity == here else Liveness.UNKNOWN
    return is_alive(identity)


def chain_of(pid: int) -> tuple[int, ...] | None:
    """Return the processes above one, and the leaders of its group and session; `None` if not visible from here."""
    row = read_row(pid)
    if row is None:
        return None
    chain = [row.group, row.session]
    while row is not None and row.parent_pid > 1 and len(chain) < _LONGEST_CHAIN:
        chain.append(row.parent_pid)
        row = read_row(row.parent_pid)
    return tuple(chain)


def _survivor(owner: ProcessIdentity) -> ProcessIdentity | None:
    here = mine()
    is_ours = owner.boot_id == here.boot_id and owner.pid_space == here.pid_space and owner.host == here.host
    # The number of a group or session is not reused while it has members, so another process of that number means
    # that the group is empty. Process 1 leads everything in a container.
    row = read_row(owner.pid) if is_ours and owner.pid > 1 else None
    if not is_ours or owner.pid <= 1 or (row is not None and row.start_ticks != owner.start_ticks):
        return None
    for one in living_rows():
        if owner.pid in (one.group, one.session) and one.pid != owner.pid and one.start_ticks >= owner.start_ticks:
            return changed(owner, pid=one.pid, start_ticks=one.start_ticks)
    return None


# How waiting requests learn that something changed.
#
# A socket of its own that any user may write to, and descriptors of the processes that it waits for. Both only mean
# "poll again"; the folder holds the truth.
#
# Sockets have names outside of any folder, which disappear with their process (Linux only). Where they can't reach, as
# between containers, and on other systems, requests poll every few seconds anyway.

POLL_S = 5.0 if sys.platform == "linux" else 0.5
"""Poll interval without a wakeup."""
_LONGEST_WORD = 64


class WakeupSocket:
    """A socket that wakes a waiter; its name is the id of a queued request."""

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
        """Return the descriptor that becomes readable at a wakeup; -1 if there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def quieten(self) -> None:
        """Discard pending wakeups."""
        with suppress(BlockingIOError):
            while self._socket is not None:
                self._socket.recv(_LONGEST_WORD)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def ring(ticket_ids: Iterable[str]) -> None:
    """Wake each queued request; a missing one does not receive it."""
    ids = list(ticket_ids)
    if not ids or sys.platform != "linux":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ours:
        for ticket_id in ids:
            # Missing, or its queue is full: then a wakeup is pending already.
            with suppress(OSError):
                ours.sendto(b"look", _address(ticket_id))


def listen(bell: WakeupSocket, processes: Iterable[ProcessIdentity], pids: Iterable[int], wait_s: float) -> bool:
    """Wait for a wakeup or the end of one of the processes, at most so long; return True if there was one.

    `pids` are processes known by number only; their end just causes a poll.
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
        # Out of descriptors or not allowed: polling every few seconds has to do.
        return None if isinstance(error, ProcessLookupError) else -1
    opened.callback(os.close, fd)
    poller.register(fd, select.POLLIN)
    return fd


def _address(ticket_id: str) -> str:
    return f"\0stoker-ledger/{ticket_id}"
