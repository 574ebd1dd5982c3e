"""One HTTP exchange as types, and the interface of a client.

A `Transport` sends exactly one request and returns the head of the response: it follows no redirect, repeats nothing,
decodes nothing and requests the identity encoding. Redirects, retries and ranges are above it. A failure on the way is
`NetworkFailed`, an invalid response is `BadAnswer`; both carry `reason` (see `http_errors.Reason`), `host` and
`is_lasting`, which means that a retry does not help.
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
    """A body that is too large to hold, or is in a file. The same bytes each time."""

    @property
    def length_bytes(self) -> int: ...

    def pieces(self) -> Iterator[bytes]:
        """Return all of it from the start, in pieces of at most a few hundred kilobytes."""


@frozen
class Request:
    """One request. The client adds only what the protocol needs: Host, the body's length, no encoding."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str]
    body: bytes | BodySource | None = None
    is_repeatable: bool = False
    """Idempotent. Then it is sent again if a kept connection turns out to be closed."""
    head_s: float | None = None
    """Timeout of the response's head once the request is sent (default: the client's settings)."""
    read_s: float | None = None
    """Stall timeout of the response's body."""


class HttpClientResponse(Protocol):
    """The head of a response, and its body to be read once. Caller closes."""

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
        """Release the connection: kept for the next request if the body was read to its end, otherwise cut."""

    def abort(self) -> None:
        """Cut the connection now, so that a blocked `read` in another thread fails at once (`aborted`).

        Safe in a signal handler; later reads fail too.
        """


class Transport(Protocol):
    """Sends requests. Thread-safe."""

    def send(self, request: Request) -> HttpClientResponse:
        """Send one request and wait for the head of its response."""

    def abort(self) -> None:
        """Cut all exchanges, in every thread, and refuse later ones.

        Safe in a signal handler.
        """

    def close(self) -> None:
        """Close every idle connection."""


# How this computer reaches others: timeouts, proxies, certificates, user agent.


@frozen
class FleetIdentity:
    """Trust and identity of a member of a fleet. No other certificates are accepted."""

    ca_file: str = ""
    """The fleet's own CA, in PEM: only certificates that it signed are accepted."""
    ca_pem: str = ""
    """The same as a text, before there is a file; it takes precedence."""
    certificate_file: str = ""
    """Our certificate and its key, in one PEM file, so that both are replaced in one step; empty: none."""
    sockets: tuple[str, ...] = ()
    """Unix sockets of a coordinator on this machine. All requests go to the first that a process of this user listens
    at, without TLS, whatever the address is; never to a TCP port. Empty: the address is used.
    """
    machine: str = ""
    """The one machine to accept, whatever its address is; empty: the coordinator, by its host name."""


@frozen
class HttpSettings:
    """All settings of a transport."""

    connect_s: float = 15.0
    """Until a request can be sent: name, connection, proxy, TLS."""
    head_s: float = 60.0
    """From the request to the last line of the response's head, however slowly it comes."""
    read_s: float = 30.0
    """Without any byte of the body."""
    unheard_s: float | None = None
    """Without a packet from the other computer, which acknowledges even while its program is silent: then the
    connection is cut (default: the system's, 15 minutes and more).
    """
    proxies: Mapping[str, str] = fresh(factory=dict)
    """Scheme (or `all`) → the proxy's address, which may contain credentials."""
    no_proxy: tuple[str, ...] = ()
    """Hosts, domains, addresses and networks that are reached directly; `*` is all."""
    ca_file: str = ""
    """Certificates to trust beside the system's, all in one file."""
    ca_path: str = ""
    """The same as a folder of hashed names."""
    fleet: FleetIdentity | None = None
    """Trust a fleet's CA and nothing else: neither the system's certificates nor those above."""
    user_agent: str = "stoker"
    idle_connections: int = 16
    """Maximum number of idle connections per host."""


def read_http_settings(environment: Mapping[str, str], *, user_agent: str = "stoker") -> HttpSettings:
    """Read proxies and certificates from the environment. The lower-case spelling of a variable wins, as with curl.

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
