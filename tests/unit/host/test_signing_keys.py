"""Keys that sign receipts, and what a fleet's CA says of them."""

from __future__ import annotations

import pytest

from stoker.core.errors import BadInput, NotVerified
from stoker.host.certificates import (
    DAY_S,
    Signer,
    certified_key,
    has_signed,
    key_id,
    make_ca,
    make_csr,
    make_key,
    make_signing_key,
    public_pem_of,
    read_certificate,
    read_signing_certificate,
    sign_bytes,
)

NOW_S = 1_800_000_000.0
CA = make_ca("stoker fleet of desk", now_s=NOW_S)
KEY = make_signing_key()
PUBLIC = public_pem_of(KEY)


def test_a_key_verifies_what_it_signed_and_nothing_else():
    signature = sign_bytes(KEY, b"contents")
    assert has_signed(PUBLIC, signature, b"contents")
    assert not has_signed(PUBLIC, signature, b"content")
    assert not has_signed(public_pem_of(make_signing_key()), signature, b"contents")
    assert len(key_id(PUBLIC)) == 64


@pytest.mark.parametrize("pem", ["", "no key", make_key(), PUBLIC])
def test_only_an_ed25519_key_signs(pem: str):
    with pytest.raises(BadInput):
        sign_bytes(pem, b"")


@pytest.mark.parametrize("pem", ["", "no key", CA.certificate_pem])
def test_only_an_ed25519_key_verifies(pem: str):
    with pytest.raises(BadInput):
        has_signed(pem, b"", b"")


def test_a_ca_certifies_a_key_under_its_owners_name():
    made = Signer(CA).receipts(PUBLIC, "ann@desk", now_s=NOW_S).certificate_pem
    found = read_signing_certificate(made, CA.certificate_pem, now_s=NOW_S + 1000 * DAY_S)
    assert (found.name, found.public_pem) == ("ann@desk", PUBLIC)
    assert certified_key(made) == PUBLIC


def test_such_a_certificate_is_that_of_no_machine():
    made = Signer(CA).receipts(PUBLIC, "desk", now_s=NOW_S).certificate_pem
    assert read_certificate(made).machine == ""


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 101, "ä"])
def test_a_name_that_could_be_misread_is_refused(name: str):
    with pytest.raises(BadInput):
        Signer(CA).receipts(PUBLIC, name, now_s=NOW_S)


def test_a_certificate_of_another_ca_is_refused():
    made = Signer(make_ca("other", now_s=NOW_S)).receipts(PUBLIC, "ann", now_s=NOW_S).certificate_pem
    with pytest.raises(NotVerified, match="another CA"):
        read_signing_certificate(made, CA.certificate_pem, now_s=NOW_S)


def test_an_expired_certificate_and_an_expired_ca_are_refused():
    made = Signer(CA).receipts(PUBLIC, "ann", now_s=NOW_S, life_s=DAY_S).certificate_pem
    with pytest.raises(NotVerified, match="expires on 2027-01-16"):
        read_signing_certificate(made, CA.certificate_pem, now_s=NOW_S + 2 * DAY_S)
    short = make_ca("short", now_s=NOW_S, life_s=DAY_S)
    made = Signer(short).receipts(PUBLIC, "ann", now_s=NOW_S).certificate_pem
    with pytest.raises(NotVerified, match="not valid now"):
        read_signing_certificate(made, short.certificate_pem, now_s=NOW_S + 2 * DAY_S)


def test_a_machines_certificate_signs_no_receipts():
    made = Signer(CA).machine(make_csr(make_key(), "lab1"), "lab1", now_s=NOW_S).certificate_pem
    for pem in (made, CA.certificate_pem, "nothing"):
        with pytest.raises(NotVerified):
            read_signing_certificate(pem, CA.certificate_pem, now_s=NOW_S)
