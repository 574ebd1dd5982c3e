"""Statements: evidence as files that are verified years later, without a network.

    receipt = Statement(subject=(Subject(name="model.bin", digest={"sha256": "…"}),), predicate_type=…, predicate={…})
    receipt.to_bytes()                                 an in-toto Statement v1 with a checksum of our own
    Envelope(payload_type=…, payload=…, signatures=…)  the same bytes, signed: a DSSE envelope

The checksum finds edits and missing bytes; it does not prove who wrote them, as anyone can compute it. A signature
does, and covers the payload's exact bytes and its type. What is read here is strict: a key given twice, a number that
no float holds, deep nesting and large files are refused, so that others read the same statement as we do.

Nothing here signs: keys are in `host.certificates`.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from stoker.core.digests import digest_value
from stoker.core.errors import NotVerified
from stoker.core.frozen import fresh, frozen
from stoker.core.jsontext import dumps, loads_strict

MARK = "stoker_receipt"
"""The key of every receipt that holds its format: 1, a download's; 2, a statement."""
FORMAT = 2
CHECKSUM = "stoker_checksum"
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
"""What was made, from what, where: the receipt of a job."""
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
"""What was checked, against which limits: the receipt of a comparison, a gate or a benchmark."""
LARGEST_BYTES = 16 << 20
_MOST_SUBJECTS = 100_000
_LONGEST_DIGEST = 200


# Bytes with a checksum in them.


def seal(body: Mapping[str, Any], *, name: str = CHECKSUM, indent: int | None = 2) -> bytes:
    """Return the bytes of a file with this body and its checksum, as the last key."""
    return f"{dumps({**body, name: _checksum(body)}, indent=indent)}\n".encode()


def unseal(body: Mapping[str, Any], *, name: str = CHECKSUM) -> dict[str, Any]:
    """Return what `seal` was given, read back. Raises `ValueError` with what is wrong, as the end of a sentence."""
    rest = {key: value for key, value in body.items() if key != name}
    if body.get(name) != _checksum(rest):
        message = "does not match its own checksum: it was edited, or is incomplete"
        raise ValueError(message)
    return rest


def read_object(data: bytes, *, largest_bytes: int = LARGEST_BYTES) -> dict[str, Any]:
    """Read a JSON object strictly. Raises `ValueError` with what is wrong, as the end of a sentence."""
    try:
        body = loads_strict(data, most_bytes=largest_bytes)
    except ValueError as error:
        message = f"is not JSON ({error})"
        raise ValueError(message) from None
    if not isinstance(body, dict):
        message = "is not a receipt: it is no JSON object"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a type in the program
    return body


def _checksum(body: Mapping[str, Any]) -> str:
    # Formatting of the file has no effect.
    return digest_value("receipt", dumps(body, sort_keys=True).encode())


def moment(wall_s: float) -> str:
    """Return a time as receipts have it."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")


# Statements.


@frozen
class Subject:
    """Something that a statement is about."""

    name: str
    digest: Mapping[str, str]
    """By algorithm. Plain SHA-256 of bytes is `sha256`; our own digests (trees, jobs) never have that name."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "digest": dict(self.digest)}


