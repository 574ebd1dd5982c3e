"""A fleet's own certificate authority: made once, signs machines, its coordinator's servers, and keys of signers.

    ca = make_ca("stoker fleet of desk", now_s=…)
    signer = Signer(ca)
    signer.machine(csr_pem, "lab1", now_s=…, life_s=30 * 86400).certificate_pem

A request's names and extensions are never read: the signer decides what a certificate says. The CA certifies the keys
that sign receipts, at the end of this file; it signs no receipt itself.
"""

from __future__ import annotations

import ipaddress
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput, Damaged, NotVerified
from stoker.core.frozen import frozen
from stoker.host.tls_contexts import MACHINE_URI, Certificate, machine_in, serial_text

_LONGEST_COMMON_NAME = 64


def subject_of(machine: str) -> x509.Name:
    """Return the subject of a machine's certificate, which has its name.

    It is a URI among the alternative names, `stoker:machine/NAME`. The common name repeats it for people, behind a word
    and a space: some clients take a bare common name for a host name, and then a machine named like the coordinator's
    host could impersonate it.
    """
    return subject_named(f"machine {machine}")


def subject_named(text: str) -> x509.Name:
    """Return a subject of one common name, cut to the longest allowed."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_LONGEST_COMMON_NAME])])


# Private keys, and requests for certificates: the key is made where it is used, and never travels.


def make_key() -> str:
    """Make a private key (EC P-256), as PEM. The caller stores it unreadable for others."""
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def make_csr(key_pem: str, name: str) -> str:
    """Make a certificate request of a machine: its public key, signed with its private one. The name is not binding."""
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - `make_key` makes no others
    made = x509.CertificateSigningRequestBuilder().subject_name(subject_of(name)).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> str:
    made = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.decode()


DAY_S = 86_400.0
CA_LIFE_S = 3650 * DAY_S
SERVER_LIFE_S = 90 * DAY_S
MACHINE_LIFE_S = 30 * DAY_S
_EARLY_S = DAY_S
"""Valid from before it was made: clocks of other machines may be behind."""


@frozen
class KeyPair:
    """A certificate and its private key, both as PEM."""

    certificate_pem: str
    key_pem: str


@frozen
class SignedCertificate:
    """A certificate that was signed now."""

    certificate_pem: str
    serial: str
    """As in `contexts.Certificate`."""
    not_after_s: float


def make_ca(name: str, *, now_s: float, life_s: float = CA_LIFE_S) -> KeyPair:
    """Make an authority with a key of its own."""
    key_pem = make_key()
    key = _private_key(key_pem)
    subject = subject_named(name)
    builder = _dated(x509.CertificateBuilder(), now_s, life_s).subject_name(subject).issuer_name(subject)
    public = key.public_key()
    builder = (
        builder.public_key(public)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    return KeyPair(certificate_pem=_certificate_pem(builder.sign(key, hashes.SHA256())), key_pem=key_pem)


class Signer:
    """An authority that can sign. Raises `Damaged` if its key does not belong to the certificate."""

    def __init__(self, ca: KeyPair) -> None:
        try:
            self._certificate = x509.load_pem_x509_certificate(ca.certificate_pem.encode())
            self._key = _private_key(ca.key_pem)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise Damaged(f"not a certificate authority: {error}") from None
        if self._certificate.public_key() != self._key.public_key():
            raise Damaged("the authority's key does not belong to its certificate")

    def machine(self, csr_pem: str, name: str, *, now_s: float, life_s: float = MACHINE_LIFE_S) -> SignedCertificate:
        """Sign a machine's public key under the given name, whatever its request says."""
        key = _requested_key(csr_pem)
        uri = x509.UniformResourceIdentifier(f"{MACHINE_URI}{name}")
        # Machines also serve files to others of the fleet.
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        return self._sign(subject_of(name), key, [uri], uses, now_s, life_s)

    def server(
        self, key_pem: str, names: Iterable[str], *, now_s: float, life_s: float = SERVER_LIFE_S
    ) -> SignedCertificate:
        """Sign a server's key under the names and addresses by which it is reached."""
        alternatives = [_alternative(name) for name in dict.fromkeys(names)]
        subject = subject_named("stoker coordinator")
        uses = [ExtendedKeyUsageOID.SERVER_AUTH]
        return self._sign(subject, _private_key(key_pem).public_key(), alternatives, uses, now_s, life_s)

    def receipts(self, public_pem: str, name: str, *, now_s: float, life_s: float = CA_LIFE_S) -> SignedCertificate:
        """Certify a key that signs receipts, under the name of its owner. It is of no use for a connection."""
        if not 0 < len(name) <= _LONGEST_SIGNER or not SIGNER_CHARACTERS.issuperset(name):
            raise BadInput(f"{name[:80]!r} can't name a signer", hint="letters, digits and . _ @ - +, at most 100")
        uri = x509.UniformResourceIdentifier(f"{SIGNER_URI}{name}")
        uses = [ExtendedKeyUsageOID.CODE_SIGNING]
        return self._sign(subject_named(f"signer {name}"), _public_key(public_pem), [uri], uses, now_s, life_s)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey,
        alternatives: list[x509.GeneralName],
        uses: list[x509.ObjectIdentifier],
        now_s: float,
        life_s: float,
    ) -> SignedCertificate:
        serial = x509.random_serial_number()
        own_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        not_after_s = min(now_s + life_s, self._certificate.not_valid_after_utc.timestamp())
        builder = (
            _dated(x509.CertificateBuilder(), now_s, not_after_s - now_s)
            .subject_name(subject)
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(serial)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(own_id, critical=False)
        )
        made = builder.sign(self._key, hashes.SHA256())
        return SignedCertificate(
            certificate_pem=_certificate_pem(made), serial=serial_text(serial), not_after_s=not_after_s
        )


