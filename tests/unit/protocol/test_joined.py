"""What joining leaves behind: for its owner alone, whole or as it was before, and never pointing elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stoker.core.errors import Damaged, LocalFile
from stoker.core.frozen import changed
from stoker.core.leases import Role
from stoker.host.certificates import KeyPair, Signer, make_ca, make_csr, make_key
from stoker.host.durable import write_file
from stoker.protocol.discovery import Membership, MembershipKind, read_joined, write_certificate, write_joined
from stoker.protocol.enrolment_messages import fingerprint

NOW_S = 1_800_000_000.0
URL = "https://desk.local:7717"


@pytest.fixture(scope="module")
def ca() -> KeyPair:
    return make_ca("a fleet", now_s=NOW_S)


def _machine(ca: KeyPair, name: str = "lab1") -> tuple[str, str]:
    key_pem = make_key()
    return Signer(ca).machine(make_csr(key_pem, name), name, now_s=NOW_S).certificate_pem, key_pem


def _write(state: str, ca: KeyPair, role: Role = Role.WORKER) -> Membership:
    certificate_pem, key_pem = _machine(ca) if role is Role.WORKER else ("", "")
    member = Membership(
        url=URL,
        name="lab1",
        role=role,
        fingerprint=fingerprint(ca.certificate_pem),
        joined_s=NOW_S,
        expires_s=NOW_S + 1000,
    )
    return write_joined(
        state,
        member,
        ca_pem=ca.certificate_pem,
        certificate_pem=certificate_pem,
        key_pem=key_pem,
        token="" if certificate_pem else "secret-token",
    )


def _modes(state: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (state / "joined").iterdir()}


def test_nothing_was_joined_where_nothing_lies(tmp_path):
    assert read_joined(str(tmp_path), MembershipKind.WORKER) is None


def test_a_machine_finds_again_what_it_was_given(tmp_path, ca):
    made = _write(str(tmp_path), ca)
    found = read_joined(str(tmp_path), MembershipKind.WORKER)
    assert found == made
    assert found is not None
    assert (found.url, found.name, found.role, found.expires_s) == (URL, "lab1", Role.WORKER, NOW_S + 1000)
    assert Path(found.ca_file).read_text() == ca.certificate_pem
    assert found.token() == ""
    assert found.identity.certificate_file == found.certificate_file
    assert read_joined(str(tmp_path), MembershipKind.OPERATOR) is None


def test_a_person_finds_their_token_again(tmp_path, ca):
    made = _write(str(tmp_path), ca, Role.SUBMIT)
    assert made.side is MembershipKind.OPERATOR
    assert made.certificate_file == ""
    found = read_joined(str(tmp_path), MembershipKind.OPERATOR)
    assert found is not None
    assert found.token() == "secret-token"


@pytest.mark.parametrize("role", [Role.WORKER, Role.ADMIN])
def test_nobody_else_may_read_any_of_it_whatever_the_umask(tmp_path, ca, role):
    before = os.umask(0)
    try:
        _write(str(tmp_path), ca, role)
    finally:
        os.umask(before)
    assert _modes(tmp_path) == {0o600}
    assert stat.S_IMODE((tmp_path / "joined").stat().st_mode) == 0o700


@pytest.mark.parametrize(("role", "side"), [(Role.WORKER, MembershipKind.WORKER), (Role.READ, MembershipKind.OPERATOR)])
def test_a_secret_that_others_may_read_is_refused(tmp_path, ca, role, side):
    made = _write(str(tmp_path), ca, role)
    secret = made.certificate_file or made.token_file
    os.chmod(secret, 0o640)
    with pytest.raises(LocalFile, match="others may read") as caught:
        read_joined(str(tmp_path), side)
    assert caught.value.hint == f"chmod 600 {secret}"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"url": "x"}', b'{"url": 1, "role": "king"}'], ids=range(5))
def test_a_damaged_record_is_said_to_be_one(tmp_path, text):
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined" / "worker.json").write_bytes(text)
    with pytest.raises(Damaged, match="not a valid record"):
        read_joined(str(tmp_path), MembershipKind.WORKER)


def test_a_record_can_point_nowhere_else(tmp_path, ca):
    made = _write(str(tmp_path), ca, Role.SUBMIT)
    record = tmp_path / "joined" / "operator.json"
    name = os.path.basename(made.token_file)
    record.write_text(record.read_text().replace(f'"{name}"', f'"../../../elsewhere/{name}"'))
    found = read_joined(str(tmp_path), MembershipKind.OPERATOR)
    assert found is not None
    assert found.token_file == made.token_file


def test_a_home_may_be_moved(tmp_path, ca):
    (tmp_path / "one").mkdir()
    _write(str(tmp_path / "one"), ca)
    (tmp_path / "one").rename(tmp_path / "two")
    found = read_joined(str(tmp_path / "two"), MembershipKind.WORKER)
    assert found is not None
    assert Path(found.certificate_file).is_file()


def test_joining_anew_leaves_nothing_of_the_fleet_before(tmp_path, ca):
    _write(str(tmp_path), ca, Role.SUBMIT)
    first = _write(str(tmp_path), ca)
    second = _write(str(tmp_path), make_ca("another", now_s=NOW_S))
    assert second.ca_file != first.ca_file
    assert not Path(first.ca_file).exists()
    assert not Path(first.certificate_file).exists()
    assert read_joined(str(tmp_path), MembershipKind.WORKER) == second
    assert read_joined(str(tmp_path), MembershipKind.OPERATOR) is not None


def test_a_join_that_is_cut_off_leaves_what_was_there_before(tmp_path, ca, monkeypatch):
    first = _write(str(tmp_path), ca)

    def cut(path: str, data: bytes, *, mode: int) -> None:
        if path.endswith(".json"):
            raise LocalFile("cut off")
        write_file(path, data, mode=mode)

    monkeypatch.setattr("stoker.protocol.discovery.write_file", cut)
    with pytest.raises(LocalFile):
        _write(str(tmp_path), make_ca("another", now_s=NOW_S))
    assert read_joined(str(tmp_path), MembershipKind.WORKER) == first
    assert Path(first.ca_file).read_text() == ca.certificate_pem


def test_a_certificate_for_another_key_takes_no_place(tmp_path, ca):
    made = _write(str(tmp_path), ca)
    before = Path(made.certificate_file).read_bytes()
    certificate_pem, _ = _machine(ca)
    with pytest.raises(Damaged, match="does not match this machine's key"):
        write_certificate(made.certificate_file, certificate_pem, make_key())
    assert Path(made.certificate_file).read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "joined").iterdir() if "trial" in path.name) == []


def test_a_token_file_that_is_gone_is_said_to_be(tmp_path, ca):
    made = _write(str(tmp_path), ca, Role.SUBMIT)
    os.unlink(made.token_file)
    with pytest.raises(LocalFile, match="can't be read"):
        read_joined(str(tmp_path), MembershipKind.OPERATOR)
    with pytest.raises(LocalFile, match="can't be read"):
        changed(made, name="x").token()
