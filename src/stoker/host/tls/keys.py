"""Private keys, and requests for certificates: the key is made where it is used, and never travels."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stoker.host.tls.naming import subject_of


def make_key() -> str:
    """Make a private key (EC P-256), as PEM. Whoever stores it lets nobody else read it."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def make_csr(key_pem: str, name: str) -> str:
    """Ask for a certificate of a machine: its public key, signed with its private one. The name is only a wish."""
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - `make_key` makes no others
    made = x509.CertificateSigningRequestBuilder().subject_name(subject_of(name)).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    made = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.decode()
