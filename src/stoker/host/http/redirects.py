"""Redirects, followed by hand: what a server may send us to, and what it may take along.

At most ten hops. A hop to another scheme, host or port loses everything that is not plain content negotiation:
credentials, cookies, headers of the caller's own; a way back does not bring them back. Refused are: a hop from https
to http, an address with credentials in it, a way in circles, and a hop from a public host to this computer or a
private network. That last rule goes by how a host is written (addresses, `localhost`): names are not looked up, so it
keeps careless redirects out, not a hostile name server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.core.errors import BadAnswer, BadInput
from stoker.core.frozen import changed, frozen
from stoker.host.http.addresses import is_inner, joined, read_address, shown
from stoker.host.http.exchange import Headers, HttpClientResponse, Request, Transport
from stoker.host.http.http_errors import Reason, bad_answer

MOST_HOPS = 10
_STATUSES = frozenset({301, 302, 303, 307, 308})
# What says which bytes are wanted, and nothing of who wants them.
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
    """One redirect, found to be a permitted one."""

    status: int
    from_url: str
    to_url: str
    """Absolute, without fragment."""
    headers: Headers
    """Of the answer that redirects."""
    changes_origin: bool
    """Whether scheme, host or port become others."""


@frozen
class RedirectResult:
    """Where redirects led."""

    reply: HttpClientResponse
    """The last answer; to be closed by whoever asked."""
    hops: tuple[Hop, ...] = ()
    """The redirects on the way to it, all answered and closed."""
    stopped_at: Hop | None = None
    """The redirect that `reply` is, where the caller chose not to take it."""


def at_another_origin(hop: Hop) -> bool:
    """Stop before a hop to somebody else: a hub says what it knows of a file in the answer that leads away from it."""
    return hop.changes_origin


def nowhere(_hop: Hop) -> bool:
    """Take every permitted hop."""
    return False


def follow(
    transport: Transport, request: Request, *, at_most: int = MOST_HOPS, stops_at: Callable[[Hop], bool] = nowhere
) -> RedirectResult:
    """Send a request and follow where its answers lead. Raises `BadAnswer` for a redirect that is refused.

    A redirect for which `stops_at` says so is not taken but given back as the reply; it has been checked like others.
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
        raise _refused(from_url, "it does not say where to")
    if len(set(locations)) > 1:
        raise _refused(from_url, "it says two places at once")
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
