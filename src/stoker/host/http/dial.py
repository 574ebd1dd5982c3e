"""Reaching a host: its name looked up, its addresses tried so that a dead one costs a quarter second, not all the time.

One deadline holds for everything, the look-up included: that runs in a thread of its own, since nothing else ends it.
Addresses are tried in the system's order with the families in turn; the next one starts when the one before failed or
did not answer for a moment, and the first that answers wins.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, zip_longest

from stoker.core.errors import NetworkFailed, StokerError
from stoker.core.frozen import frozen_by_position
from stoker.host.http.addresses import is_literal
from stoker.host.http.http_errors import ExchangeStep, Reason, from_errno, network_failed, translated
from stoker.host.http.streams import CancelHandle
from stoker.host.sockets import NamedSocket

HEAD_START_S = 0.25
"""How long an address may be silent before the next one is tried beside it."""
_LONGEST_NAP_S = 0.1
"""How late a pulled cord may be noticed where no socket wakes us."""
_UNDER_WAY = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR})


@frozen_by_position
class SocketAddress:
    """One address that a name stands for, as a socket wants it."""

    family: int
    address: tuple[object, ...]


def dial(
    host: str, port: int, *, deadline_s: float, cord: CancelHandle, admits: Callable[[str], bool] | None = None
) -> socket.socket:
    """Return a connected socket. Raises `NetworkFailed`, by the first address that failed, or `Aborted`.

    With `admits` only addresses that it is content with are tried, whatever name leads there.
    """
    found = look_up(host, port, deadline_s=deadline_s, cord=cord)
    if admits is not None:
        found = [one for one in found if admits(str(one.address[0]))]
        if not found:
            raise network_failed(Reason.REFUSED, host, f"{host} is an address that may not be asked from here")
    addresses = in_turn(found)
    named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _Race(named, addresses, deadline_s, cord).run()


def dial_local(paths: tuple[str, ...], *, named: str, cord: CancelHandle) -> socket.socket:
    """Return a socket that is connected to the first of these Unix sockets at which a process of this user listens.

    Raises `NetworkFailed` if there is none, with what kept us from looking, such as a folder of another user's.
    """
    refused: list[str] = []
    for path in paths:
        cord.check()
        folder, name = os.path.split(path)
        try:
            link = NamedSocket(folder, name.removesuffix(".sock")).knock()
        except StokerError as error:
            refused.append(error.message)
            continue
        if link is not None:
            return link
    why = f" ({'; '.join(refused)})" if refused else ""
    what = f"no process of this user listens at the socket of {named}{why}"
    hint = "start `stoker serve` as this user; a coordinator of another user is reached over TLS, by `stoker join`"
    raise network_failed(Reason.REFUSED, named, what, hint=hint, sockets=list(paths))


def look_up(host: str, port: int, *, deadline_s: float, cord: CancelHandle) -> list[SocketAddress]:
    """Return the addresses of a host, in the system's order."""
    if is_literal(host):
        return _ask_system(host, port)
    answer: list[list[SocketAddress] | Exception] = []
    is_there = threading.Event()

    def ask() -> None:
        try:
            answer.append(_ask_system(host, port))
        except Exception as error:  # noqa: BLE001 - carried over to whoever waits
            answer.append(error)
        is_there.set()

    threading.Thread(target=ask, name="stoker-look-up", daemon=True).start()
    while not is_there.wait(min(_LONGEST_NAP_S, max(0.0, deadline_s - time.monotonic()))):
        cord.check()
        if time.monotonic() >= deadline_s:
            hint = "check this computer's network and its name servers"
            raise network_failed(Reason.DNS, host, f"the name {host} could not be looked up in time", hint=hint)
    cord.check()
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def in_turn(addresses: list[SocketAddress]) -> list[SocketAddress]:
    """Order addresses so that the families take turns, the system's favourite first."""
    favourite = addresses[0].family
    first = [candidate for candidate in addresses if candidate.family == favourite]
    others = [candidate for candidate in addresses if candidate.family != favourite]
    return [candidate for candidate in chain.from_iterable(zip_longest(first, others)) if candidate is not None]


