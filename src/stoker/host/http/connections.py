"""Connections as urllib3 makes them, over sockets that are ours: the only module that imports it.

urllib3 speaks to proxies, sets up TLS, writes requests and reads heads. What it must not decide is ours: how addresses
are tried, how long anything may take, and the body. `http.client` below it is handed a socket and a file of our own,
so that a deadline holds for the head as a whole and nothing is closed or read ahead behind our back.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.exceptions import HTTPError
from urllib3.util import Url

from stoker.core.errors import LocalFile, NetworkFailed, StokerError
from stoker.host.http.body import HttpResponseHead
from stoker.host.http.dial import dial, dial_local, expect_life
from stoker.host.http.exchange import BodySource, Headers
from stoker.host.http.http_errors import (
    TROUBLE,
    Aborted,
    Ended,
    ExchangeStep,
    Malformed,
    blamed_on_proxy,
    proxy_refused,
    translated,
)
from stoker.host.http.http_routes import Route
from stoker.host.http.streams import CancelHandle, IdleState, Stream, Wire

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

    It ends when nothing was heard of the other computer for `unheard_s`, if that is told.
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
        """What it was checked by, and shown."""
        self.idle_since_s = 0.0
        self.wire = Wire(_strict_about_ends(inner.sock), inner.handle)
        self._inner = inner
        self._lent = _Lent(self.wire)
        self._inner.sock = cast(Any, self._lent)
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
        """Send a request and read the head of its answer, within the wire's deadline.

        A body may take as long as it takes, as long as each piece of it goes out within `head_s`; the answer has that
        long from then on.
        """
        self._heard_bytes = self.wire.received_bytes
        pieces = _pieces(body)
        # The first piece goes out together with the head, most often all there is: one packet instead of two.
        self._lent.along = next(pieces, b"")
        is_whole = False
        # A server may have answered, with a refusal for instance, before it closed: then there is an answer to read.
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
        # Only the head was wanted of it; closing tells `http.client` that the next request may come.
        response.close()
        return head

    def _send_rest(self, pieces: Iterator[bytes], head_s: float) -> bool:
        """Send what is left of a body; false where the server answers before it has all of it, and need not have it."""
        for piece in pieces:
            if self.wire.look() is IdleState.SPEAKS:
                return False
            self.wire.expect_by(time.monotonic() + head_s)
            self.wire.send(piece)
            self.wire.expect_by(time.monotonic() + head_s)
        return True

    @property
    def has_heard(self) -> bool:
        """Whether any byte came since the last request."""
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
        raise LocalFile("what was being sent changed its size meanwhile", hint="send it again once it stands still")


def _inner(route: Route, trust: ssl.SSLContext | None) -> _Plain | _Secure:
    near, proxy = route.near, route.proxy
    options: dict[str, Any] = {}
    if proxy is not None:
        options["proxy"] = Url(scheme=near.scheme, host=near.host, port=near.port)
        options["proxy_config"] = ProxyConfig(trust, False, None, None)
    if not route.is_secure:
        return _Plain(near.host, near.port, **options)
    if trust is not None and not trust.check_hostname:
        # Whoever made it so looks in another way whom it speaks to.
        options["assert_hostname"] = False
    inner = _Secure(near.host, near.port, ssl_context=trust, **options)
    if route.far is not None and proxy is not None:
        credentials = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
        inner.set_tunnel(route.far.host, route.far.port, headers=credentials, scheme=near.scheme)
    return inner


def _strict_about_ends(stream: Any) -> Stream:
    # A TLS stream that just ends was cut: without this, `ssl` would call it a regular end.
    if hasattr(stream, "suppress_ragged_eofs"):
        stream.suppress_ragged_eofs = False
    return cast(Stream, stream)


def _failure(error: Exception, inner: _Plain | _Secure, route: Route) -> StokerError:
    """Translate a failure to connect; it is the proxy's where the proxy was not reached or did not make the tunnel."""
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


class _Ours:
    """What is the same for connections with and without TLS: sockets dialled by us, one deadline until they stand."""

    sock: Any
    handle: socket.socket
    """The same connection under a descriptor that nobody reads from, to cut it by."""
    is_past_proxy = False
    admits: Callable[[str], bool] | None = None
    sockets: tuple[str, ...] = ()
    _dialled: socket.socket | None = None
    _cord: CancelHandle
    _deadline_s: float

    @contextmanager
    def connecting(self, cord: CancelHandle, deadline_s: float) -> Iterator[None]:
        """Connect in this block, by this deadline or until the cord is pulled. A failure leaves nothing open."""
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
        self.sock = _Lent(wire)
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


class _Plain(_Ours, HTTPConnection):
    sock: Any


class _Secure(_Ours, HTTPSConnection):
    sock: Any


class _Lent:
    """The wire as the socket that `http.client` knows. It may write and read a head; closing is not its business."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.along = b""
        """What goes out with the head that is written next."""

    def sendall(self, data: bytes) -> None:
        along, self.along = self.along, b""
        self._wire.send(data + along if along else data)

    def makefile(self, _mode: str) -> _HeadFile:
        return _HeadFile(self._wire)

    def settimeout(self, _seconds: float | None) -> None:
        """Leave it to the wire, which has a deadline."""

    def close(self) -> None:
        """Leave it to the wire, which may have a body to bring."""


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
