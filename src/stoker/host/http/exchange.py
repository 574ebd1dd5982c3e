"""One HTTP exchange as nouns, and the seam behind which a client speaks it.

A `Transport` sends exactly one request and gives the head of the answer: it follows no redirect, repeats nothing,
decodes nothing and asks for the identity encoding. Whoever wants more (redirects, attempts, ranges) decides so above
it. What breaks on the way is `NetworkFailed`, what no server may answer is `BadAnswer`; both carry `reason` (see
`host.http.failures.Reason`), `host` and `is_lasting`, which says that trying again is no use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from stoker.core.frozen import fresh, frozen


class Headers:
    """Header fields by name in any case, every value kept in order: a field given twice must not go unnoticed."""

    __slots__ = ("_values",)

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name.lower(), []).append(value)

    def get(self, name: str) -> str | None:
        """Return the first value of a field, or nothing."""
        values = self._values.get(name.lower())
        return values[0] if values else None

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def all(self, name: str) -> tuple[str, ...]:
        """Return every value of a field."""
        return tuple(self._values.get(name.lower(), ()))


class BodySource(Protocol):
    """A body that is too large to hold, or lies in a file. The same bytes each time it is asked for."""

    @property
    def length_bytes(self) -> int: ...

    def pieces(self) -> Iterator[bytes]:
        """Return all of it from the beginning, in pieces of at most a few hundred kilobytes."""


@frozen
class Request:
    """What to ask of whom. The client adds only what the protocol needs: Host, the body's length, no encoding."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str]
    body: bytes | BodySource | None = None
    is_repeatable: bool = False
    """Sent twice, it does what it does once. Then it is sent again where a kept connection turns out to have ended."""
    head_s: float | None = None
    """How long the head of the answer may take once the request is sent; nothing: as the client's settings say."""
    read_s: float | None = None
    """How long the answer's body may be silent."""


class HttpClientResponse(Protocol):
    """The head of an answer, and its body to be read once. Close it, whatever happened."""

    @property
    def url(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes, nothing at the end. A body shorter than announced is `NetworkFailed`, never an end.

        Waits for the first byte and then takes what comes within a moment: large pieces on a fast line, and never
        silence for longer than that while bytes trickle in.
        """

    def close(self) -> None:
        """Let go of the connection: kept for the next request if the body was read to its end, else cut."""

    def abort(self) -> None:
        """Cut the connection now, so that a `read` that waits in another thread fails at once (`aborted`).

        Safe in a signal handler; later reads fail too.
        """


class Transport(Protocol):
    """Where requests go. Safe to use from several threads."""

    def send(self, request: Request) -> HttpClientResponse:
        """Send one request and wait for the head of its answer."""

    def abort(self) -> None:
        """Cut everything that is under way, in whatever thread, and refuse what is sent later: nobody slips through.

        Safe in a signal handler.
        """

    def close(self) -> None:
        """Close every connection that is kept."""


# How this computer reaches others: timeouts, proxies, certificates, and what to be called.


@frozen
class FleetIdentity:
    """Whom a member of a fleet trusts there, and as whom it speaks. Nobody else's certificate counts."""

    ca_file: str = ""
    """The fleet's own CA, in PEM: only what it signed is believed."""
    ca_pem: str = ""
    """The same as a text, before there is a file; it wins."""
    certificate_file: str = ""
    """Our certificate and its key, in one file of PEM, so that both are replaced in one step; empty: we show none."""
    sockets: tuple[str, ...] = ()
    """Unix sockets of a coordinator on this machine. All requests go to the first that a process of this user listens
    at, without TLS, whatever the address says; never to a TCP port. None: the address is connected to.
    """
    machine: str = ""
    """The one machine that is meant, whatever its address is called; empty: the coordinator, under its host's name."""


@frozen
class HttpSettings:
    """All that a transport is told."""

    connect_s: float = 15.0
    """For everything until a request can be sent: name, connection, proxy, TLS."""
    head_s: float = 60.0
    """From the request to the last line of the answer's head, however it trickles in."""
    read_s: float = 30.0
    """Without any byte of the body."""
    unheard_s: float | None = None
    """Without a sign of life from the other computer itself, which gives one even while its program is silent: then
    the connection is cut. Nothing: as the system has it, which is a quarter of an hour and more.
    """
    proxies: Mapping[str, str] = fresh(factory=dict)
    """Scheme (or `all`) to the proxy's address; credentials may stand in it."""
    no_proxy: tuple[str, ...] = ()
    """Hosts, domains, addresses and networks that are asked directly; `*` is every one."""
    ca_file: str = ""
    """Certificates to trust beside the system's, all in one file."""
    ca_path: str = ""
    """The same as a folder of hashed names."""
    fleet: FleetIdentity | None = None
    """Trust a fleet's CA and nothing else: neither the system's certificates nor those above."""
    user_agent: str = "stoker"
    idle_connections: int = 16
    """How many are kept open for each host."""


def read_http_settings(environment: Mapping[str, str], *, user_agent: str = "stoker") -> HttpSettings:
    """Read proxies and certificates from the environment. The small spelling of a variable wins, as with curl.

    `HTTP_PROXY` counts only where no `REQUEST_METHOD` is set: a web server puts a visitor's `Proxy:` header there.
    """
    proxies = {}
    for scheme in ("http", "https", "all"):
        proxy = environment.get(f"{scheme}_proxy", "")
        if not proxy and not (scheme == "http" and "REQUEST_METHOD" in environment):
            proxy = environment.get(f"{scheme.upper()}_PROXY", "")
        if proxy.strip():
            proxies[scheme] = proxy.strip()
    no_proxy = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    ca_file = next((environment[name] for name in _CA_FILES if environment.get(name)), "")
    return HttpSettings(
        proxies=proxies,
        no_proxy=tuple(entry for entry in no_proxy.replace(",", " ").lower().split()),
        ca_file=ca_file,
        ca_path=environment.get("SSL_CERT_DIR", ""),
        user_agent=user_agent,
    )


_CA_FILES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
