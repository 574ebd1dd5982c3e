"""Connections as urllib3 makes them, over sockets that are ours: the only module that imports it.

urllib3 talks to proxies, sets up TLS, writes requests and reads heads. The rest is ours: how addresses are tried, every
timeout, and the body. `http.client` below it gets a socket and a file of our own, so that a deadline holds for the head
as a whole and nothing is closed or read ahead without us.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, zip_longest
from typing import Any, cast

from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.exceptions import HTTPError
from urllib3.util import Url

from stoker.core.errors import LocalFile, NetworkFailed, StokerError
from stoker.core.frozen import frozen_by_position
from stoker.host.http.exchange import BodySource, Headers, is_literal
from stoker.host.http.http_errors import (
    TROUBLE,
    Aborted,
    Ended,
    ExchangeStep,
    Malformed,
    Reason,
    blamed_on_proxy,
    from_errno,
    network_failed,
    proxy_refused,
    translated,
)
from stoker.host.http.http_routes import Route
from stoker.host.http.streams import CancelHandle, HttpResponseHead, IdleState, Stream, Wire
from stoker.host.sockets import NamedSocket

_LONGEST_HEAD_BYTES = 256 * 1024
_PIECE_BYTES = 256 * 1024
_MOST_INTERIM_ANSWERS = 16
_BLANK = (b"\r\n", b"\n")
_STATUS = re.compile(rb"HTTP/1\.[0-9] [1-9][0-9]{2}(?: [^\r\n\x00]*)?\r?\n")
_INTERIM = re.compile(rb"HTTP/1\.[0-9] 1(?!01)")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\x00]*\r?\n")
_FOLDED = re.compile(rb"[ \t][^\r\n\x00]*\r?\n")
_TUNNEL_STATUS = re.compile(r"Tunnel connection failed: ([0-9]{3})")


def connect(
    route: Route,
    *,
    cord: CancelHandle,
    connect_s: float,
    trust: ssl.SSLContext | None,
    admits: Callable[[str], bool] | None = None,
    unheard_s: float | None = None,
) -> HttpConnection:
    """Open a connection: name, socket, proxy and TLS, all within `connect_s`. Raises `NetworkFailed`.

    The connection ends after `unheard_s` without a packet from the other computer, if given.
    """
    inner = _inner(route, trust)
    inner.admits, inner.sockets = admits, route.sockets
    with inner.connecting(cord, time.monotonic() + connect_s):
        try:
            inner.connect()
        except (*TROUBLE, NetworkFailed) as error:
            failure = _failure(Aborted() if cord.is_pulled else error, inner, route)
            if failure is error:
                raise
            raise failure from error
        if unheard_s is not None:
            expect_life(inner.sock, unheard_s)
        return HttpConnection(route, inner, trust)


class HttpConnection:
    """One open connection on a route, for one exchange at a time."""

    def __init__(self, route: Route, inner: _Plain | _Secure, trust: ssl.SSLContext | None = None) -> None:
        self.route = route
        self.trust = trust
        """The trust under which it was verified, and the certificate shown."""
        self.idle_since_s = 0.0
        self.wire = Wire(_strict_about_ends(inner.sock), inner.handle)
        self._inner = inner
        self._wire_socket = _WireSocket(self.wire)
        self._inner.sock = cast(Any, self._wire_socket)
        self._heard_bytes = 0

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        *,
        body: bytes | BodySource | None = None,
        head_s: float = 0.0,
    ) -> HttpResponseHead:
        """Send a request and read the head of its response, within the wire's deadline.

        A body may take any time, as long as each piece of it is sent within `head_s`; the response has that long from
        then on.
        """
        self._heard_bytes = self.wire.received_bytes
        pieces = _pieces(body)
        # The first piece is sent together with the head, mostly it is all of the body: one packet instead of two.
        self._wire_socket.along = next(pieces, b"")
        is_whole = False
        # A server may have responded, for example with a refusal, before it closed: then there is a response to read.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._inner.request(method, target, headers=headers, preload_content=False, decode_content=False)
            is_whole = self._send_rest(pieces, head_s)
        try:
            response = self._inner.getresponse()
        except HTTPError as error:
            raise Malformed("fields that contradict each other") from error
        keeps_open = self._inner.sock is not None and is_whole
        head = HttpResponseHead(
            status=response.status, headers=Headers(response.headers.iteritems()), keeps_open=keeps_open
        )
        # Only its head was needed; closing lets `http.client` send the next request.
        response.close()
        return head

    def _send_rest(self, pieces: Iterator[bytes], head_s: float) -> bool:
        """Send the rest of a body; returns False if the server responds before it has all of it."""
        for piece in pieces:
            if self.wire.look() is IdleState.SPEAKS:
                return False
            self.wire.expect_by(time.monotonic() + head_s)
            self.wire.send(piece)
            self.wire.expect_by(time.monotonic() + head_s)
        return True

    @property
    def has_heard(self) -> bool:
        """True if any byte came since the last request."""
        return self.wire.received_bytes > self._heard_bytes

    def close(self) -> None:
        """Cut it."""
        self.wire.close()


def _pieces(body: bytes | BodySource | None) -> Iterator[bytes]:
    """Return a body piece by piece, exactly as many bytes as were announced."""
    if isinstance(body, bytes):
        yield from (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))
        return
    if body is None:
        return
    left_bytes = body.length_bytes
    for piece in body.pieces():
        left_bytes -= len(piece)
        if left_bytes < 0:
            break
        yield piece
    if left_bytes:
        raise LocalFile("the file changed while it was sent", hint="send it again when no program writes to it")


def _inner(route: Route, trust: ssl.SSLContext | None) -> _Plain | _Secure:
    near, proxy = route.near, route.proxy
    options: dict[str, Any] = {}
    if proxy is not None:
        options["proxy"] = Url(scheme=near.scheme, host=near.host, port=near.port)
        options["proxy_config"] = ProxyConfig(trust, False, None, None)
    if not route.is_secure:
        return _Plain(near.host, near.port, **options)
    if trust is not None and not trust.check_hostname:
        # The caller verifies the other side in another way.
        options["assert_hostname"] = False
    inner = _Secure(near.host, near.port, ssl_context=trust, **options)
    if route.far is not None and proxy is not None:
        credentials = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
        inner.set_tunnel(route.far.host, route.far.port, headers=credentials, scheme=near.scheme)
    return inner


def _strict_about_ends(stream: Any) -> Stream:
    # A TLS stream that just ends was cut: without this, `ssl` would treat it as a regular end.
    if hasattr(stream, "suppress_ragged_eofs"):
        stream.suppress_ragged_eofs = False
    return cast(Stream, stream)


def _failure(error: Exception, inner: _Plain | _Secure, route: Route) -> StokerError:
    """Translate a connection failure; it is the proxy's if the proxy was not reached or made no tunnel."""
    host = route.near.host_and_port
    found = error if isinstance(error, StokerError) else translated(error, host, ExchangeStep.CONNECT)
    if route.proxy is None:
        return found
    status = _TUNNEL_STATUS.search(str(error)) if isinstance(error, OSError) else None
    if status is not None:
        return proxy_refused(int(status[1]), host)
    if route.far is not None and inner.is_past_proxy:
        return translated(error, route.far.host_and_port, ExchangeStep.CONNECT)
    return blamed_on_proxy(found, host)


