"""The CA and the server's certificate on a real disk."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.coordinator.auth import (
    Enrolment,
    FleetCa,
    IssuedCertificate,
    Revocations,
    ServerCertificate,
    TrustState,
    open_ca,
)
from stoker.core.clock import FakeClock
from stoker.core.errors import Damaged, LocalFile
from stoker.host.certificates import is_signed_by, make_csr, make_key, names_in

DAY_S = 86_400.0


def opened(folder: Path, clock: FakeClock | None = None) -> FleetCa:
    return open_ca(str(folder / "authority"), fleet="desk", now_s=(clock or FakeClock()).wall_s())


def certificate_in(path: str) -> str:
    text = Path(path).read_text()
    return text[text.index("-----BEGIN CERTIFICATE") :]


def test_the_ca_is_made_once_for_its_owner_alone(tmp_path: Path):
    first, again = opened(tmp_path), opened(tmp_path)
    assert first.certificate_pem == again.certificate_pem
    assert first.derive("a", "b") == again.derive("a", "b")
    assert first.derive("a", "b") != first.derive("a", "c") != first.derive("ab")
    assert stat.S_IMODE(os.stat(tmp_path / "authority" / "ca.key").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "authority").st_mode) == 0o700
    assert "PRIVATE" not in Path(first.certificate_file).read_text()


def test_of_several_that_start_together_all_have_the_same_ca(tmp_path: Path):
    with ThreadPoolExecutor(8) as threads:
        found = {ca.certificate_pem for ca in threads.map(lambda _: opened(tmp_path), range(8))}
    assert len(found) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int):
    opened(tmp_path)
    (tmp_path / "authority" / "ca.key").chmod(mode)
    with pytest.raises(LocalFile, match="others may read") as caught:
        opened(tmp_path)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:200],
        lambda text: text.replace("A", "B"),
        lambda text: text.partition("-----BEGIN CERTIFICATE")[0],
        lambda text: "\0" * len(text),
        lambda text: text.encode("utf-16"),
    ],
    ids=["empty", "cut", "changed", "no certificate", "zeros", "other bytes"],
)
def test_a_damaged_ca_is_an_error_and_nothing_takes_its_place(tmp_path: Path, damage):
    opened(tmp_path)
    path = tmp_path / "authority" / "ca.key"
    made = damage(path.read_text())
    path.write_bytes(made.encode() if isinstance(made, str) else made)
    before = path.read_bytes()
    with pytest.raises(Damaged) as caught:
        opened(tmp_path)
    assert "backup" in caught.value.hint
    assert path.read_bytes() == before


def test_a_key_of_another_ca_is_damage(tmp_path: Path):
    one, two = opened(tmp_path / "one"), opened(tmp_path / "two")
    mixed = (tmp_path / "one" / "authority" / "ca.key").read_text().partition("-----BEGIN CERTIFICATE")[0]
    path = tmp_path / "two" / "authority" / "ca.key"
    path.write_text(mixed + two.certificate_pem)
    assert one.certificate_pem != two.certificate_pem
    with pytest.raises(Damaged, match="does not belong"):
        opened(tmp_path / "two")


def test_the_public_half_is_written_again_where_it_is_gone_or_another(tmp_path: Path):
    ca = opened(tmp_path)
    Path(ca.certificate_file).write_text("another")
    opened(tmp_path)
    assert Path(ca.certificate_file).read_text() == ca.certificate_pem


def test_the_servers_certificate_is_made_renewed_and_follows_its_names(tmp_path: Path):
    clock, names = FakeClock(), ["desk.local", "192.0.2.7"]
    server = ServerCertificate(opened(tmp_path, clock), lambda: names, clock=clock, life_s=90 * DAY_S)
    assert server.ensure()
    assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600
    assert names_in(certificate_in(server.path)) == set(names)
    clock.advance(59 * DAY_S)
    assert not server.ensure()
    clock.advance(2 * DAY_S)
    assert server.ensure()
    names.append("192.0.2.8")
    assert server.ensure()
    assert "192.0.2.8" in names_in(certificate_in(server.path))
    names.remove("192.0.2.7")
    assert not server.ensure()


def test_the_certificate_of_an_allocations_worker_lasts_until_its_end(tmp_path: Path):
    enrolment = Enrolment(ca=opened(tmp_path), names=lambda: (), life_s=DAY_S)
    now_s, csr = FakeClock().wall_s(), make_csr(make_key(), "a100-7f3a2c")

    def days(until_s: float | None) -> float:
        _, issued = enrolment.sign(csr, "a100-7f3a2c", now_s=now_s, until_s=until_s)
        return (issued.expires_s - now_s) / DAY_S

    assert days(None) == pytest.approx(1, abs=0.01)
    assert days(now_s + 4 * DAY_S) == pytest.approx(4, abs=0.01), "it is not renewed"
    assert days(now_s + 40 * DAY_S) == pytest.approx(30, abs=0.01)


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n", "\0"])
def test_a_servers_certificate_that_is_none_is_made_anew(tmp_path: Path, text: str):
    clock = FakeClock()
    server = ServerCertificate(opened(tmp_path, clock), lambda: ["desk.local"], clock=clock)
    server.ensure()
    Path(server.path).write_text(text)
    assert server.ensure()


def test_a_servers_certificate_of_another_ca_is_made_anew(tmp_path: Path):
    clock = FakeClock()
    old = ServerCertificate(opened(tmp_path / "old", clock), lambda: ["desk.local"], clock=clock)
    old.ensure()
    ca = opened(tmp_path / "new", clock)
    new = ServerCertificate(ca, lambda: ["desk.local"], clock=clock)
    Path(new.path).write_bytes(Path(old.path).read_bytes())
    assert new.ensure()
    assert is_signed_by(certificate_in(new.path), ca.certificate_pem)


def test_revocations_of_allocations_certificates_are_dropped_a_month_after_they_expired(tmp_path: Path):
    path = tmp_path / "authority" / "revoked"
    kept = IssuedCertificate(serial="a" * 40, name="lab1", expires_s=10.0)
    brief = [IssuedCertificate(serial=f"{number:040x}", name="a100-1", expires_s=1000.0) for number in range(1000)]
    revoked = Revocations(str(path))
    revoked.add_certificates([kept])
    revoked.add_certificates(brief, are_brief=True)
    standing = TrustState()
    standing.certificates = {one.serial: one for one in (kept, *brief)}
    revoked.apply(standing, 2000.0)
    assert all(one.revoked_s is not None for one in standing.certificates.values())
    assert path.read_text().count("brief ") == 1000
    revoked.apply(standing, 1001.0 + 30 * 86400.0)
    assert path.read_text().split() == ["certificate", "a" * 40]
    assert path.stat().st_mode & 0o777 == 0o600
