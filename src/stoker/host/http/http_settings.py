"""How this computer reaches others: patience, proxies, whom to trust, and what to be called.

`read_http_settings` is pure: it is handed the environment and reads the variables that curl and others made usual.
"""

from __future__ import annotations

from collections.abc import Mapping

from stoker.core.frozen import fresh, frozen


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