class _DialledConnection:
    """Common part of connections with and without TLS: sockets that we dial, one deadline until they are connected."""

    sock: Any
    handle: socket.socket
    """The same connection under a second descriptor, used only to cut it."""
    is_past_proxy = False
    admits: Callable[[str], bool] | None = None
    sockets: tuple[str, ...] = ()
    _dialled: socket.socket | None = None
    _cord: CancelHandle
    _deadline_s: float

    @contextmanager
    def connecting(self, cord: CancelHandle, deadline_s: float) -> Iterator[None]:
        """Connect in this block, by this deadline or until it is aborted. A failure leaves nothing open."""
        self._cord = cord
        self._deadline_s = deadline_s
        try:
            yield
        except BaseException:
            self._drop()
            raise
        finally:
            if self._dialled is not None:
                cord.let_go(self.handle)

    def _drop(self) -> None:
        if self._dialled is not None:
            for sock in (self.sock, self._dialled, self.handle):
                if sock is not None:
                    sock.close()

    def _new_conn(self: Any) -> socket.socket:
        if self.sockets:
            sock = dial_local(self.sockets, named=f"{self.host}:{self.port}", cord=self._cord)
        else:
            sock = dial(self._dns_host, self.port, deadline_s=self._deadline_s, cord=self._cord, admits=self.admits)
        try:
            self.handle = sock.dup()
        except OSError:
            sock.close()
            raise
        self._dialled = sock
        self._cord.hold(self.handle)
        sock.settimeout(self._left_s())
        return sock

    def _tunnel(self: Any) -> None:
        sock = self.sock
        wire = Wire(sock, self.handle)
        wire.begin(self._cord, deadline_s=self._deadline_s)
        self.sock = _WireSocket(wire)
        try:
            super()._tunnel()  # type: ignore[misc]  # the other base class has it
        finally:
            wire.finish()
            self.sock = sock
        self.is_past_proxy = True
        sock.settimeout(self._left_s())

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _Plain(_DialledConnection, HTTPConnection):
    sock: Any


