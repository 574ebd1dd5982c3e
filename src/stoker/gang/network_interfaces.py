"""Which network interface has an address: ranks are told by name through which one to speak with other hosts."""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16


def variables_for(address: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL find the way to other hosts; none if it can't be told (IPv6)."""
    name = interface_of(address)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}


def interface_of(address: str) -> str:
    """Return the name of the interface with this IPv4 address; empty if there is none, or not on Linux."""
    if sys.platform != "linux":
        return ""
    from fcntl import ioctl  # noqa: PLC0415 - not everywhere

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
                found = ioctl(asks.fileno(), _SIOCGIFADDR, request)
                # An address family, a port, then the address itself.
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""
