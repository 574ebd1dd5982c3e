"""Statements are read strictly, and what was changed in them is noticed."""

from __future__ import annotations

import json

import pytest

from stoker.core.errors import NotVerified
from stoker.core.jsontext import loads_strict
from stoker.store.statements import (
    IN_TOTO,
    PROVENANCE,
    Envelope,
    Signature,
    Statement,
    Subject,
    is_envelope,
    parse_envelope,
    parse_statement,
    pre_authentication,
)

STATEMENT = Statement(
    subject=(Subject(name="model.bin", digest={"sha256": "ab" * 32}),),
    predicate_type=PROVENANCE,
    predicate={"stoker_metrics": {"loss": 0.25, "worst": float("nan"), "$odd": 1e-07}},
)
ENVELOPE = Envelope(
    payload_type=IN_TOTO, payload=STATEMENT.to_bytes(), signatures=(Signature(sig=bytes(range(64)), keyid="ab"),)
)


def flipped(data: bytes, bits: tuple[int, ...] = (1, 4, 32, 128)) -> list[bytes]:
    """Return the data with a bit changed, at every byte."""
    return [data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] for at in range(len(data)) for bit in bits]


def test_a_statement_is_read_back_on_one_line_or_many():
    for indent in (None, 2):
        read = parse_statement(STATEMENT.to_bytes(indent=indent), "here")
        assert repr(read) == repr(STATEMENT)


def test_a_statement_is_one_of_in_toto():
    body = json.loads(STATEMENT.to_bytes())
    assert body["_type"] == "https://in-toto.io/Statement/v1"
    assert (body["subject"], body["predicateType"]) == (
        [{"name": "model.bin", "digest": {"sha256": "ab" * 32}}],
        "https://slsa.dev/provenance/v1",
    )


def test_no_flipped_byte_changes_what_a_statement_says_unnoticed():
    for changed in flipped(STATEMENT.to_bytes()):
        try:
            read = parse_statement(changed, "here")
        except NotVerified:
            continue
        # Another spelling of the same: 1E-07.
        assert repr(read) == repr(STATEMENT)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is not JSON"),
        (b"[]", "is not a receipt"),
        (STATEMENT.to_bytes()[:-9], "is not JSON"),
        (b'{"a":1,"a":2}', "the key 'a' is given twice"),
        (b'{"a":1e400}', "beyond the largest number"),
        (b'{"a":-' + b"9" * 309 + b"}", "beyond the largest number"),
        (b'{"a":' + b"9" * 4301 + b"}", "a number of 4,301 digits is too long"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":' + b"[" * 80 + b"]" * 80 + b"}", "nested"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"_type":"https://example.org/other"}', "is not a statement"),
        (STATEMENT.to_bytes().replace(b'receipt": 2', b'receipt": 3'), "has format 3"),
        (STATEMENT.to_bytes().replace(b"0.25", b"0.26"), "does not match its own checksum"),
        (STATEMENT.to_bytes().replace(b'"subject"', b'"subjekt"'), "does not match its own checksum"),
        (b"\xff\xfe{}", "is not JSON"),
    ],
)
def test_what_is_no_statement_is_told_as_that(data: bytes, why: str):
    with pytest.raises(NotVerified, match=why):
        parse_statement(data, "here")


def test_a_file_beyond_its_bound_is_not_read():
    with pytest.raises(ValueError, match="more than 10 bytes"):
        loads_strict(b"[1,2,3,4,5,6]", most_bytes=10)


def test_strict_reading_keeps_numbers_that_json_has_no_word_for():
    assert loads_strict(b'{"a":{"$float":"inf"},"$$b":1}', most_bytes=100) == {"a": float("inf"), "$b": 1}


def test_a_signature_covers_type_and_bytes_as_dsse_says():
    assert (
        pre_authentication("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_an_envelope_is_read_back_and_recognised():
    data = ENVELOPE.to_bytes()
    assert is_envelope(data)
    assert not is_envelope(STATEMENT.to_bytes())
    assert parse_envelope(data, "here") == ENVELOPE


def test_a_flipped_byte_of_an_envelope_is_another_envelope_or_none():
    for changed in flipped(ENVELOPE.to_bytes()):
        try:
            read = parse_envelope(changed, "here")
        except NotVerified:
            continue
        assert read != ENVELOPE


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"vnd.in-toto+json", b"vnd.other+json", "holds no receipt"),
        (b'"signatures"', b'"signature"', "missing or unknown"),
        (b'"keyid"', b'"extra":1,"keyid"', "missing or unknown"),
        (b'"keyid":"ab"', b'"keyid":"ab","keyid":"cd"', "given twice"),
        (b'"keyid":"ab"', b'"keyid":7', "not a text"),
        (b'"sig":"', b'"sig":" ', "not base64"),
        (b'"sig":"A', b'"sig":["A', "is not JSON"),
    ],
)
def test_what_is_no_envelope_is_refused(old: bytes, new: bytes, why: str):
    with pytest.raises(NotVerified, match=why):
        parse_envelope(ENVELOPE.to_bytes().replace(old, new), "here")


def test_base64_that_is_spelt_otherwise_is_refused():
    padded = Envelope(payload_type=IN_TOTO, payload=b"x", signatures=ENVELOPE.signatures).to_bytes()
    assert b'"eA=="' in padded
    with pytest.raises(NotVerified, match="not base64"):
        parse_envelope(padded.replace(b'"eA=="', b'"eB=="'), "here")
