"""TLS contexts of connections between our own programs: one fleet's CA is trusted, and no other.

TLS 1.2 at least, and only with forward secrecy; 1.3 where both can. No library beside the standard one.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from stoker.core.errors import LocalFile
from stoker.core.frozen import frozen

MACHINE_URI = "stoker:machine/"


@frozen
class Certificate:
    """The certificate of the other end of a TLS connection. Only the standard library is needed.

    The connection's context has verified the certificate: its CA signed it and it is valid now. Revocations are checked
    by the owner of the list.
    """

    machine: str
    """Its machine; empty if it is not of a machine."""
    serial: str
    """40 letters of hexadecimal."""
    not_before_s: float
    not_after_s: float


def read_peer(shown_fields: Mapping[str, Any] | None) -> Certificate | None:
    """Read the result of `getpeercert()`; nothing if the other side has shown no certificate."""
    if not shown_fields:
        return None
    uris = [value for kind, value in shown_fields.get("subjectAltName", ()) if kind == "URI"]
    return Certificate(
        machine=machine_in(uris),
        serial=serial_text(int(shown_fields["serialNumber"], 16)),
        not_before_s=ssl.cert_time_to_seconds(shown_fields["notBefore"]),
        not_after_s=ssl.cert_time_to_seconds(shown_fields["notAfter"]),
    )


def machine_in(uris: list[str]) -> str:
    """Return the machine that a certificate's URIs name; none if they name several."""
    machines = [uri.removeprefix(MACHINE_URI) for uri in uris if uri.startswith(MACHINE_URI)]
    return machines[0] if len(machines) == 1 else ""


def serial_text(serial: int) -> str:
    """Write a certificate's number as it is stored and shown."""
    return f"{serial:040x}"


_HOST_MISMATCH = 62
"""X509_V_ERR_HOSTNAME_MISMATCH of OpenSSL."""
_CIPHERS_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context(*, certificate_file: str, key_file: str, ca_pem: str) -> ssl.SSLContext:
    """Serve with a certificate; if a client shows one, the CA must have signed it. None has to.

    Another certificate can be loaded later (`load_server`): new connections get it, existing ones keep theirs.
    """
    context = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=ca_pem)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION
    # Every connection is verified again: a resumed one would not be, even if its certificate has expired.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.set_alpn_protocols(["http/1.1"])
    load_server(context, certificate_file=certificate_file, key_file=key_file)
    return context


def load_server(context: ssl.SSLContext, *, certificate_file: str, key_file: str) -> None:
    """Serve with this certificate from now on."""
    _load(context, certificate_file, key_file)


def client_context(
    ca_pem: str, *, certificate_file: str = "", key_file: str = "", is_host_checked: bool = True, server_name: str = ""
) -> ssl.SSLContext:
    """Trust only what this CA signed, under the host's name, and show our own certificate if there is one.

    With `server_name` the other side must have that name, whatever the address is: behind it is a relay.
    Machines have no host names in their certificates: a caller that connects to one leaves the host unchecked and
    verifies the machine itself (`read_peer`).
    """
    made: ssl.SSLContext = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if server_name:
        made = named = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
        named.server_name = server_name
    context = _bounded(made)
    context.check_hostname = is_host_checked
    # A name in a machine's subject must never be taken for a host name.
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=ca_pem)
    if certificate_file:
        _load(context, certificate_file, key_file)
    return context


class _NamedContext(ssl.SSLContext):
    """Checks one name, whatever the address is."""

    server_name: str

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*args, **{**options, "server_hostname": self.server_name})


def machine_context(ca_pem: str, machine: str, *, certificate_file: str, key_file: str) -> ssl.SSLContext:
    """Trust one machine of the fleet and no other: the handshake fails for any other certificate."""
    context = client_context(ca_pem, certificate_file=certificate_file, key_file=key_file, is_host_checked=False)

    class Meant(ssl.SSLSocket):
        """A connection to that machine."""

        def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - as `ssl` calls it
            super().do_handshake(block)
            found = read_peer(self.getpeercert())
            if found is None or found.machine != machine:
                shown = found.machine if found is not None and found.machine else "no machine"
                raise _not_meant(f"{shown} responds instead of {machine}")

    context.sslsocket_class = Meant
    return context


def unproven_context() -> ssl.SSLContext:
    """Verify nothing: for the first request of a join, whose response is proven otherwise. For nothing else."""
    context = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _not_meant(text: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(text)
    error.verify_code, error.verify_message = _HOST_MISMATCH, text
    return error


def _bounded(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS_1_2)
    context.options |= ssl.OP_NO_COMPRESSION
    # A stream that was cut must not look like one that has ended.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


def _load(context: ssl.SSLContext, certificate_file: str, key_file: str) -> None:
    try:
        context.load_cert_chain(certificate_file, key_file)
    except OSError as error:
        text = "not a certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
        raise LocalFile(f"{certificate_file} and {key_file} can't be used: {text}", path=certificate_file) from None
