"""A certificate is renewed at two thirds of its life, in one step, and a coordinator that is away is asked again."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker.api.app_parts import AppSettings
from stoker.app.app import App
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.errors import Damaged, LocalFile
from stoker.host.certificates import read_certificate
from stoker.protocol.client import FleetClient
from stoker.protocol.discovery import Membership
from stoker.protocol.transport import RequestTimeouts
from stoker.worker.certificate_renewal import (
    NOT_RENEWED,
    RENEWED,
    CertificateRenewal,
    CertificateTerm,
    read_term,
    renew,
    wait_s,
)
from stoker.worker.enrolment import begin, finish
from tests.servers.door import Door, refused

NOW_S = SystemClock().wall_s()
DAY_S = 86400.0


class Scene:
    """A machine that has joined, and the coordinator that it asks."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.house = App(AppSettings(home=str(folder / "home"), folder=str(folder), environment={}))
        self.door = Door(folder, **more)
        proven = begin(self.door.invitation(), self.house)
        self.member: Membership = finish(proven, "lab1", self.house, state=self.house.settings.state)
        self.transport = self.house.open_transport(5.0, fleet=self.member.identity)
        self.line = FleetClient(
            self.transport, self.door.url, clock=SystemClock(), patience=RequestTimeouts(answer_s=5.0, retry_s=0.0)
        )
        # Now, and not when tests were collected: the certificate is written now.
        self.clock = FakeClock(SystemClock().wall_s())
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.has_told = threading.Event()

    def renewing(self) -> CertificateRenewal:
        return CertificateRenewal(
            self.line,
            name="lab1",
            certificate_file=self.member.certificate_file,
            clock=self.clock,
            tell=self._tell,
        )

    @property
    def serial(self) -> str:
        return read_certificate(Path(self.member.certificate_file).read_text().partition("-----BEGIN PR")[0]).serial

    def close(self) -> None:
        self.transport.close()
        self.door.close()

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        self.told.append((kind, fields))
        self.has_told.set()


@pytest.fixture
def scene(tmp_path):
    with closing(Scene(tmp_path)) as made:
        yield made


def test_a_certificate_is_renewed_at_two_thirds_of_its_life():
    term = CertificateTerm(written_s=NOW_S, ends_s=NOW_S + 30 * DAY_S)
    assert term.renew_at_s == NOW_S + 20 * DAY_S
    assert wait_s(term, now_s=NOW_S + 20 * DAY_S) == 0.0
    assert wait_s(term, now_s=NOW_S + 20 * DAY_S - 5) == 5.0
    # Not all of it in one go: the machine may sleep, or its clock be set.
    assert wait_s(term, now_s=NOW_S) == 900.0


def test_one_that_ended_while_the_machine_slept_is_asked_for_at_once():
    assert wait_s(CertificateTerm(written_s=NOW_S, ends_s=NOW_S - 10), now_s=NOW_S) == 0.0


def test_the_pause_after_asking_in_vain_fits_the_life():
    assert CertificateTerm(written_s=NOW_S, ends_s=NOW_S + 30 * DAY_S).pause_s == 3600.0
    assert CertificateTerm(written_s=NOW_S, ends_s=NOW_S + 1000).pause_s == 10.0
    assert CertificateTerm(written_s=NOW_S, ends_s=NOW_S).pause_s == 1.0


def test_the_term_counts_from_when_it_was_written_not_from_when_it_is_valid(scene):
    # Certificates hold from a day before: one of a short life would be renewed for ever.
    term = read_term(scene.member.certificate_file)
    assert abs(term.written_s - scene.clock.wall_s()) < 600
    assert abs(term.ends_s - scene.door.now_s - 30 * DAY_S) < 600


def test_a_fresh_certificate_is_left_alone(scene):
    assert scene.renewing().act() == 900.0
    assert scene.door.renewals == []


def test_a_renewed_certificate_has_another_key_and_the_old_one_showed_who_asks(scene):
    before, old = Path(scene.member.certificate_file).read_text(), scene.serial
    scene.clock.advance(20 * DAY_S + 600)
    renewing = scene.renewing()
    assert renewing.act() == 1.0
    assert scene.door.renewals == [old]
    assert scene.serial != old
    after = Path(scene.member.certificate_file).read_text()
    assert before.partition("-----BEGIN PRIVATE")[2] != after.partition("-----BEGIN PRIVATE")[2]
    assert os.stat(scene.member.certificate_file).st_mode & 0o777 == 0o600
    assert [kind for kind, _ in scene.told] == [RENEWED]


def test_the_line_that_stands_asks_with_the_new_one_next(scene):
    first = scene.serial
    renew("lab1", scene.member.certificate_file, scene.line)
    second = scene.serial
    renew("lab1", scene.member.certificate_file, scene.line)
    assert scene.door.renewals == [first, second]


def test_trouble_is_told_once_and_asked_about_again(scene):
    scene.clock.advance(25 * DAY_S)
    scene.door.change = lambda _answer: refused("lab1 was forgotten", reason="revoked")
    renewing, old = scene.renewing(), scene.serial
    assert renewing.act() == renewing.act() == 3600.0
    assert [(kind, fields["why"]) for kind, fields in scene.told] == [(NOT_RENEWED, "lab1 was forgotten")]
    scene.door.change = lambda answer: answer
    renewing.act()
    assert [kind for kind, _ in scene.told] == [NOT_RENEWED, RENEWED]
    assert scene.serial != old


def test_a_coordinator_that_is_away_leaves_the_old_one_in_place(scene):
    scene.clock.advance(25 * DAY_S)
    old = scene.serial
    scene.door.close()
    assert scene.renewing().act() == 3600.0
    assert scene.serial == old
    assert [kind for kind, _ in scene.told] == [NOT_RENEWED]


def test_a_file_that_is_gone_or_spoilt_is_told(scene, tmp_path):
    Path(scene.member.certificate_file).write_text("nothing")
    with pytest.raises(Damaged):
        read_term(scene.member.certificate_file)
    os.unlink(scene.member.certificate_file)
    with pytest.raises(LocalFile):
        read_term(scene.member.certificate_file)
    assert scene.renewing().act() == 3600.0
    assert [kind for kind, _ in scene.told] == [NOT_RENEWED]


def test_it_looks_by_itself_until_it_is_closed(scene):
    scene.clock.advance(25 * DAY_S)
    renewing = scene.renewing()
    renewing.start()
    try:
        assert scene.has_told.wait(30.0)
    finally:
        renewing.close()
    assert scene.told[0][0] == RENEWED
