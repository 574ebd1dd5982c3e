"""What TLS connections between our own programs are checked by: one fleet's CA, and nobody else's.

TLS 1.2 at least, and only with forward secrecy; 1.3 where both can. No library beside the standard one.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from stoker.core.errors import LocalFile
from stoker.core.frozen import frozen

# Who is at the other end of a TLS connection, as far as its certificate says. Only the standard library is needed.
#
# A certificate that gets here has been verified by the connection's context: its CA signed it and it holds now. Whether
# it was taken back meanwhile is for whoever keeps the list.

MACHINE_URI = "stoker:machine/"


@frozen
class Certificate:
    """What a certificate says."""

    machine: str
    """The machine whose it is; empty: no machine's."""
    serial: str
    """40 letters of hexadecimal."""
    not_before_s: float
    not_after_s: float


def read_peer(told: Mapping[str, Any] | None) -> Certificate | None:
    """Read what `getpeercert()` gives; nothing where the other side has shown no certificate."""
    if not told:
        return None
    uris = [value for kind, value in told.get("subjectAltName", ()) if kind == "URI"]
    return Certificate(
        machine=machine_in(uris),
        serial=serial_text(int(told["serialNumber"], 16)),
        not_before_s=ssl.cert_time_to_seconds(told["notBefore"]),
        not_after_s=ssl.cert_time_to_seconds(told["notAfter"]),
    )


def machine_in(uris: list[str]) -> str:
    """Return the machine that a certificate's URIs name; one that names several names none."""
    machines = [uri.removeprefix(MACHINE_URI) for uri in uris if uri.startswith(MACHINE_URI)]
    return machines[0] if len(machines) == 1 else ""


def serial_text(serial: int) -> str:
    """Write a certificate's number as it is stored and shown."""
    return f"{serial:040x}"


_HOST_MISMATCH = 62
"""X509_V_ERR_HOSTNAME_MISMATCH of OpenSSL."""
_CIPHERS_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context(*, certificate_file: str, key_file: str, ca_pem: str) -> ssl.SSLContext:
    """Serve with a certificate; of clients that show one, the CA must have signed it. None need to.

    Another certificate can be loaded later (`load_server`): new connections get it, those that stand keep theirs.
    """
    context = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=ca_pem)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION
    # Every connection is verified anew: what is resumed would not be, whatever has expired meanwhile.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.set_alpn_protocols(["http/1.1"])
    load_server(context, certificate_file=certificate_file, key_file=key_file)
    return context


def load_server(context: ssl.SSLContext, *, certificate_file: str, key_file: str) -> None:
    """Serve with this certificate from now on."""
    _load(context, certificate_file, key_file)


def client_context(
    ca_pem: str, *, certificate_file: str = "", key_file: str = "", is_host_checked: bool = True
) -> ssl.SSLContext:
    """Trust only what this CA signed, under the host's name, and show our own certificate if there is one.

    Machines have no host names in their certificates: whoever asks one leaves the host unchecked and looks itself
    (`peer.read_peer`) whether the machine is the one that was meant.
    """
    context = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = is_host_checked
    # A name in a machine's subject must never pass for a host's.
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=ca_pem)
    if certificate_file:
        _load(context, certificate_file, key_file)
    return context


def machine_context(ca_pem: str, machine: str, *, certificate_file: str, key_file: str) -> ssl.SSLContext:
    """Trust one machine of the fleet and no other: the handshake ends badly if somebody else's certificate is shown."""
    context = client_context(ca_pem, certificate_file=certificate_file, key_file=key_file, is_host_checked=False)

    class Meant(ssl.SSLSocket):
        """A connection to that machine."""

        def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - as `ssl` calls it
            super().do_handshake(block)
            found = read_peer(self.getpeercert())
            if found is None or found.machine != machine:
                shown = found.machine if found is not None and found.machine else "no machine"
                raise _not_meant(f"{shown} answers in the place of {machine}")

    context.sslsocket_class = Meant
    return context


def unproven_context() -> ssl.SSLContext:
    """Believe anybody: for the first question of whoever joins, whose answer is proven otherwise. For nothing else."""
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
        text = "they are no certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
        raise LocalFile(f"{certificate_file} and {key_file} can't be used: {text}", path=certificate_file) from None
