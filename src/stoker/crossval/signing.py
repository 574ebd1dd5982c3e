"""Sign receipts, and the keys on this machine: where they lie, and whose signatures count.

    state/signing/key.pem      the private key of this home, readable by its user only
    state/signing/key.pub      its public half
    state/signing/key.crt      its certificate by a fleet's CA, if there is one
    state/signing/NAME.pub     public keys of others, trusted because somebody put them there

A signed receipt is a DSSE envelope around the receipt's own bytes. The fleet's CA certifies keys; it signs no receipt.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from stoker.core.errors import BadInput, LocalFile, NotVerified
from stoker.core.frozen import changed, frozen
from stoker.crossval.limits import known_limits
from stoker.crossval.receipt_check import ReceiptRules, TrustedKeys, check_receipt_bytes
from stoker.host.certificates import certified_key, key_id, make_signing_key, public_pem_of, sign_bytes
from stoker.host.durable import create_file, read_regular, read_secret, translated
from stoker.host.folders import names_in
from stoker.store.statements import (
    DOWNLOAD,
    IN_TOTO,
    LARGEST_BYTES,
    MARK,
    Envelope,
    Signature,
    is_envelope,
    parse_envelope,
    parse_statement,
    read_object,
    refusal,
)
from stoker.transfer.download.receipts import FORMAT as DOWNLOAD_FORMAT
from stoker.transfer.download.receipts import parse_receipt

FOLDER = "signing"
KEY = "key.pem"
PUBLIC = ".pub"
CERTIFICATE = ".crt"
_LARGEST_KEY = 64 * 1024
_HEAD_BYTES = 4096
_MOST_KEYS = 1000


@frozen
class CreatedKey:
    """A new pair of keys, in two files."""

    key_file: str
    public_file: str
    key_id: str


def default_key(state: str) -> str:
    """Return the path of the key of a home."""
    return os.path.join(state, FOLDER, KEY)


def beside_key(key_file: str, ending: str) -> str:
    """Return the path of the public half, or of the certificate, of a key."""
    return f"{key_file.removesuffix('.pem')}{ending}"


def create_key(key_file: str) -> CreatedKey:
    """Make a pair of keys. Raises `LocalFile` if there is a key already: it is never replaced."""
    key_pem = make_signing_key()
    public_pem = public_pem_of(key_pem)
    public_file = beside_key(key_file, PUBLIC)
    with translated(key_file):
        os.makedirs(os.path.dirname(key_file) or ".", mode=0o700, exist_ok=True)
    for path, text, mode in ((key_file, key_pem, 0o600), (public_file, public_pem, 0o644)):
        if not create_file(path, text.encode(), mode):
            raise LocalFile(f"{path} exists already", hint="use that key, or name another file", path=path)
    return CreatedKey(key_file=key_file, public_file=public_file, key_id=key_id(public_pem))


def sign_receipt(path: str, *, key_file: str, certificate_file: str = "") -> Envelope:
    """Return the signed form of a receipt in a file, which is verified first; a signed one gets one more signature.

    Raises `NotVerified` for what does not verify, or for a certificate that is not of this key.
    """
    with translated(path):
        data = read_regular(path, 2 * LARGEST_BYTES)
    envelope = parse_envelope(data, path) if is_envelope(data[:_HEAD_BYTES]) else _unsigned(data, path)
    found = check_receipt_bytes(envelope.payload, path, ReceiptRules(now_s=0.0, tiers=known_limits()))
    if found.differs:
        raise NotVerified(f"{path} is not signed: {found.differs[0]}", hint="a signature would vouch for it", path=path)
    key_pem = _read_key(key_file)
    public_pem = public_pem_of(key_pem)
    certificate = _read_text(certificate_file) if certificate_file else ""
    if certificate and certified_key(certificate) != public_pem:
        raise NotVerified(f"{certificate_file} is the certificate of another key", path=certificate_file)
    made = Signature(sig=sign_bytes(key_pem, envelope.signed_bytes), keyid=key_id(public_pem), certificate=certificate)
    others = tuple(one for one in envelope.signatures if one.keyid != made.keyid)
    return changed(envelope, signatures=(*others, made))


def trusted_keys(state: str, key_files: Iterable[str] = (), ca_files: Iterable[str] = ()) -> TrustedKeys:
    """Return whose signatures count: of the keys in `key_files`, or if there are none, of those of this home.

    `ca_files` are certificates of CAs; files that do not exist are passed over only among this home's own.
    """
    named = list(key_files)
    if not named:
        folder = os.path.join(state, FOLDER)
        names = [name for name in names_in(folder) if name.endswith(PUBLIC)][:_MOST_KEYS]
        named = [os.path.join(folder, name) for name in sorted(names)]
    keys = {}
    for path in named:
        public_pem = _read_text(path)
        try:
            keys[key_id(public_pem)] = public_pem
        except BadInput as error:
            raise BadInput(f"{path}: {error.message}", hint=error.hint) from None
    return TrustedKeys(keys=keys, authorities=tuple(_read_text(path) for path in ca_files))


def _unsigned(data: bytes, path: str) -> Envelope:
    try:
        body = read_object(data)
    except ValueError as error:
        raise refusal(path, str(error)) from None
    if body.get(MARK) == DOWNLOAD_FORMAT:
        parse_receipt(data, path)
        return Envelope(payload_type=DOWNLOAD, payload=data, signatures=())
    parse_statement(data, path)
    return Envelope(payload_type=IN_TOTO, payload=data, signatures=())


def _read_key(path: str) -> str:
    try:
        return read_secret(path, _LARGEST_KEY).decode("ascii")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a key", hint="stoker receipt key FILE makes one") from None
    except OSError as error:
        hint = "stoker receipt key makes one"
        raise LocalFile(f"the key {path} can't be read: {error.strerror or error}", hint=hint, path=path) from None


def _read_text(path: str) -> str:
    try:
        return read_regular(path, _LARGEST_KEY).decode("ascii")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a key or a certificate", hint="a PEM file") from None
    except OSError as error:
        raise LocalFile(f"{path} can't be read: {error.strerror or error}", path=path) from None
