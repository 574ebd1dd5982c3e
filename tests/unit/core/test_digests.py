import hashlib

import pytest

from stoker.core.digests import NotEncodable, digest_bytes, digest_encoded, digest_value, encode, is_digest


def test_a_blob_is_called_what_other_tools_call_it():
    assert digest_bytes(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_bytes(b"") == hashlib.sha256().hexdigest()


def test_the_domain_keeps_equal_values_apart():
    digests = {digest_value(domain, [1]) for domain in ("key", "tree", "job")} | {digest_bytes(encode([1]))}
    assert len(digests) == 4


def test_a_value_and_its_bytes_have_one_digest():
    assert digest_value("key", {"a": 1}) == digest_encoded("key", encode({"a": 1}))


def test_a_value_without_canonical_form_has_no_digest():
    with pytest.raises(NotEncodable):
        digest_value("key", {1})


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("0" * 64, True),
        (digest_bytes(b"a"), True),
        ("", False),
        ("0" * 63, False),
        ("0" * 65, False),
        ("A" * 64, False),
        ("g" * 64, False),
        ("0" * 63 + "\n", False),
        ("٣" * 64, False),
        ("../" * 21 + "0", False),
    ],
    ids=ascii,
)
def test_only_64_lower_case_hex_digits_have_the_form_of_a_digest(text, is_one):
    assert is_digest(text) is is_one
