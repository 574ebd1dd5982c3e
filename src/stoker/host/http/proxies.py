"""Who stands between us and a server: decided from the settings, by the rules that curl and Python made usual."""

from __future__ import annotations

import ipaddress

from stoker.host.http.addresses import Origin, read_address, shown
from stoker.host.http.settings import HttpSettings
from stoker.model.errors import BadInput
from stoker.model.frozen import frozen


@frozen
class Proxy:
    """Somebody who passes our requests on."""

    origin: Origin
    authorization: str = ""
    """Its `Proxy-Authorization`, from the name and password in its address."""


def proxy_for(origin: Origin, settings: HttpSettings) -> Proxy | None:
    """Decide through whom a host is asked; nothing means directly. Raises `BadInput` for a proxy we can't speak to."""
    said = settings.proxies.get(origin.scheme) or settings.proxies.get("all")
    if not said or any(_covers(entry, origin) for entry in settings.no_proxy):
        return None
    url = said if "://" in said else f"http://{said}"
    try:
        address = read_address(url)
    except BadInput:
        hint = "a proxy's address looks like http://proxy.example.org:3128; SOCKS is not supported"
        raise BadInput(f"not the address of an HTTP proxy: {shown(url)}", hint=hint) from None
    return Proxy(origin=address.origin, authorization=address.authorization)


def _covers(entry: str, origin: Origin) -> bool:
    """Whether an entry of NO_PROXY means this host: `*`, a name and all below it, an address, a network."""
    if entry == "*":
        return True
    name, port = _with_port(entry)
    if port is not None and port != origin.port:
        return False
    host = origin.host.rstrip(".")
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except (ValueError, TypeError):
        pass
    name = name.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _with_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        return name, int(port[1:]) if port[1:].isdecimal() else None
    name, colon, port = entry.rpartition(":")
    return (name, int(port)) if colon and port.isdecimal() and ":" not in name else (entry, None)
