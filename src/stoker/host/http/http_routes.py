"""Trusted certificates: the system's and those of the settings, or one fleet's CA alone. Also proxies and routes."""

from __future__ import annotations

import ipaddress
import os
import ssl
import threading
from contextlib import suppress

from stoker.core.errors import BadInput, LocalFile
from stoker.core.frozen import frozen
from stoker.host.durable import read_regular
from stoker.host.http.exchange import FleetIdentity, HttpOrigin, HttpSettings, read_address, shown
from stoker.host.tls_contexts import client_context, machine_context

# Proxies: chosen from the settings, by the rules of curl and Python.


@frozen
class Proxy:
    """A proxy."""

    origin: HttpOrigin
    authorization: str = ""
    """Its `Proxy-Authorization`, from the name and password in its URL."""


def proxy_for(origin: HttpOrigin, settings: HttpSettings) -> Proxy | None:
    """Return the proxy for a host; None means a direct connection. Raises `BadInput` for an unsupported proxy."""
    proxy = settings.proxies.get(origin.scheme) or settings.proxies.get("all")
    if not proxy or any(_covers(entry, origin) for entry in settings.no_proxy):
        return None
    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        address = read_address(url)
    except BadInput:
        hint = "a proxy's address looks like http://proxy.example.org:3128; SOCKS is not supported"
        raise BadInput(f"not the address of an HTTP proxy: {shown(url)}", hint=hint) from None
    return Proxy(origin=address.origin, authorization=address.authorization)


def _covers(entry: str, origin: HttpOrigin) -> bool:
    """Return True if an entry of NO_PROXY matches this host: `*`, a name and all below it, an address, a network."""
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


@frozen
class Route:
    """A route to a server: direct, by Unix socket, proxy or tunnel. Connections on one route are interchangeable."""

    near: HttpOrigin
    """What we connect to: the server, or a proxy."""
    far: HttpOrigin | None = None
    """The end of a tunnel through the proxy."""
    proxy: Proxy | None = None
    sockets: tuple[str, ...] = ()
    """Unix sockets of which one is used instead of `near`."""

    @property
    def is_forwarded(self) -> bool:
        """True if requests are sent to the proxy itself, each with its whole URL."""
        return self.proxy is not None and self.far is None

    @property
    def is_secure(self) -> bool:
        """True if any part of it uses TLS."""
        return not self.sockets and (self.near.scheme == "https" or self.far is not None)


def route_to(origin: HttpOrigin, proxy: Proxy | None) -> Route:
    """Return the route to a server. Only https needs a tunnel: it is encrypted end to end."""
    if proxy is None:
        return Route(near=origin)
    return Route(near=proxy.origin, far=origin if origin.scheme == "https" else None, proxy=proxy)


_MOST_BYTES = 64 * 1024
# Where systems keep them, for an interpreter that was built elsewhere and looks in the wrong place.
_USUAL_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class Trust:
    """The TLS context of one transport. Thread-safe.

    It is made with the first connection, and again when the file of our own certificate changes: connections that were
    made with the old one are not used again.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[int, ...] = ()

    def context(self) -> ssl.SSLContext:
        """Return the current one."""
        stamp = _stamp(self._settings.fleet)
        with self._lock:
            if self._context is None or stamp != self._stamp:
                self._context, self._stamp = trust(self._settings), stamp
            return self._context


def trust(settings: HttpSettings) -> ssl.SSLContext:
    """Make a TLS context: TLS 1.2 or newer, names and certificates always verified.

    OpenSSL takes SSL_CERT_FILE *instead of* the system's certificates; here they are added to them. A folder of hashed
    names costs nothing until a certificate is looked up in it, a file with all of them a twentieth of a second.
    """
    if settings.fleet is not None:
        return _of_fleet(settings.fleet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Some versions of Python enable it: a stream that was cut would then look like one that has ended.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    system_file = _add_system(context)
    if settings.ca_file and os.path.realpath(settings.ca_file) != system_file:
        _add(context, settings.ca_file)
    # Several folders may be given, as in PATH; a missing one is no error to OpenSSL either.
    for folder in filter(os.path.isdir, settings.ca_path.split(os.pathsep)):
        context.load_verify_locations(capath=folder)
    return context


def _of_fleet(fleet: FleetIdentity) -> ssl.SSLContext:
    try:
        ca_pem = fleet.ca_pem or read_regular(fleet.ca_file, _MOST_BYTES).decode("ascii")
        own = fleet.certificate_file
        if fleet.machine:
            return machine_context(ca_pem, fleet.machine, certificate_file=own, key_file=own)
        return client_context(ca_pem, certificate_file=own, key_file=own, server_name=fleet.server_name)
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or "there is no certificate in it"
        hint = "`stoker join CODE@HOST --again` replaces it; an operator's `stoker machines invite` prints a code"
        raise LocalFile(f"can't read the fleet's CA{_from(fleet)}: {text}", hint=hint) from error


def _from(fleet: FleetIdentity) -> str:
    return f" from {fleet.ca_file}" if fleet.ca_file else ""


def _stamp(fleet: FleetIdentity | None) -> tuple[int, ...]:
    """Return what distinguishes one state of our certificate's file from another."""
    if fleet is None or not fleet.certificate_file:
        return ()
    try:
        found = os.stat(fleet.certificate_file)
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _add_system(context: ssl.SSLContext) -> str:
    """Add the system's certificates, and return the real path of its file, loaded or as good as loaded."""
    paths = ssl.get_default_verify_paths()
    folder, is_hashed = paths.openssl_capath, False
    with suppress(OSError):
        is_hashed = any(name.endswith(".0") for name in os.listdir(folder))
    if is_hashed:
        context.load_verify_locations(capath=folder)
    file = next(filter(os.path.isfile, (paths.openssl_cafile, *(() if is_hashed else _USUAL_FILES))), "")
    real = os.path.realpath(file) if file else ""
    # Debian keeps both, the file inside the folder and made from it.
    if file and not (is_hashed and os.path.dirname(real) == os.path.realpath(folder)):
        context.load_verify_locations(cafile=file)
    return real


def _add(context: ssl.SSLContext, path: str) -> None:
    try:
        if os.path.isdir(path):
            # What Requests calls a bundle may be a folder, too.
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except OSError as error:
        text = "no certificates in it" if isinstance(error, ssl.SSLError) else error.strerror
        hint = "SSL_CERT_FILE, REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name a file in PEM form, SSL_CERT_DIR a folder"
        raise LocalFile(f"can't read certificates from {path}: {text}", hint=hint) from error
