"""Whose certificates are believed: the system's and those that the settings add, or one fleet's and no others."""

from __future__ import annotations

import os
import ssl
import threading
from contextlib import suppress

from stoker.host.durable import read_regular
from stoker.host.http.settings import FleetIdentity, HttpSettings
from stoker.host.tls.contexts import client_context, machine_context
from stoker.model.errors import LocalFile

_MOST_BYTES = 64 * 1024
# Where systems keep them, for an interpreter that was built elsewhere and looks in the wrong place.
_USUAL_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class Trust:
    """What the connections of one transport are checked by. Safe to use from several threads.

    It is made with the first, and anew when the file of our own certificate is another: connections that were made
    with the old one are not used again.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[int, ...] = ()

    def context(self) -> ssl.SSLContext:
        """Give it as it stands now."""
        stamp = _stamp(self._settings.fleet)
        with self._lock:
            if self._context is None or stamp != self._stamp:
                self._context, self._stamp = trust(self._settings), stamp
            return self._context


def trust(settings: HttpSettings) -> ssl.SSLContext:
    """Make what TLS connections are checked by: TLS 1.2 or newer, names and certificates verified, always.

    OpenSSL takes SSL_CERT_FILE *instead of* the system's certificates; here they are added to them. A folder of hashed
    names costs nothing until a certificate is looked up in it, a file with all of them a twentieth of a second.
    """
    if settings.fleet is not None:
        return _of_fleet(settings.fleet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Some versions of Python switch it on: a stream that was cut would then look like one that has ended.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    system_file = _add_system(context)
    if settings.ca_file and os.path.realpath(settings.ca_file) != system_file:
        _add(context, settings.ca_file)
    # Several folders may be given, as in PATH; one that is not there is no error to OpenSSL either.
    for folder in filter(os.path.isdir, settings.ca_path.split(os.pathsep)):
        context.load_verify_locations(capath=folder)
    return context


def _of_fleet(fleet: FleetIdentity) -> ssl.SSLContext:
    try:
        ca_pem = fleet.ca_pem or read_regular(fleet.ca_file, _MOST_BYTES).decode("ascii")
        own = fleet.certificate_file
        if fleet.machine:
            return machine_context(ca_pem, fleet.machine, certificate_file=own, key_file=own)
        return client_context(ca_pem, certificate_file=own, key_file=own)
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or "there is no certificate in it"
        hint = "`stoker join CODE@HOST --again` writes it anew; an operator's `stoker machines invite` gives a code"
        raise LocalFile(f"can't read the fleet's CA{_from(fleet)}: {text}", hint=hint) from error


def _from(fleet: FleetIdentity) -> str:
    return f" from {fleet.ca_file}" if fleet.ca_file else ""


def _stamp(fleet: FleetIdentity | None) -> tuple[int, ...]:
    """Tell one state of our certificate's file from another."""
    if fleet is None or not fleet.certificate_file:
        return ()
    try:
        found = os.stat(fleet.certificate_file)
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _add_system(context: ssl.SSLContext) -> str:
    """Add what the system trusts, and give the real path of its file, loaded or as good as loaded."""
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
