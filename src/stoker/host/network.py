"""Listening sockets, taken at once or refused with the reason; limits on connections; clock and addresses."""

from __future__ import annotations

import errno
import ipaddress
import re
import resource
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from stoker.core.device import TriState, TriStateAnswer
from stoker.core.errors import BadInput, NoPermission, Unavailable


def read_listen(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, `[::1]:PORT`, `HOST` or `:PORT`; missing parts are "" and -1."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, ""
    if port and not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise BadInput(f"{text!r} is no address to listen at: invalid port {port!r}", hint="HOST:PORT; port 0 is any")
    bare = host.removeprefix("[").removesuffix("]")
    if ":" in bare and not host.startswith("["):
        raise BadInput(f"{text!r} is no address to listen at", hint=f"write [{text}]:PORT")
    return bare, int(port) if port else -1


def listen_at(host: str, port: int, *, if_taken: str = "") -> socket.socket:
    """Bind an address; port 0 is any free one. Connections are accepted after `listen` is called.

    `if_taken` is what to do if another program has the port (default: `--listen` with any free one).
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BadInput(f"{host!r} is no address of this machine: {error.strerror or error}") from None
    family, kind, number, _, address = found[0]
    taken = socket.socket(family, kind, number)
    try:
        # Connections of a server that has ended do not block the port.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise _refused(error, f"{host}:{port}", if_taken or f"--listen {host}:0 takes any free port") from None
    return taken


def allow_many_files(most: int = 65_536) -> None:
    """Raise this process's limit of open connections to the system's maximum, instead of the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refused(error: OSError, where: str, if_taken: str) -> Exception:
    if error.errno == errno.EADDRINUSE:
        hint = f"{if_taken}; `ss -ltnp` shows who has this one"
        return Unavailable(f"{where} is in use by another program", hint=hint, address=where)
    if error.errno == errno.EACCES:
        return NoPermission(f"no permission to listen at {where}", hint="ports below 1024 need root")
    return BadInput(f"can't listen at {where}: {error.strerror or error}", hint="use an address of this machine")


def is_port_free(port: int) -> TriStateAnswer:
    """Return whether a port is free: bind it for a moment, on all addresses, as a server would."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        # Connections of a server that has ended do not block the port.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return TriStateAnswer(verdict=TriState.NO, why="another program uses it")
            return TriStateAnswer(verdict=TriState.UNKNOWN, why=error.strerror or str(error))
    return TriStateAnswer(verdict=TriState.YES)


def is_clock_synchronised() -> TriStateAnswer:
    """Return whether this computer's clock is synchronised, by its kernel; unknown where that is not supported."""
    if sys.platform != "linux":
        return TriStateAnswer(verdict=TriState.UNKNOWN, why="known on Linux only")
    from stoker.host.linux import is_clock_kept  # noqa: PLC0415 - it loads ctypes

    try:
        is_kept = is_clock_kept()
    except OSError as error:
        return TriStateAnswer(verdict=TriState.UNKNOWN, why=error.strerror or str(error))
    if is_kept:
        return TriStateAnswer(verdict=TriState.YES)
    return TriStateAnswer(verdict=TriState.NO, why="the kernel's clock is not synchronised")


# Names and addresses by which others may reach this computer, as far as it knows them.

_LOCAL_IPV4 = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_LOOPBACK = ("127.0.0.1", "::1")


def own_names() -> tuple[str, ...]:
    """Return this computer's names and addresses, loopback's among them."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    names = ("localhost", name, short, f"{short}.local")
    return tuple(dict.fromkeys((*filter(_is_host_name, names), *_LOOPBACK, *own_addresses())))


def own_addresses() -> tuple[str, ...]:
    """Return the addresses of this computer's network devices, without loopback and link-local ones."""
    found = [*_ipv4_of_kernel(), *_ipv6_of_kernel()]
    if not found:
        with suppress(OSError):
            found = [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    return tuple(dict.fromkeys(text for text in found if _is_reachable(text)))


def listen_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses of this computer that a host name has; `::` or `0.0.0.0` if it has none, as behind NAT.

    Loopback counts only if it is named: some systems give their own name an address of loopback.
    """
    found: list[str] = []
    with suppress(OSError, UnicodeError):
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    has_ipv6 = sys.platform != "linux" or bool(_ipv6_of_kernel())
    own, is_named = own_addresses(), host == "localhost" or _is_loopback(host)
    listed = [text for text in found if text in own or (is_named and _is_loopback(text) and (has_ipv6 or "." in text))]
    return tuple(dict.fromkeys(listed)) or ("::" if has_ipv6 else "0.0.0.0",)  # noqa: S104 - no address is known


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


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


def reachable(urls: Sequence[str]) -> str:
    """Return the first URL whose host has an address here that other machines could reach, too; else the first one."""
    for url in urls:
        host = urlsplit(url).hostname or ""
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            continue
        if any(not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found):
            return url
    return urls[0] if urls else ""


def source_of(address: str) -> str:
    """Return the source of an address: an IPv4 address, or the /64 network of an IPv6 one."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))