def _ask_system(host: str, port: int) -> list[SocketAddress]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (socket.gaierror, UnicodeError) as error:
        text = error.strerror if isinstance(error, socket.gaierror) else "not a name"
        hint = "check the spelling, and this computer's network and name servers"
        what = f"the name {host} can't be looked up: {text}"
        # An answer, unlike a name server that fails or can't be asked.
        is_unknown = isinstance(error, UnicodeError) or error.errno == socket.EAI_NONAME
        raise network_failed(Reason.DNS, host, what, hint=hint, is_unknown_name=is_unknown) from None
    return list(dict.fromkeys(SocketAddress(family, address) for family, _type, _protocol, _name, address in found))


class _Race:
    """Connections to several addresses of one host, of which one is wanted."""

    def __init__(self, host: str, addresses: list[SocketAddress], deadline_s: float, cord: CancelHandle) -> None:
        self._host = host
        self._waiting = addresses[::-1]
        self._deadline_s = deadline_s
        self._cord = cord
        self._next_start_s = 0.0
        self._running: dict[int, socket.socket] = {}
        self._first_failure: NetworkFailed | None = None

    def run(self) -> socket.socket:
        poll = select.poll()
        try:
            while True:
                self._cord.check()
                now_s = time.monotonic()
                if now_s >= self._deadline_s:
                    raise self._first_failure or translated(TimeoutError(), self._host, ExchangeStep.CONNECT)
                winner = self._start(poll, now_s) if self._is_next(now_s) else self._wait(poll, now_s)
                if winner is not None:
                    return self._keep(winner)
        finally:
            for sock in self._running.values():
                self._cord.let_go(sock)
                sock.close()

    def _is_next(self, now_s: float) -> bool:
        if not self._waiting:
            if not self._running and self._first_failure is not None:
                raise self._first_failure
            return False
        return not self._running or now_s >= self._next_start_s

    def _start(self, poll: select.poll, now_s: float) -> socket.socket | None:
        candidate = self._waiting.pop()
        self._next_start_s = now_s + HEAD_START_S
        try:
            sock = socket.socket(candidate.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        except OSError as error:
            self._failed(error.errno or errno.EAFNOSUPPORT)
            return None
        self._running[sock.fileno()] = sock
        sock.setblocking(False)
        code = sock.connect_ex(candidate.address)
        self._cord.hold(sock)
        if code == 0:
            return sock
        if code in _UNDER_WAY:
            poll.register(sock, select.POLLOUT)
        else:
            self._lost(sock, code)
        return None

    def _wait(self, poll: select.poll, now_s: float) -> socket.socket | None:
        until_s = min(self._deadline_s, now_s + _LONGEST_NAP_S)
        if self._waiting:
            until_s = min(until_s, self._next_start_s)
        for number, _event in poll.poll(max(1.0, (until_s - now_s) * 1000)):
            sock = self._running[number]
            poll.unregister(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._cord.check()
            if code == 0:
                return sock
            self._lost(sock, code)
        return None

    def _lost(self, sock: socket.socket, code: int) -> None:
        del self._running[sock.fileno()]
        self._cord.let_go(sock)
        sock.close()
        self._next_start_s = 0.0
        self._failed(code)

    def _failed(self, code: int) -> None:
        failure = (
            translated(TimeoutError(), self._host, ExchangeStep.CONNECT)
            if code == errno.ETIMEDOUT
            else from_errno(code, self._host)
        )
        if self._first_failure is None and isinstance(failure, NetworkFailed):
            self._first_failure = failure

    def _keep(self, winner: socket.socket) -> socket.socket:
        del self._running[winner.fileno()]
        self._cord.let_go(winner)
        winner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        winner.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return winner


def expect_life(connected: socket.socket, unheard_s: float) -> None:
    """Have a connection end when nothing was heard of the other computer for so long.

    Its system answers even while its program is silent, so this tells a cut link from a slow program. What a system
    does not know is left as it is there.
    """
    quarter_s = max(1, round(unheard_s / 4))
    wishes = {
        # After this silence it is asked for a sign of life, so often.
        "TCP_KEEPIDLE": max(1, round(unheard_s / 2)),
        "TCP_KEEPINTVL": quarter_s,
        "TCP_KEEPCNT": max(1, round(unheard_s / 2 / quarter_s)),
        # The same for what was sent and not acknowledged, in milliseconds.
        "TCP_USER_TIMEOUT": round(unheard_s * 1000),
    }
    for name, value in wishes.items():
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
