"""By which names and addresses others may reach this computer, as far as it knows itself."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress

_LOCAL_IPV4 = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_LOOPBACK = ("127.0.0.1", "::1")


def own_names() -> tuple[str, ...]:
    """Return this computer's names and addresses, loopback's among them."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    names = ("localhost", name, short, f"{short}.local")
    return tuple(dict.fromkeys((*filter(_is_host_name, names), *_LOOPBACK, *own_addresses())))


def own_addresses() -> tuple[str, ...]:
    """Return the addresses of this computer's network devices, but loopback's and those that hold on one cable only."""
    found = [*_ipv4_of_kernel(), *_ipv6_of_kernel()]
    if not found:
        with suppress(OSError):
            found = [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    return tuple(dict.fromkeys(text for text in found if _is_reachable(text)))


def _ipv4_of_kernel() -> list[str]:
    try:
        with open("/proc/net/fib_trie", encoding="ascii") as table:
            return _LOCAL_IPV4.findall(table.read())
    except OSError:
        return []


def _ipv6_of_kernel() -> list[str]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            return [str(ipaddress.IPv6Address(int(line.split()[0], 16))) for line in table if line.strip()]
    except OSError:
        return []


def _is_reachable(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast)


def _is_host_name(name: str) -> bool:
    return bool(re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?", name))
