"""Who is connected to a company, in its own process: one thread reads and writes, the one that works is never held up.

A guest is greeted when it connects, joins by saying what its work is, and is told how that ended. What it does not read
in time is dropped if it was progress; an answer never is. A guest that sends what is none of ours loses its connection,
and nobody else notices. So does one whose join is not whole in time, and where unfinished ones are too much together,
the longest.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.core.clock import Clock
from stoker.engine.runners.shared.tenant_messages import LONGEST_BYTES, Frames, framed, receive
from stoker.host.sockets import user_at

_JOIN_WITHIN_S = 30.0
_MOST_UNJOINED = 256
_MOST_UNFINISHED_BYTES = 4 * LONGEST_BYTES
_LONGEST_STOP_BYTES = 1 << 10
# Beyond these, what a guest has not read is dropped: steps first, then lines of its log.
_STEPS_BYTES = 1 << 18
_LINES_BYTES = 1 << 22
_LONGEST_TEXT = 1 << 18
_LOOK_S = 1.0


class MemberConnection:
    """One connection. The working thread talks to it; the other one reads and writes."""

    def __init__(self, link: socket.socket, wake: Callable[[], None], *, join_by_s: float) -> None:
        self.link = link
        self.join_by_s = join_by_s
        self.work: dict[str, Any] | None = None
        """What it came for, once it has said so."""
        self.is_stopped = False
        self.is_gone = False
        """Nobody is there any more who would want it done."""
        self.is_answered = False
        self.is_heard = True
        """Whether it is listened to: also one that is gone, until the end of its connection was read."""
        self.frames = Frames()
        self.wants_room = False
        """Whether it is watched for room to write."""
        self._wake = wake
        self._lock = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0

    def say(self, body: dict[str, Any]) -> None:
        """Tell it something; never waits and never raises. Progress that it does not read is dropped."""
        if "log" in body and len(body["log"]) > _LONGEST_TEXT:
            body = {"log": f"{body['log'][:_LONGEST_TEXT]}… (cut)"}
        most = _LINES_BYTES if "log" in body or "told" in body else _STEPS_BYTES if "step" in body else None
        if most is not None and self._unsent_bytes > most:
            return
        try:
            said = framed(body)
        except ValueError:
            # Progress of a size that nobody would take; answers are short.
            return
        with self._lock:
            self._unsent.append(said)
            self._unsent_bytes += len(said)
            if len(self._unsent) == 1:
                self._send()
            has_more = bool(self._unsent)
        if has_more:
            self._wake()

    def flush(self) -> None:
        """Send what there is room for."""
        with self._lock:
            self._send()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = self.link.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self.is_gone = True
                self._unsent.clear()
                self._unsent_bytes = 0
                return
            self._unsent_bytes -= sent
            if sent < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][sent:]
            else:
                self._unsent.popleft()


class MemberServer:
    """All connections of one company, and the thread that serves them."""

    def __init__(self, listener: socket.socket, greeting: dict[str, Any], words_fd: int, *, clock: Clock) -> None:
        self.changed = threading.Condition()
        """Held while guests are looked at; told when somebody joined or left."""
        self._listener = listener
        self._greeting = framed(greeting)
        self._words_fd = words_fd
        self._clock = clock
        self._guests: set[MemberConnection] = set()
        self._joined: deque[MemberConnection] = deque()
        self._lets_in = True
        self._empty_since_s = clock.monotonic_s()
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (listener, self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self._thread = threading.Thread(target=self._serve, name="stoker-company-guests", daemon=True)
        self._thread.start()

    def take_joined(
        self, fits: Callable[[list[MemberConnection]], bool] = lambda _guests: True
    ) -> list[MemberConnection]:
        """Return who has joined, in order and as long as all of them fit; the caller holds `changed`."""
        taken: list[MemberConnection] = []
        while self._joined and fits([*taken, self._joined[0]]):
            taken.append(self._joined.popleft())
        return taken

    def empty_for_s(self) -> float | None:
        """Return for how long nobody has been here who waits for an answer; the caller holds `changed`."""
        if any(not guest.is_answered for guest in self._guests):
            return None
        return self._clock.monotonic_s() - self._empty_since_s

    def let_in(self, *, is_open: bool) -> None:
        """Let newcomers in, or leave them waiting at the door."""
        with self.changed:
            self._lets_in = is_open
        self._wake()

    def told(self, guest: MemberConnection, answer: dict[str, Any]) -> None:
        """Give a guest its answer: it has none to wait for any more."""
        guest.say(answer)
        with self.changed:
            guest.is_answered = True
            self._note_left()
        self._wake()

    def tell_all(self, body: dict[str, Any]) -> None:
        """Tell something to everybody who is seated or waits to be."""
        with self.changed:
            present = [guest for guest in self._guests if guest.work is not None and not guest.is_answered]
        for guest in present:
            guest.say(body)

    def close(self, within_s: float) -> None:
        """Send what is unsent, for so long at most, and end all connections."""
        deadline_s = self._clock.monotonic_s() + within_s
        with self.changed:
            while any(guest.has_unsent and not guest.is_gone for guest in self._guests):
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    break
                self.changed.wait(min(left_s, 0.05))
            self._is_ending = True
        self._wake()
        self._thread.join(within_s)

    def _note_left(self) -> None:
        if all(guest.is_answered for guest in self._guests):
            self._empty_since_s = self._clock.monotonic_s()
        self.changed.notify_all()

    def _wake(self) -> None:
        # Full means that it is awake already; closed, that nobody has to be.
        with suppress(OSError):
            self._wake_write.send(b"\0")

    def _serve(self) -> None:
        try:
            self._serve_until_the_end()
        except BaseException:  # noqa: BLE001 - nobody would be heard any more: they are told by the end of the process
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)

    def _serve_until_the_end(self) -> None:
        while not self._is_ending:
            for key, events in self._selector.select(_LOOK_S):
                if key.data == "listener":
                    self._accept()
                elif key.data == "wake":
                    with suppress(BlockingIOError):
                        self._wake_read.recv(4096)
                elif events & selectors.EVENT_READ:
                    self._hear(key.data)
            self._tend()
        for guest in self._guests:
            guest.link.close()
        for end in (self._selector, self._wake_read, self._wake_write):
            end.close()

    def _accept(self) -> None:
        with self.changed:
            if not self._has_room:
                # Whoever waits in line keeps the listener ready: it is not looked at until there is room.
                self._selector.unregister(self._listener)
                return
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            link.setblocking(False)
            try:
                if user_at(link) != os.geteuid():
                    raise PermissionError
                sent = socket.send_fds(link, [self._greeting], [self._words_fd])
                if sent < len(self._greeting):
                    raise BlockingIOError
            except OSError:
                link.close()
                return
            guest = MemberConnection(link, self._wake, join_by_s=self._clock.monotonic_s() + _JOIN_WITHIN_S)
            self._guests.add(guest)
            self._selector.register(link, selectors.EVENT_READ, guest)

    @property
    def _has_room(self) -> bool:
        return self._lets_in and sum(1 for guest in self._guests if guest.work is None) < _MOST_UNJOINED

    def _hear(self, guest: MemberConnection) -> None:
        if not guest.is_heard:
            # Lost a moment ago, for another's sake.
            return
        try:
            data, fds = receive(guest.link)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        for fd in fds:
            # Nobody has a reason to hand us files.
            os.close(fd)
        try:
            if not data:
                self._lose(guest)
            for body in guest.frames.feed(data):
                self._take(guest, body)
        except ValueError:
            self._lose(guest)
        if guest.frames.unfinished_bytes:
            self._bound_unfinished()

    def _take(self, guest: MemberConnection, body: dict[str, Any]) -> None:
        work = body.get("join")
        if body.get("stop") is True:
            guest.is_stopped = True
        elif isinstance(work, dict) and guest.work is None:
            with self.changed:
                guest.work = work
                guest.frames.longest_bytes = _LONGEST_STOP_BYTES
                self._joined.append(guest)
                self.changed.notify_all()
        else:
            message = "neither a join nor a stop"
            raise ValueError(message)

    def _bound_unfinished(self) -> None:
        """Lose who holds the most of what is not whole, as long as all of that is too much."""
        with self.changed:
            unfinished = {guest: guest.frames.unfinished_bytes for guest in self._guests if guest.is_heard}
            while sum(unfinished.values()) > _MOST_UNFINISHED_BYTES:
                longest = max(unfinished, key=lambda guest: unfinished[guest])
                del unfinished[longest]
                self._lose(longest)

    def _lose(self, guest: MemberConnection) -> None:
        """It is gone. Who was not seated yet leaves at once; a seat is left by whoever works for it."""
        with self.changed:
            if not guest.is_heard:
                return
            guest.is_heard, guest.is_gone = False, True
            guest.frames = Frames()
            with suppress(KeyError):
                self._selector.unregister(guest.link)
            if guest.work is None or guest in self._joined:
                with suppress(ValueError):
                    self._joined.remove(guest)
                guest.is_answered = True
            self._note_left()

    def _tend(self) -> None:
        """Write what could not be written, close what is over, and look at the door again."""
        now_s = self._clock.monotonic_s()
        with self.changed:
            for guest in list(self._guests):
                if guest.work is None and not guest.is_gone and now_s >= guest.join_by_s:
                    self._lose(guest)
                guest.flush()
                if guest.is_gone and guest.is_answered and not guest.has_unsent:
                    self._forget(guest)
                elif not guest.is_gone and guest.wants_room != guest.has_unsent:
                    guest.wants_room = guest.has_unsent
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.wants_room else 0)
                    self._selector.modify(guest.link, wanted, guest)
            if self._has_room:
                # It is there already, mostly.
                with suppress(KeyError):
                    self._selector.register(self._listener, selectors.EVENT_READ, "listener")

    def _forget(self, guest: MemberConnection) -> None:
        self._guests.discard(guest)
        with suppress(KeyError, ValueError):
            self._selector.unregister(guest.link)
        guest.link.close()