@frozen
class Statement:
    """What is stated about subjects."""

    subject: tuple[Subject, ...]
    predicate_type: str
    predicate: Mapping[str, Any] = fresh(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as in-toto has it, with our mark."""
        return {
            "_type": STATEMENT,
            MARK: FORMAT,
            "subject": [one.to_json() for one in self.subject],
            "predicateType": self.predicate_type,
            "predicate": dict(self.predicate),
        }

    def to_bytes(self, *, indent: int | None = 2) -> bytes:
        """Return the bytes of its file, its checksum included."""
        return seal(self.to_json(), indent=indent)


def parse_statement(data: bytes, path: str) -> Statement:
    """Read a statement; `path` is for messages. Raises `NotVerified` if it is not one, was edited, or is incomplete."""
    try:
        body = read_object(data)
        if body.get("_type") != STATEMENT:
            message = f"is not a statement: _type is {str(body.get('_type'))[:80]!r}"
            raise ValueError(message)
        if MARK in body and body[MARK] != FORMAT:
            message = f"has format {body[MARK]!r}; this version reads format {FORMAT}"
            raise ValueError(message)
        return _read(unseal(body))
    except ValueError as error:
        raise refusal(path, str(error)) from None


def _read(body: dict[str, Any]) -> Statement:
    unknown = body.keys() - {"_type", MARK, "subject", "predicateType", "predicate"}
    if unknown or MARK not in body:
        message = f"has unknown keys: {', '.join(sorted(unknown))}" if unknown else f"has no key {MARK}"
        raise ValueError(message)
    listed, kind, predicate = body.get("subject"), body.get("predicateType"), body.get("predicate")
    if not isinstance(listed, list) or not 0 < len(listed) <= _MOST_SUBJECTS:
        message = "has no subject"
        raise ValueError(message)
    if not isinstance(kind, str) or not isinstance(predicate, dict):
        message = "has no predicate, or one without a type"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a type in the program
    subject = tuple(_read_subject(one) for one in listed)
    return Statement(subject=subject, predicate_type=kind, predicate=predicate)


def _read_subject(raw: object) -> Subject:
    if isinstance(raw, dict) and isinstance(raw.get("name"), str) and isinstance(raw.get("digest"), dict):
        digest = raw["digest"]
        if digest and all(isinstance(value, str) and len(value) <= _LONGEST_DIGEST for value in digest.values()):
            return Subject(name=raw["name"], digest=digest)
    message = "has a subject without a name or a digest"
    raise ValueError(message)


def refusal(path: str, how: str) -> NotVerified:
    """Return the error of a receipt that can't be accepted; `how` is the end of the sentence."""
    return NotVerified(f"the receipt {path} {how}", hint="get it again from where it was made", path=path)


# Signed statements: DSSE envelopes. A signature covers the type and the bytes of the payload, which therefore need no
# canonical form. The envelope is JSON on one line, and only what a signature covers is believed: `keyid` and a
# certificate help to find the key.


IN_TOTO = "application/vnd.in-toto+json"
DOWNLOAD = "application/vnd.stoker.download+json"
"""Type of the payload that is a download's receipt, byte for byte."""
_MOST_SIGNATURES = 16
_LONGEST_CERTIFICATE = 16_384


@frozen
class Signature:
    """One signature of an envelope."""

    sig: bytes
    keyid: str = ""
    certificate: str = ""
    """PEM of the key's certificate; empty if there is none."""

    def to_json(self) -> dict[str, Any]:
        more = {"certificate": self.certificate} if self.certificate else {}
        return {"keyid": self.keyid, "sig": _to_base64(self.sig), **more}


@frozen
class Envelope:
    """A payload with its signatures."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signed_bytes(self) -> bytes:
        """What is signed."""
        return pre_authentication(self.payload_type, self.payload)

    def to_bytes(self) -> bytes:
        body = {
            "payloadType": self.payload_type,
            "payload": _to_base64(self.payload),
            "signatures": [one.to_json() for one in self.signatures],
        }
        return f"{dumps(body)}\n".encode()


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that a DSSE signature covers."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def is_envelope(head: bytes) -> bool:
    """Return True if a file that begins with these bytes may be a signed receipt."""
    return b'"payloadType"' in head and (IN_TOTO.encode() in head or DOWNLOAD.encode() in head)


def parse_envelope(data: bytes, path: str) -> Envelope:
    """Read an envelope; no signature is checked. Raises `NotVerified` if it is not one, or holds something else."""
    try:
        body = read_object(data, largest_bytes=2 * LARGEST_BYTES)
        _expect_keys(body, {"payloadType", "payload", "signatures"})
        kind, signatures = body["payloadType"], body["signatures"]
        if kind not in (IN_TOTO, DOWNLOAD):
            message = f"holds no receipt: its payload type is {str(kind)[:80]!r}"
            raise ValueError(message)
        if not isinstance(signatures, list) or not 0 < len(signatures) <= _MOST_SIGNATURES:
            message = f"has no signatures, or more than {_MOST_SIGNATURES}"
            raise ValueError(message)
        read = tuple(_read_signature(one) for one in signatures)
        return Envelope(payload_type=kind, payload=_from_base64(body["payload"]), signatures=read)
    except ValueError as error:
        raise refusal(path, str(error)) from None


def _read_signature(raw: object) -> Signature:
    if not isinstance(raw, dict):
        message = "has a signature that is not an object"
        raise ValueError(message)  # noqa: TRY004 - the file is wrong, not a type in the program
    _expect_keys(raw, {"keyid", "sig"} | (raw.keys() & {"certificate"}))
    keyid, certificate = raw["keyid"], raw.get("certificate", "")
    if not isinstance(keyid, str) or not isinstance(certificate, str) or len(certificate) > _LONGEST_CERTIFICATE:
        message = "has a signature whose keyid or certificate is not a text"
        raise ValueError(message)
    return Signature(sig=_from_base64(raw["sig"]), keyid=keyid, certificate=certificate)


def _expect_keys(body: Mapping[str, Any], keys: set[str]) -> None:
    if body.keys() != keys:
        odd: Sequence[str] = sorted(body.keys() ^ keys)
        message = f"is not a signed receipt: keys {', '.join(odd)[:200]} are missing or unknown"
        raise ValueError(message)


def _to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _from_base64(text: object) -> bytes:
    """Decode base64 in its one spelling: other bits at the end would change the file and not the payload."""
    try:
        data = binascii.a2b_base64(str(text), strict_mode=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data or not isinstance(text, str) or _to_base64(data) != text:
        message = "has a field that is not base64"
        raise ValueError(message)
    return data
