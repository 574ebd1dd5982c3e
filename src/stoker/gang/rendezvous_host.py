"""The listening side of a TCP rendezvous: admits clients, assigns ranks, and decides which failure was first.

A client has arrived once it sent its part. A connection that breaks before that is no failure: the client connects
again, and the first connection has no effect.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from stoker.core.clock import SystemClock
from stoker.core.errors import NetworkFailed
from stoker.core.frozen import changed
from stoker.gang import rendezvous as lines
from stoker.gang.rendezvous import UNHEARD_S, BadLine, RendezvousConnection, TcpRendezvous, check_words, vanished
from stoker.gang.rendezvous_types import (
    CLOSED,
    COLLECT_S,
    UP,
    HostFailure,
    HostPart,
    HostRanks,
    RendezvousOutcome,
    failed,
    not_arrived,
    settled,
)

_HANDSHAKE_S = 5.0
_MOST_STRANGERS = 32
_MOST_POINTS = 64
_MOST_EPOCH = 2**53


class _Client:
    """One host that has proven itself."""

    def __init__(self, name: str, talk: RendezvousConnection) -> None:
        self.name = name
        self.talk = talk
        self.part: HostPart | None = None
        """What it brings; `None` until it has arrived."""
        self.points: set[str] = set()
        self.has_left = False


class RendezvousHost(TcpRendezvous):
    """A rendezvous of these hosts, in this order; the first is this one. It listens from the beginning."""

    def __init__(
        self, hosts: Sequence[str], *, at: tuple[str, int], token: str, epoch: int, unheard_s: float = UNHEARD_S
    ) -> None:
        """`at` is where clients come to, port 0 for any; `unheard_s` is how long a client may be out of reach.

        Raises `BadGang`, `NetworkFailed`.
        """
        check_words(hosts, token, epoch)
        super().__init__(hosts[0], token, epoch)
        self._unheard_s = unheard_s
        self._hosts = tuple(hosts)
        self._clients: dict[str, _Client] = {}
        self._own_part: HostPart | None = None
        self._own_points: set[str] = set()
        self._causes: list[tuple[float, HostFailure]] = []
        self._clock = SystemClock()
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        self._open: set[RendezvousConnection] = set()
        try:
            family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
            self._listener = socket.create_server(at, family=family, backlog=_MOST_STRANGERS)
        except OSError as error:
            raise NetworkFailed(f"can't listen at {at[0]}:{at[1]}: {error.strerror or error}") from error
        self._start(self._let_in)

    @property
    def port(self) -> int:
        """Where clients come to."""
        return int(self._listener.getsockname()[1])

    def gather(self, part: HostPart, timeout_s: float, is_cancelled: Callable[[], bool] = bool) -> HostRanks:
        with self._news:
            self._own_part = HostPart(ranks=part.ranks, devices=part.devices, name=self.name)
        self._assign_ranks()
        if not self._wait(lambda: self._host_ranks is not None, timeout_s, is_cancelled):
            raise failed(settled(self, not_arrived(self._not_here(), timeout_s)))
        if self._host_ranks is None or self._verdict is not None:
            raise failed(self._verdict or RendezvousOutcome(cause=vanished(self.name, "closed")))
        return self._host_ranks

    def publish(self, place: str) -> None:
        self._place = place
        self._broadcast(self._line("published", place=place))
        self._tell_news()

    def arrive(self, point: str) -> None:
        with self._news:
            self._own_points.add(point)
        self._see_passed(point)

    def missing(self, point: str) -> tuple[str, ...]:
        with self._news:
            here = {name for name, client in self._clients.items() if point in client.points}
            here |= {self.name} if point in self._own_points else set()
        return tuple(name for name in self._hosts if name not in here)

    def fail(self, cause: HostFailure) -> None:
        self._take_cause(changed(cause, host=cause.host or self.name), self._clock.monotonic_s())

    def close(self) -> None:
        with self._news:
            if self._is_closed:
                return
            self._is_closed = True
            clients = [client.talk for client in self._clients.values() if client.part is not None]
            strangers = self._open.difference(clients)
            has_failed = bool(self._causes)
        if has_failed:
            self._decide()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for talk in clients:
            with suppress(OSError):
                talk.send(self._line("bye"))
            talk.close()
        for talk in strangers:
            talk.close()
        self._tell_news()
        self._end_threads()

    def _let_in(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._strangers.acquire(blocking=False):
                self._start(self._attend, RendezvousConnection(connection, self._unheard_s))
            else:
                connection.close()

    def _attend(self, talk: RendezvousConnection) -> None:
        """Serve one connection until its end."""
        client: _Client | None = None
        with self._news:
            self._open.add(talk)
        try:
            try:
                client = self._welcome(talk)
            finally:
                self._strangers.release()
            if client is not None:
                self._listen(client)
        except BadLine as error:
            if client is not None:
                self._lose(client, str(error))
        except OSError as error:
            if client is not None:
                self._disconnected(client, str(error) or type(error).__name__)
        finally:
            talk.close()
            with self._news:
                self._open.discard(talk)

    def _welcome(self, talk: RendezvousConnection) -> _Client | None:
        """Return a client that has proven itself; `None` if it was refused. Raises `OSError`, `BadLine`."""
        nonce = secrets.token_hex(32)
        talk.send(lines.write("challenge", v=lines.VERSION, nonce=nonce))
        got = talk.receive(most_bytes=lines.MOST_STRANGE_BYTES, within_s=_HANDSHAKE_S)
        if got is None:
            return None
        hello = lines.read(got)
        name, theirs, epoch = lines.name_of(hello), lines.nonce_of(hello), lines.number(hello, "epoch", _MOST_EPOCH)
        proven: dict[str, Any] = {"epoch": epoch, "nonces": (nonce, theirs), "name": name}
        if hello["kind"] != "hello" or not lines.is_proven(lines.text(hello, "proof"), self._token, "guest", **proven):
            talk.send(lines.write("refused", why="the token is another", epoch=-1))
            return None
        client = _Client(name, talk)
        why = self._register(name, client, epoch)
        if why:
            talk.send(lines.write("refused", why=why, epoch=self.epoch))
            return None
        try:
            talk.send(lines.write("welcome", proof=lines.proof(self._token, "holder", **proven), name=self.name))
        except OSError as error:
            self._disconnected(client, str(error))
            return None
        return client

    def _register(self, name: str, client: _Client, epoch: int) -> str:
        """Register a client, in the place of one that has not arrived yet; return why not, empty if it is done."""
        with self._news:
            older = self._clients.get(name)
            if epoch != self.epoch:
                return f"this is epoch {self.epoch}, and {name} is of epoch {epoch}"
            if name not in self._hosts[1:]:
                return f"{name} is not expected"
            if older is not None and older.part is not None:
                return f"{name} is here already"
            if self._verdict is not None or self._is_closed:
                return "the rendezvous is over"
            self._clients[name] = client
        if older is not None:
            # The host connected again before the end of its first connection was noticed here.
            older.talk.close()
        return ""

    def _listen(self, client: _Client) -> None:
        while (got := client.talk.receive()) is not None:
            line = lines.read(got)
            if line.get("epoch") != self.epoch:
                message = f"message of epoch {line.get('epoch')!r}, expected {self.epoch}"
                raise BadLine(message)
            if not self._hear(client, line):
                return
        self._disconnected(client, "the connection ended")

    def _hear(self, client: _Client, line: lines.RendezvousMessage) -> bool:
        """Take in what a client says; `False`: it was its last word. Raises `BadLine`."""
        kind = line["kind"]
        if kind == "attending" and client.part is None:
            self._take_part(client, lines.read_part(line, client.name))
        elif kind == "arrived" and len(client.points) < _MOST_POINTS:
            point = lines.name_of(line, "point")
            with self._news:
                client.points.add(point)
            self._see_passed(point)
        elif kind == "failed":
            cause = lines.read_cause(lines.object_of(line.get("cause")), client.name)
            self._take_cause(cause, self._clock.monotonic_s() - lines.seconds(line, "ago_s"))
        elif kind == "bye":
            self._lose(client, "it left before all were up", is_bye=True)
            return False
        else:
            message = f"unexpected message {kind!r}"
            raise BadLine(message)
        return True

    def _take_part(self, client: _Client, part: HostPart) -> None:
        """Count a client as arrived, unless a newer connection has taken its place."""
        with self._news:
            if self._clients.get(client.name) is not client:
                return
            client.part = part
            verdict = self._verdict
        if verdict is not None:
            self._say(client.name, lines.write_over(verdict, self.epoch))
        self._assign_ranks()

    def _disconnected(self, client: _Client, why: str) -> None:
        """Note the end of a client's connection; forget a client that had not arrived yet: it may connect again."""
        with self._news:
            has_arrived = client.part is not None
            if not has_arrived and self._clients.get(client.name) is client:
                del self._clients[client.name]
        if has_arrived:
            self._lose(client, why)

    def _lose(self, client: _Client, why: str, *, is_bye: bool = False) -> None:
        """Note that a client is gone. In order that is, once all were up and it said so, or everything is over."""
        with self._news:
            client.has_left = True
            is_in_order = self._is_closed or self._verdict is not None or (is_bye and UP in self._passed)
            if is_in_order:
                client.points.add(CLOSED)
        if is_in_order:
            self._see_passed(CLOSED)
        else:
            self._take_cause(vanished(client.name, why), self._clock.monotonic_s())

    def _assign_ranks(self) -> None:
        """Assign the ranks once all hosts are there, and send the list to each."""
        with self._news:
            parts = [self._own_part, *(one.part for one in map(self._clients.get, self._hosts[1:]) if one is not None)]
            hosts = tuple(part for part in parts if part is not None)
            if len(hosts) != len(self._hosts) or self._host_ranks is not None:
                return
            address = next((client.talk.own_address for client in self._clients.values()), "")
            self._host_ranks = HostRanks(hosts=hosts, place=0, address=address, epoch=self.epoch)
        written = [lines.write_part(one) for one in hosts]
        for place, host in enumerate(hosts[1:], start=1):
            self._say(host.name, self._line("seated", hosts=written, place=place))
        self._tell_news()

    def _not_here(self) -> tuple[str, ...]:
        with self._news:
            here = {name for name, client in self._clients.items() if client.part is not None}
        return tuple(name for name in self._hosts[1:] if name not in here)

    def _see_passed(self, point: str) -> None:
        if self.missing(point) or point in self._passed:
            return
        with self._news:
            self._passed.add(point)
        self._broadcast(self._line("passed", point=point))
        self._tell_news()

    def _take_cause(self, cause: HostFailure, at_s: float) -> None:
        """Take in that a host gave up. The others have a moment to say what happened to them; then it is decided."""
        with self._news:
            if self._verdict is not None or any(one.host == cause.host for _, one in self._causes):
                return
            self._causes.append((at_s, cause))
            is_first = len(self._causes) == 1
            can_come = {host for host in self._hosts if host not in {one.host for _, one in self._causes}}
            can_come -= {name for name in can_come if name in self._clients and self._clients[name].has_left}
        if not can_come:
            self._decide()
        elif is_first:
            self._start(self._decide_later)

    def _decide_later(self) -> None:
        deadline_s = self._clock.monotonic_s() + COLLECT_S
        with self._news:
            while self._verdict is None and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                self._news.wait(left_s)
        self._decide()

    def _decide(self) -> None:
        with self._news:
            if self._verdict is not None:
                return
            self._verdict = lines.first_of(self._causes)
        self._broadcast(lines.write_over(self._verdict, self.epoch))
        self._tell_news()

    def _broadcast(self, line: bytes) -> None:
        with self._news:
            names = [name for name, client in self._clients.items() if client.part is not None and not client.has_left]
        for name in names:
            self._say(name, line)

    def _say(self, name: str, line: bytes) -> None:
        # The loss of a client is noticed on its own connection.
        with suppress(OSError):
            self._clients[name].talk.send(line)

    def _line(self, kind: str, **fields: object) -> bytes:
        return lines.write(kind, epoch=self.epoch, **fields)