class _Secure(_DialledConnection, HTTPSConnection):
    sock: Any


class _WireSocket:
    """The wire as the socket that `http.client` expects. It may write and read a head; it does not close."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.along = b""
        """Sent together with the next head."""

    def sendall(self, data: bytes) -> None:
        along, self.along = self.along, b""
        self._wire.send(data + along if along else data)

    def makefile(self, _mode: str) -> _HeadFile:
        return _HeadFile(self._wire)

    def settimeout(self, _seconds: float | None) -> None:
        """Do nothing: the wire has a deadline."""

    def close(self) -> None:
        """Do nothing: the wire may still read a body."""


class _HeadFile:
    """The lines of one head, checked one by one before a lenient parser sees them.

    That parser would stop at a line it does not understand and lose the fields below it, and would take a head that
    was cut for a whole one; either may hide a length. Interim answers (1xx) are skipped.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._start_bytes = wire.received_bytes
        self._lines = 0

    def readline(self, limit_bytes: int) -> bytes:
        line = self._line(limit_bytes)
        self._lines += 1
        if self._lines == 1:
            return self._final_status(line, limit_bytes)
        if line not in _BLANK and not (_FIELD.fullmatch(line) or (self._lines > 2 and _FOLDED.fullmatch(line))):
            raise Malformed("a line of the head that is no field")
        return line

    def _final_status(self, line: bytes, limit_bytes: int) -> bytes:
        for _ in range(_MOST_INTERIM_ANSWERS):
            if not _STATUS.fullmatch(line):
                raise Malformed("a first line that is no status")
            if not _INTERIM.match(line):
                return line
            while line not in _BLANK:
                line = self._line(limit_bytes)
            line = self._line(limit_bytes)
        raise Malformed("interim answers without end")

    def _line(self, limit_bytes: int) -> bytes:
        line = self._wire.read_line(limit_bytes)
        if self._wire.received_bytes - self._start_bytes > _LONGEST_HEAD_BYTES:
            raise Malformed("a head without end")
        if not line.endswith(b"\n") and len(line) < limit_bytes:
            raise Ended
        return line

    def flush(self) -> None:
        """Nothing is ever written to it."""

    def close(self) -> None:
        """Nothing is held by it."""


HEAD_START_S = 0.25
"""How long an address may not respond before the next one is tried in parallel."""
_LONGEST_NAP_S = 0.1
"""How late an abort may be noticed where no socket wakes us."""
_UNDER_WAY = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR})


@frozen_by_position
class SocketAddress:
    """One resolved address, as a socket takes it."""

    family: int
    address: tuple[object, ...]


def dial(
    host: str, port: int, *, deadline_s: float, cord: CancelHandle, admits: Callable[[str], bool] | None = None
) -> socket.socket:
    """Return a connected socket. Raises `NetworkFailed`, by the first address that failed, or `Aborted`.

    With `admits` only addresses that it accepts are tried, whatever name leads there.
    """
    found = look_up(host, port, deadline_s=deadline_s, cord=cord)
    if admits is not None:
        found = [one for one in found if admits(str(one.address[0]))]
        if not found:
            raise network_failed(Reason.REFUSED, host, f"requests to the address of {host} are not allowed")
    addresses = in_turn(found)
    named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _Race(named, addresses, deadline_s, cord).run()


def dial_local(paths: tuple[str, ...], *, named: str, cord: CancelHandle) -> socket.socket:
    """Return a socket that is connected to the first of these Unix sockets at which a process of this user listens.

    Raises `NetworkFailed` if there is none, with what kept us from looking, such as a folder of another user.
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
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
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
    """Order addresses so that the families alternate, the system's favourite first."""
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
        # A definite response, unlike a name server that fails or can't be reached.
        is_unknown = isinstance(error, UnicodeError) or error.errno == socket.EAI_NONAME
        raise network_failed(Reason.DNS, host, what, hint=hint, is_unknown_name=is_unknown) from None
    return list(dict.fromkeys(SocketAddress(family, address) for family, _type, _protocol, _name, address in found))


class _Race:
    """Connection attempts to several addresses of one host, of which the first is used."""

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
    """Close a connection after so long without a packet from the other computer.

    Its system acknowledges even while its program is silent, so this distinguishes a cut link from a slow program.
    Options that a system does not have are skipped.
    """
    quarter_s = max(1, round(unheard_s / 4))
    wishes = {
        # After this silence a probe is sent, so often.
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