def _requested_key(csr_pem: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a request that is signed with its private key."""
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        is_signed, key = request.is_signature_valid, request.public_key()
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise BadInput("not a certificate request") from None
    if not is_signed:
        raise BadInput("the certificate request is not signed with its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadInput("the key of a machine must be EC P-256")
    return key


def _alternative(name: str) -> x509.GeneralName:
    bare = name.strip("[]")
    try:
        return x509.IPAddress(ipaddress.ip_address(bare.partition("%")[0]))
    except ValueError:
        return x509.DNSName(bare)


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _dated(builder: x509.CertificateBuilder, now_s: float, life_s: float) -> x509.CertificateBuilder:
    begin, end = (datetime.fromtimestamp(int(at_s), UTC) for at_s in (now_s - _EARLY_S, now_s + life_s))
    return builder.not_valid_before(begin).not_valid_after(end)


def _private_key(key_pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("not an EC key")
    return key


def _certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


# Certificates in files.


def read_certificate(data: bytes | str) -> Certificate:
    """Read one certificate, PEM or DER. Raises `Damaged` for anything else."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        load = x509.load_pem_x509_certificate if raw.lstrip().startswith(b"-----") else x509.load_der_x509_certificate
        found = load(raw)
        uris = _uris(found)
    except ValueError as error:
        raise Damaged(f"not a certificate: {error}") from None
    return Certificate(
        machine=machine_in(uris),
        serial=serial_text(found.serial_number),
        not_before_s=found.not_valid_before_utc.timestamp(),
        not_after_s=found.not_valid_after_utc.timestamp(),
    )


def names_in(pem: str) -> frozenset[str]:
    """Return the host names and addresses that a server's certificate is valid for."""
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
    """Return True if a CA signed a certificate."""
    found, ca = (x509.load_pem_x509_certificate(one.encode()) for one in (pem, ca_pem))
    try:
        found.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


# Keys that sign receipts: ed25519. Who trusts a public key, or the CA that certified it, can verify what it signed.


SIGNER_URI = "stoker:signer/"
SIGNER_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-+")
_LONGEST_SIGNER = 100
# What reading a certificate raises if it is none; not all of it is a ValueError.
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@frozen
class SigningCertificate:
    """A certificate of a key that signs receipts, verified."""

    name: str
    """Of the key's owner."""
    public_pem: str
    not_after_s: float


def make_signing_key() -> str:
    """Make a private key that signs receipts, as PEM. The caller stores it unreadable for others."""
    return _key_pem(ed25519.Ed25519PrivateKey.generate())


def public_pem_of(key_pem: str) -> str:
    """Return the public half of a signing key, as PEM."""
    return _public_pem(_signing_key(key_pem).public_key())


def key_id(public_pem: str) -> str:
    """Return the id of a key: the SHA-256 of its public half (DER)."""
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return digest_bytes(_public_key(public_pem).public_bytes(serialization.Encoding.DER, spki))


def sign_bytes(key_pem: str, data: bytes) -> bytes:
    """Return the signature of bytes."""
    return _signing_key(key_pem).sign(data)


def has_signed(public_pem: str, signature: bytes, data: bytes) -> bool:
    """Return True if a key signed these bytes."""
    try:
        _public_key(public_pem).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def certified_key(pem: str) -> str:
    """Return the public key of a certificate that is made for signing receipts; nothing else of it is verified.

    Raises `NotVerified` for any other certificate, also one of a machine or a server.
    """
    return _public_pem(_certified(pem)[1])


def read_signing_certificate(pem: str, ca_pem: str, *, now_s: float) -> SigningCertificate:
    """Return the owner and the key of a certificate that a CA made for signing receipts, if both are valid now.

    Raises `NotVerified` with the reason otherwise: another CA, expired, or a certificate of a machine or a server.
    """
    found, key, name = _certified(pem)
    try:
        ca = x509.load_pem_x509_certificate(ca_pem.encode())
        is_ca = ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _UNREADABLE as error:
        raise NotVerified(f"not the certificate of a CA: {error}") from None
    if not is_ca or not is_signed_by(pem, ca_pem):
        raise NotVerified("the certificate is not of this fleet: another CA made it")
    for what, one in (("signing key's certificate", found), ("CA", ca)):
        end_s = one.not_valid_after_utc.timestamp()
        if not one.not_valid_before_utc.timestamp() <= now_s <= end_s:
            when = datetime.fromtimestamp(end_s, UTC).date().isoformat()
            hint = "a signature does not prove when it was made; to trust the key itself: --key FILE.pub"
            raise NotVerified(f"the {what} is not valid now: it expires on {when}", hint=hint)
    end_s = found.not_valid_after_utc.timestamp()
    return SigningCertificate(name=name, public_pem=_public_pem(key), not_after_s=end_s)


def _certified(pem: str) -> tuple[x509.Certificate, ed25519.Ed25519PublicKey, str]:
    """Return a certificate that is made for signing receipts, its key, and the name of the key's owner."""
    try:
        # What the library only warns of is refused: a certificate of ours gives no reason to.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = x509.load_pem_x509_certificate(pem.encode())
            uris = [uri.removeprefix(SIGNER_URI) for uri in _uris(found) if uri.startswith(SIGNER_URI)]
            uses = list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
            key = found.public_key()
    except (*_UNREADABLE, Warning) as error:
        raise NotVerified(f"not the certificate of a signing key: {error}") from None
    if _certificate_pem(found) != pem:
        raise NotVerified("the certificate has other text around it, or is spelt oddly")
    if uses != [ExtendedKeyUsageOID.CODE_SIGNING] or len(uris) != 1 or not isinstance(key, ed25519.Ed25519PublicKey):
        raise NotVerified("the certificate is not one of a signing key")
    return found, key, uris[0]


def _signing_key(key_pem: str) -> ed25519.Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(key_pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(f"not a private key: {error}", hint="stoker receipt key FILE makes one") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise BadInput("the key is not an ed25519 key", hint="stoker receipt key FILE makes one")
    return key


def _public_key(public_pem: str) -> ed25519.Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(public_pem.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(f"not a public key: {error}", hint="the file that ends with .pub") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise BadInput("the public key is not an ed25519 key", hint="stoker receipt key FILE makes a pair")
    return key


def _public_pem(key: ed25519.Ed25519PublicKey) -> str:
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, spki).decode()
