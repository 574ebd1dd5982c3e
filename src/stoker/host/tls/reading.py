"""Certificates in files: what they say."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from stoker.host.tls.peer import Certificate, machine_in, serial_text
from stoker.model.errors import Damaged


def read_certificate(data: bytes | str) -> Certificate:
    """Read one certificate, PEM or DER. Raises `Damaged` for what is none."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        load = x509.load_pem_x509_certificate if raw.lstrip().startswith(b"-----") else x509.load_der_x509_certificate
        found = load(raw)
        uris = _uris(found)
    except ValueError as error:
        raise Damaged(f"that is no certificate: {error}") from None
    return Certificate(
        machine=machine_in(uris),
        serial=serial_text(found.serial_number),
        not_before_s=found.not_valid_before_utc.timestamp(),
        not_after_s=found.not_valid_after_utc.timestamp(),
    )


def names_in(pem: str) -> frozenset[str]:
    """Give the host names and addresses that a server's certificate holds for."""
    found = x509.load_pem_x509_certificate(pem.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return frozenset({*names.get_values_for_type(x509.DNSName), *addresses})


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.UniformResourceIdentifier)


def is_signed_by(pem: str, ca_pem: str) -> bool:
    """Say whether a CA signed a certificate."""
    found, ca = (x509.load_pem_x509_certificate(one.encode()) for one in (pem, ca_pem))
    try:
        found.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
