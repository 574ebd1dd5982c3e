"""What a code proves: the same on both sides, nothing without the secret, and never more than one certificate."""

from __future__ import annotations

import base64
import os
import ssl

import pytest

from stoker.host.certificates import make_ca
from stoker.protocol import enrolment_messages
from stoker.protocol.enrolment_messages import (
    ALPHABET,
    SEALED_BYTES,
    JoinCode,
    NotACode,
    NotOneCertificate,
    begin_proof,
    fingerprint,
    finish_proof,
    is_same_proof,
    join_key,
    make_code,
    make_invite_id,
    one_certificate,
    read_code,
    seal,
    unseal,
)

CODE = JoinCode(id="K7", secret="QDM2XW9HCE")
KEY = b"k" * 32
SAID = {"nonce": "01" * 16, "server_nonce": "02" * 16}
CSR = "-----BEGIN CERTIFICATE REQUEST-----\nMIIB\n-----END CERTIFICATE REQUEST-----\n"


@pytest.fixture(scope="module")
def ca_pem() -> str:
    return make_ca("a fleet", now_s=1_800_000_000.0).certificate_pem


@pytest.fixture(scope="module")
def other_pem() -> str:
    return make_ca("another fleet", now_s=1_800_000_000.0).certificate_pem


def test_a_code_is_shown_in_groups_of_four():
    assert CODE.text() == "K7QD-M2XW-9HCE"


@pytest.mark.parametrize(
    "typed", ["K7QD-M2XW-9HCE", "k7qd-m2xw-9hce", "K7QDM2XW9HCE", " k7qd m2xw 9hce ", "K-7-QDM2XW9HCE"], ids=range(5)
)
def test_a_code_is_read_however_it_is_typed(typed):
    assert read_code(typed) == CODE


def test_letters_that_look_like_digits_are_read_as_those():
    assert read_code("OIL0-1111-0000").id + read_code("OIL0-1111-0000").secret == "011011110000"


@pytest.mark.parametrize(
    ("typed", "why"),
    [("", "12 letters, this one 0"), ("K7QD-M2XW", "this one 8"), ("K7QD-M2XW-9HCEE", "13"), ("K7QD-M2XW-9HC!", "'!'")],
    ids=["none", "short", "long", "strange"],
)
def test_what_is_no_code_is_refused_with_the_reason(typed, why):
    with pytest.raises(NotACode, match=why):
        read_code(typed)


def test_a_code_that_is_made_is_read_back_and_every_secret_bit_counts():
    seen = {make_code("K7", (1 << bit).to_bytes(8, "big")).secret for bit in range(50)}
    assert len(seen) == 50
    for _ in range(20):
        code = make_code(make_invite_id(os.urandom(2)), os.urandom(8))
        assert read_code(code.text().lower()) == code
        assert set(code.id + code.secret) <= set(ALPHABET)


def test_too_few_random_bytes_make_no_secret():
    with pytest.raises(ValueError, match="not enough"):
        make_code("K7", bytes(6))
    with pytest.raises(ValueError, match="not an invitation id"):
        make_code("K7Q", bytes(8))


def test_a_key_depends_on_all_of_the_code():
    keys = {
        join_key(code) for code in (CODE, JoinCode(id="K8", secret=CODE.secret), JoinCode(id="K7", secret="Q" * 10))
    }
    assert len(keys) == 3
    assert {len(key) for key in keys} == {32}


def test_the_key_and_the_proofs_never_change(ca_pem, monkeypatch):
    # Machines of one version join coordinators of the next: these bytes are the protocol.
    assert join_key(CODE).hex() == "e90a64c51c371ba2fa24364e753b2a8bf67f75c298b4f7c5ed69b6f2e3e2b4b5"
    monkeypatch.setattr(enrolment_messages, "one_certificate", lambda _pem: b"a certificate")
    proof = begin_proof(KEY, **SAID, ca_pem="", role="worker", name="")
    assert proof == "3e78c2f0e1fcb59b5d9e5d3af9be324cfcb2d8ef806410abc2dc7fde201c6f7e"
    assert (
        finish_proof(KEY, **SAID, name="lab1", csr_pem=CSR)
        == "1b94321122ec31a35edb2257e89a6a955d38a6e49b4a092d4d3abdd313aa5099"
    )


