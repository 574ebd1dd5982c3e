"""Which addresses a hook may lead to. Pure: the address that would be connected to, not the name that led there."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Where clouds keep what their machines may know about themselves, beside the link-local one.
_METADATA = frozenset(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def may_be_told(text: str, *, is_inner: bool) -> bool:
    """Say whether a message may go to an address.

    Link-local and metadata addresses never; this computer and private networks only if `is_inner`: an admin made the
    hook, who may do worse.
    """
    try:
        address = _outermost(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    if address in _METADATA or address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return is_inner if address.is_loopback or not address.is_global else not address.is_reserved


def _outermost(address: Address) -> Address:
    """Give the IPv4 address that an IPv6 one stands for, if it stands for one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address
