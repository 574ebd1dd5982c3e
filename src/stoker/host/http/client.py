"""The transport on urllib3: connections are kept and shared between threads; redirects and retries are the caller's.

urllib3 is imported with the first request, not with this module.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from stoker.core.errors import BadAnswer, BadInput, NetworkFailed
from stoker.core.frozen import changed, frozen
from stoker.host.http.exchange import (
    BodySource,
    Headers,
    HttpAddress,
    HttpClientResponse,
    HttpSettings,
    Request,
    Transport,
    is_inner,
    joined,
    read_address,
    shown,
)
from stoker.host.http.http_errors import (
    Aborted,
    ExchangeStep,
    Malformed,
    Reason,
    bad_answer,
    proxy_refused,
    translating,
)
from stoker.host.http.http_routes import Route, Trust, proxy_for, route_to
from stoker.host.http.streams import CancelHandle, IdleState, WireResponse, framing
from stoker.host.tls_contexts import unproven_context

if TYPE_CHECKING:
    from stoker.host.http.connections import HttpConnection


LONGEST_IDLE_S = 50.0
"""Many servers and middleboxes drop an idle connection after a minute, and not all of them close it."""


class IdleConnections:
    """A limited number of idle connections per route; the one used last is used first. Thread-safe."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._lock = threading.Lock()
        self._by_route: dict[Route, list[HttpConnection]] = {}
        self._is_closed = False

    def take(self, route: Route, trust: ssl.SSLContext | None) -> HttpConnection | None:
        """Return a connection that is still open, as far as visible from here, and was made under the same trust."""
        while True:
            with self._lock:
                waiting = self._by_route.get(route)
                connection = waiting.pop() if waiting else None
            if connection is None:
                return None
            is_fresh = connection.trust is trust and time.monotonic() - connection.idle_since_s < LONGEST_IDLE_S
            # One with unexpected data is as useless as a closed one: the data would be taken for the next response.
            if is_fresh and connection.wire.look() is IdleState.QUIET:
                return connection
            connection.close()

    def put(self, connection: HttpConnection) -> None:
        """Keep a connection, or close it if enough are kept."""
        connection.idle_since_s = time.monotonic()
        with self._lock:
            waiting = self._by_route.setdefault(connection.route, [])
            is_kept = not self._is_closed and len(waiting) < self._at_most
            if is_kept:
                waiting.append(connection)
        if not is_kept:
            connection.close()

    def close(self) -> None:
        """Close all of them, and those that come back later."""
        with self._lock:
            self._is_closed = True
            kept = [connection for waiting in self._by_route.values() for connection in waiting]
            self._by_route.clear()
        for connection in kept:
            connection.close()


_REPEATABLE = frozenset({"GET", "HEAD"})
_STALE = frozenset({Reason.CLOSED_EARLY, Reason.RESET})


