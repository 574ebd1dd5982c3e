"""URLs, parsed strictly: origin, path, credentials, and the part that may be shown to a person.

A query may be a signature and the part before an `@` a password: `shown` leaves both out, and every message about a URL
uses it. Names are not resolved here.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import socket
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen

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