def test_the_first_proof_covers_all_that_it_stands_for(ca_pem, other_pem):
    said = {**SAID, "ca_pem": ca_pem, "role": "worker", "name": ""}
    proof = begin_proof(KEY, **said)
    assert is_same_proof(proof, begin_proof(KEY, **said))
    others = [
        begin_proof(b"x" * 32, **said),
        *(
            begin_proof(KEY, **{**said, **change})
            for change in (
                {"nonce": "03" * 16},
                {"server_nonce": "03" * 16},
                {"ca_pem": other_pem},
                {"role": "admin"},
                {"name": "lab1"},
                {"nonce": SAID["server_nonce"], "server_nonce": SAID["nonce"]},
            )
        ),
    ]
    assert not any(is_same_proof(proof, other) for other in others)


def test_the_second_proof_covers_all_that_it_stands_for():
    said = {**SAID, "name": "lab1", "csr_pem": CSR}
    proof = finish_proof(KEY, **said)
    changes = ({"nonce": "03" * 16}, {"server_nonce": "03" * 16}, {"name": "lab2"}, {"csr_pem": CSR + "\n"})
    others = [finish_proof(b"x" * 32, **said), *(finish_proof(KEY, **{**said, **change}) for change in changes)]
    assert not any(is_same_proof(proof, other) for other in others)


def test_one_proof_is_never_the_other(ca_pem):
    # Whoever hears the coordinator's proof can't send it back as their own.
    assert begin_proof(KEY, **SAID, ca_pem=ca_pem, role="worker", name="") != finish_proof(
        KEY, **SAID, name="worker", csr_pem=""
    )


def test_one_certificate_gives_its_own_bytes(ca_pem):
    der = one_certificate(ca_pem)
    assert der == ssl.PEM_cert_to_DER_cert(ca_pem)
    assert one_certificate(f"\n{ca_pem}\r\n") == der
    assert len(fingerprint(ca_pem)) == 64


def test_a_second_certificate_behind_the_first_is_refused(ca_pem, other_pem):
    # Python's own reader takes the first and passes over the second; OpenSSL would trust both.
    with pytest.raises(NotOneCertificate):
        one_certificate(ca_pem + other_pem)
    with pytest.raises(NotOneCertificate):
        one_certificate(other_pem + ca_pem)


@pytest.mark.parametrize("what", ["", "text", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"], ids=range(3))
def test_what_is_no_certificate_is_refused(what):
    with pytest.raises(NotOneCertificate):
        one_certificate(what)


def test_letters_that_a_lenient_reader_would_skip_are_refused(ca_pem):
    head, body, end = ca_pem.partition("\n")[0], "".join(ca_pem.splitlines()[1:-1]), ca_pem.splitlines()[-1]
    assert base64.b64decode(f"{body[:8]}!{body[8:]}")
    for spoilt in (f"{body[:8]}!{body[8:]}", f"{body}AAAA=AAAA", f"{body}="):
        with pytest.raises(NotOneCertificate):
            one_certificate(f"{head}\n{spoilt}\n{end}\n")


def test_what_is_sealed_is_read_with_the_same_key_and_nonces_alone():
    text = '{"role":"submit","name":"anna"}'
    sealed = seal(KEY, text, **SAID)
    assert unseal(KEY, sealed, **SAID) == text
    assert text.encode().hex() not in sealed
    assert unseal(b"x" * 32, sealed, **SAID) is None
    for change in ({"nonce": "03" * 16}, {"server_nonce": "03" * 16}):
        assert unseal(KEY, sealed, **{**SAID, **change}) is None
    for at in (0, 100, len(sealed) - 1):
        other = sealed[:at] + ("0" if sealed[at] != "0" else "1") + sealed[at + 1 :]
        assert unseal(KEY, other, **SAID) is None
    assert unseal(KEY, "", **SAID) is None


def test_the_length_of_what_is_sealed_tells_nothing():
    assert len({len(seal(KEY, "x" * size, **SAID)) for size in (0, 1, 200, SEALED_BYTES - 2)}) == 1
    with pytest.raises(ValueError, match="too long"):
        seal(KEY, "x" * (SEALED_BYTES - 1), **SAID)