class Urllib3Transport:
    """A `Transport` over TCP, TLS and Unix sockets. Make one for a process, close it at the end."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._idle = IdleConnections(settings.idle_connections)
        self._under_way: set[CancelHandle] = set()
        self._is_aborted = False
        self._trust = Trust(settings)
        self._reached: set[str] = set()
        """The servers to which a connection was made."""

    def outside_fleet(self) -> Urllib3Transport:
        """Return a transport with the same settings for servers that are not of the fleet. Caller closes."""
        return Urllib3Transport(changed(self._settings, fleet=None))

    def send(self, request: Request) -> HttpClientResponse:
        address = read_address(request.url)
        route = self._route(address)
        question = _Question(
            method=request.method,
            address=address,
            headers=self._headers(request, address, route),
            body=request.body,
            is_repeatable=request.is_repeatable or request.method in _REPEATABLE,
            head_s=self._settings.head_s if request.head_s is None else request.head_s,
            read_s=self._settings.read_s if request.read_s is None else request.read_s,
        )
        cord = CancelHandle()
        self._under_way.add(cord)
        try:
            with translating(address.origin.host_and_port, ExchangeStep.HEAD):
                # Register first, check second: an abort either finds the handle or is seen here.
                if self._is_aborted:
                    raise Aborted
                return self._ask_on_any(route, question, cord)
        except BaseException:
            self._under_way.discard(cord)
            raise

    def abort(self) -> None:
        self._is_aborted = True
        for cord in self._under_way.copy():
            cord.pull()

    def close(self) -> None:
        self._idle.close()

    def _route(self, address: HttpAddress) -> Route:
        fleet = self._settings.fleet
        if fleet is not None and fleet.sockets:
            return Route(near=address.origin, sockets=fleet.sockets)
        return route_to(address.origin, proxy_for(address.origin, self._settings))

    def _ask_on_any(self, route: Route, question: _Question, cord: CancelHandle) -> HttpClientResponse:
        trusted = self._trusted() if route.is_secure else None
        kept = self._idle.take(route, trusted)
        if kept is not None:
            try:
                return self._ask(kept, question, cord)
            except NetworkFailed as error:
                # The server closed it while our request was on its way: not a failure, and there was no response.
                is_stale = error.data["reason"] in _STALE and not kept.has_heard
                if not (is_stale and question.is_repeatable):
                    raise
        return self._ask(self._connect(route, cord, trusted), question, cord)

    def _connect(self, route: Route, cord: CancelHandle, trusted: ssl.SSLContext | None) -> HttpConnection:
        from stoker.host.http.connections import connect  # noqa: PLC0415 - urllib3 costs a tenth of a second

        settings, host = self._settings, route.near.host
        connect_s, unheard_s = settings.connect_s, settings.unheard_s
        try:
            made = connect(route, cord=cord, connect_s=connect_s, trust=trusted, unheard_s=unheard_s)
        except NetworkFailed as error:
            if host in self._reached and "is_unknown_name" in error.data:
                # The name is valid: this failure is temporary.
                error.data["is_unknown_name"] = False
            raise
        self._reached.add(host)
        return made

    def _ask(self, connection: HttpConnection, question: _Question, cord: CancelHandle) -> WireResponse:
        address, wire, is_forwarded = question.address, connection.wire, connection.route.is_forwarded
        try:
            with translating(address.origin.host_and_port, ExchangeStep.HEAD):
                wire.begin(cord, deadline_s=time.monotonic() + question.head_s)
                target = address.url if is_forwarded else address.target
                head = connection.ask(
                    question.method, target, question.headers, body=question.body, head_s=question.head_s
                )
                if head.status == 101:
                    raise Malformed("an unexpected switch of the protocol")
                if head.status == 407 and is_forwarded:
                    raise proxy_refused(head.status, connection.route.near.host_and_port)
                frame = framing(question.method, head.status, head.headers)
                wire.expect_body(question.read_s)
                give_back = partial(self._take_back, connection, cord)
                return WireResponse(address, head, frame, wire=wire, cord=cord, give_back=give_back)
        except BaseException:
            connection.close()
            raise

    def _take_back(self, connection: HttpConnection, cord: CancelHandle, *, is_usable: bool) -> None:
        self._under_way.discard(cord)
        connection.wire.finish()
        if is_usable:
            self._idle.put(connection)
        else:
            connection.close()

    def _trusted(self) -> ssl.SSLContext:
        return self._trust.context()

    def _headers(self, request: Request, address: HttpAddress, route: Route) -> dict[str, str]:
        headers = {"User-Agent": self._settings.user_agent}
        if address.authorization:
            headers["Authorization"] = address.authorization
        headers |= {name.title(): value for name, value in request.headers.items()}
        headers |= {"Host": address.origin.host_and_port, "Accept-Encoding": "identity"}
        if request.body is not None:
            length = len(request.body) if isinstance(request.body, bytes) else request.body.length_bytes
            headers["Content-Length"] = str(length)
        if route.is_forwarded and route.proxy is not None and route.proxy.authorization:
            headers["Proxy-Authorization"] = route.proxy.authorization
        for name, value in headers.items():
            # `http.client` would refuse it too, and quote the value, which may be a token.
            if not (name + value).isascii() or not (name + value).isprintable():
                hint = "a token with a line end in its file or variable looks like that"
                raise BadInput(f"the request header {name!a} contains a control or non-ASCII character", hint=hint)
        return headers


@frozen
class _Question:
    """A request with everything that is sent."""

    method: str
    address: HttpAddress
    headers: dict[str, str]
    body: bytes | BodySource | None
    is_repeatable: bool
    head_s: float
    read_s: float


_MOST_BYTES = 64 * 1024


@frozen
class UnverifiedResponse:
    """An unverified response."""

    status: int
    data: bytes
    headers: Headers


def ask_unproven(url: str, body: bytes, *, settings: HttpSettings, headers: dict[str, str]) -> UnverifiedResponse:
    """Post a JSON body over TLS without verification, and return the response. Raises `NetworkFailed`.

    The response must carry its own proof, and the request must hold no secret: an attacker in between reads the one and
    may write the other. No setting and no variable leads here, and nothing else can be sent this way.
    """
    if not url.startswith("https://"):
        raise BadInput("a fleet is joined over TLS alone", hint="name the host: CODE@HOST")
    transport = _Unproven(changed(settings, fleet=None))
    try:
        request = Request(
            url=url,
            method="POST",
            headers={**headers, "Content-Type": "application/json"},
            body=body,
            is_repeatable=True,
        )
        with closing(transport.send(request)) as reply:
            data = bytearray()
            while len(data) <= _MOST_BYTES and (piece := reply.read(_MOST_BYTES)):
                data += piece
            # A longer body is no response of a coordinator, and would be cut off.
            return UnverifiedResponse(status=reply.status, data=bytes(data[:_MOST_BYTES]), headers=reply.headers)
    finally:
        transport.close()


class _Unproven(Urllib3Transport):
    def _trusted(self) -> ssl.SSLContext:
        return unproven_context()


# Redirects: where a server may send us, and what it may take along.

MOST_HOPS = 10
_STATUSES = frozenset({301, 302, 303, 307, 308})
# Headers about the requested bytes, and nothing about the requester.
_FOR_ANYBODY = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "pragma",
        "range",
        "user-agent",
    }
)


@frozen
class Hop:
    """One permitted redirect."""

    status: int
    from_url: str
    to_url: str
    """Absolute, without fragment."""
    headers: Headers
    """Of the response that redirects."""
    changes_origin: bool
    """True if scheme, host or port change."""


@frozen
class RedirectResult:
    """Where redirects led."""

    reply: HttpClientResponse
    """The last response; the caller closes it."""
    hops: tuple[Hop, ...] = ()
    """The redirects on the way to it, all closed."""
    stopped_at: Hop | None = None
    """The redirect that `reply` is, where the caller chose not to take it."""


def at_another_origin(hop: Hop) -> bool:
    """Stop before a hop to another origin: a hub describes a file in the response that leads away from it."""
    return hop.changes_origin


def nowhere(_hop: Hop) -> bool:
    """Take every permitted hop."""
    return False


def follow(
    transport: Transport, request: Request, *, at_most: int = MOST_HOPS, stops_at: Callable[[Hop], bool] = nowhere
) -> RedirectResult:
    """Send a request and follow its redirects. Raises `BadAnswer` for a redirect that is refused.

    A redirect for which `stops_at` is true is returned as the reply; it was checked like the others.
    """
    request = _without_credentials_in_the_address(request)
    first_host = read_address(request.url).origin.host
    hops: list[Hop] = []
    while True:
        reply = transport.send(request)
        if reply.status not in _STATUSES:
            return RedirectResult(reply=reply, hops=tuple(hops))
        try:
            hop = _hop(request.url, reply, first_host)
            if stops_at(hop):
                return RedirectResult(reply=reply, hops=tuple(hops), stopped_at=hop)
            _check_way((*hops, hop), at_most)
        except BaseException:
            reply.close()
            raise
        reply.close()
        hops.append(hop)
        headers = _for_anybody(request.headers) if hop.changes_origin else request.headers
        request = changed(request, url=hop.to_url, headers=headers)


def _hop(from_url: str, reply: HttpClientResponse, first_host: str) -> Hop:
    here = read_address(from_url).origin
    locations = reply.headers.all("location")
    if not locations:
        raise _refused(from_url, "it has no location")
    if len(set(locations)) > 1:
        raise _refused(from_url, "it has two locations")
    try:
        address = read_address(joined(from_url, locations[0].strip()))
    except (BadInput, ValueError):
        raise _refused(from_url, f"{shown(locations[0])} is no web address") from None
    there = address.origin
    if address.authorization:
        raise _refused(from_url, f"it puts credentials into the address of {there.host_and_port}")
    if here.scheme == "https" and there.scheme == "http":
        raise _refused(from_url, f"it leads from https to http ({there.host_and_port})")
    if is_inner(there.host) and not is_inner(first_host):
        raise _refused(from_url, f"it leads from a public host into a private network ({there.host_and_port})")
    return Hop(
        status=reply.status,
        from_url=from_url,
        to_url=address.url,
        headers=reply.headers,
        changes_origin=there != here,
    )


def _check_way(hops: tuple[Hop, ...], at_most: int) -> None:
    last = hops[-1]
    if any(last.to_url == hop.from_url for hop in hops):
        raise _refused(last.from_url, f"it leads in a circle, back to {shown(last.to_url)}")
    if len(hops) > at_most:
        raise _refused(last.from_url, f"it is the {at_most + 1}th in a row")


def _refused(from_url: str, why: str) -> BadAnswer:
    host = read_address(from_url).origin.host_and_port
    what = f"a redirect of {shown(from_url)} is refused: {why}"
    return bad_answer(host, what, reason=Reason.REDIRECT, is_lasting=True)


def _without_credentials_in_the_address(request: Request) -> Request:
    address = read_address(request.url)
    headers = dict(request.headers)
    if address.authorization and not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = address.authorization
    return changed(request, url=address.url, headers=headers)


def _for_anybody(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in _FOR_ANYBODY}


class OutwardTransport(Urllib3Transport):
    """Sends messages to URLs given from outside, if `admits` accepts the address, each on its own connection.

    No redirects, no proxy; nothing is read but the status of the response.
    """

    def __init__(self, settings: HttpSettings, admits: Callable[[str], bool]) -> None:
        super().__init__(changed(settings, proxies={}, fleet=None, idle_connections=0))
        self._admits = admits

    def post(self, url: str, body: bytes, headers: dict[str, str], *, content_type: str = "application/json") -> int:
        """Post a body and return the status of the response. Raises `NetworkFailed`, `BadAnswer` or `BadInput`."""
        reply = self.send(Request(url=url, method="POST", headers={**headers, "Content-Type": content_type}, body=body))
        try:
            return reply.status
        finally:
            reply.close()

    def _connect(self, route: Route, cord: CancelHandle, trusted: ssl.SSLContext | None) -> HttpConnection:
        from stoker.host.http.connections import connect  # noqa: PLC0415 - urllib3 costs a tenth of a second

        return connect(route, cord=cord, connect_s=self._settings.connect_s, trust=trusted, admits=self._admits)
