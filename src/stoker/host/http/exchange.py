"""One HTTP exchange as types, the interface of a client, and URLs.

A `Transport` sends exactly one request and returns the head of the response: it follows no redirect, repeats nothing,
decodes nothing and requests the identity encoding. Redirects, retries and ranges are above it. A failure on the way is
`NetworkFailed`, an invalid response is `BadAnswer`; both carry `reason` (see `http_errors.Reason`), `host` and
`is_lasting`, which means that a retry does not help.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Protocol
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from stoker.core.errors import BadInput
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
    server_name: str = ""
    """The coordinator's host name in its certificate, if a relay has the address; empty: the address's own host."""


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


# URLs, parsed strictly: origin, path, credentials, and the part that may be shown to a person.
#
# A query may be a signature and the part before an `@` a password: `shown` leaves both out, and every message about a
# URL uses it. Names are not resolved here.


PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_HOST_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*\.?")
_LONGEST_NAME = 254
_LOOPBACK = ipaddress.IPv4Address("127.0.0.1")
# What may be in a path and query as it is; `%` too, since the address is already escaped.
_AS_IT_IS = "/?:@!$&'()*+,;=-._~%[]"


@frozen
class HttpOrigin:
    """Scope of credentials: the same scheme, host and port."""

    scheme: str
    host: str
    """Lower case, an IPv6 address without its brackets."""
    port: int

    @property
    def host_and_port(self) -> str:
        """As in a `Host` field: with the port only if it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if PORTS.get(self.scheme) == self.port else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_and_port}"


@frozen
class HttpAddress:
    """A parsed URL: origin, target and the credentials in it."""

    origin: HttpOrigin
    target: str
    """Path and query, escaped, as in a request line."""
    authorization: str = ""
    """`Authorization` made of the name and password in the URL."""

    @property
    def url(self) -> str:
        """The address without credentials and fragment."""
        return f"{self.origin}{self.target}"


@lru_cache(maxsize=64)
def read_address(url: str) -> HttpAddress:
    """Parse a URL. Raises `BadInput` for anything else."""
    parts = _split(url)
    if parts is None or parts.scheme not in PORTS:
        raise BadInput(f"not a web address: {shown(url)}", hint="it starts with https:// or http://")
    try:
        host, port = _host(parts.hostname or ""), PORTS[parts.scheme] if parts.port is None else parts.port
        if not port:
            raise ValueError("port 0")
    except ValueError as error:
        raise BadInput(f"not a web address: {shown(url)} ({error})", hint="check its host and port") from None
    target = quote(parts.path or "/", safe=_AS_IT_IS) + (
        f"?{quote(parts.query, safe=_AS_IT_IS)}" if parts.query else ""
    )
    origin = HttpOrigin(scheme=parts.scheme, host=host, port=port)
    return HttpAddress(origin=origin, target=target, authorization=_basic(parts))


def asked_directly(url: str) -> tuple[str, ...]:
    """Return a URL's host if it is reached without a proxy: this computer, or one of its own network.

    A name of one word, and one that ends in `.local`, is known on that network alone.
    """
    host = read_address(url).origin.host
    bare = host.rstrip(".")
    is_near = is_inner(host) or bare.endswith(".local") or not ("." in bare or ":" in bare)
    return (host,) if is_near else ()


def origin(url: str) -> HttpOrigin:
    """Return the origin of a URL."""
    return read_address(url).origin


def shown(url: str) -> str:
    """Return a URL as a message may show it: no query, no credentials, no fragment, nothing unprintable."""
    bare = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, separator, rest = bare.partition("://") if "://" in bare else ("", "", bare)
    authority, slash, path = rest.partition("/")
    if not re.fullmatch(r"(?:.*@)?(?:\[[^@\]]*\]|[^@:]*)(?::[0-9]*)?", authority, re.DOTALL):
        # A password with a slash in it: the apparent path belongs to it.
        authority, slash, path = rest, "", ""
    text = f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def joined(base: str, location: str) -> str:
    """Return the URL that a `Location` refers to, relative to the requested one. The fragment is dropped.

    Servers write bytes there that they ought to escape; those are escaped here.
    """
    return urljoin(base, quote(location.encode("latin-1", "replace"), safe=_AS_IT_IS + "#")).partition("#")[0]


def is_inner(host: str) -> bool:
    """Return True if a host is this computer or one of a private network, by its text alone.

    Addresses count (in every form that the system's resolver takes, `127.1` too) and the names of this computer; any
    other name is taken for a public one and not looked up.
    """
    address = _meant(host)
    return address is not None and not address.is_global


def is_this_computer(host: str) -> bool:
    """Return True if a host, in any notation, can only be this computer itself."""
    address = _meant(host)
    return address is not None and address.is_loopback


def is_literal(host: str) -> bool:
    """Return True if a host is an IP address."""
    return _literal(host) is not None


def _meant(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host's text is; nothing for a name that has to be resolved."""
    bare = host.rstrip(".")
    address = _LOOPBACK if bare == "localhost" or bare.endswith(".localhost") else _literal(host)
    return getattr(address, "ipv4_mapped", None) or address


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    if not re.fullmatch(r"[0-9a-fx.]+", host):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _split(url: str) -> SplitResult | None:
    # The standard library drops line ends and tabs silently: an address with one is refused instead.
    if _CONTROL.search(url):
        return None
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _host(host: str) -> str:
    if ":" in host:
        return str(ipaddress.IPv6Address(host))
    try:
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("host can't be written in ASCII") from None
    if len(ascii_host) > _LONGEST_NAME or not _HOST_NAME.fullmatch(ascii_host):
        raise ValueError("no valid host")
    return ascii_host


def _basic(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(credentials.encode()).decode("ascii")
