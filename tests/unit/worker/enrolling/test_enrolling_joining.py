"""Joining: what the code proves, what is sent to whom, and what every stranger in between gets: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.api.app_parts import AppSettings
from stoker.app.app import App
from stoker.core.clock import SystemClock
from stoker.core.errors import BadAnswer, Damaged, Forbidden, NoCoordinator, Refused, StokerError
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import Role
from stoker.host.certificates import make_ca, read_certificate
from stoker.protocol.discovery import Membership, MembershipKind, read_joined
from stoker.protocol.enrolment_messages import JoinCode, fingerprint
from stoker.worker import enrolment
from stoker.worker.enrolment import Invitation, VerifiedCoordinator, begin, finish, resume
from tests.servers.door import Door, refused
from tests.servers.little import LittleServer, Said

NOW_S = SystemClock().wall_s()
DAY_S = 86400.0


@pytest.fixture
def house(tmp_path) -> App:
    return App(AppSettings(home=str(tmp_path / "home"), folder=str(tmp_path), environment={}))


def _join(door: Door, house: App, name: str = "lab1") -> Membership:
    return finish(begin(door.invitation(), house), name, house, state=house.settings.state)


def _nothing_is_kept(house: App) -> bool:
    return not (Path(house.settings.state) / "joined").exists()


def _fails(door: Door, house: App, kind: type[StokerError]) -> StokerError:
    with pytest.raises(kind) as caught:
        _join(door, house)
    assert _nothing_is_kept(house)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_machine_joins_and_keeps_a_certificate_of_its_own_key(tmp_path, house):
    with Door(tmp_path) as door:
        member = _join(door, house)
    assert read_joined(house.settings.state, MembershipKind.WORKER) == member
    assert (member.url, member.name, member.role) == (door.url, "lab1", Role.WORKER)
    assert member.fingerprint == fingerprint(door.ca.certificate_pem)
    assert read_certificate(Path(member.certificate_file).read_text()).machine == "lab1"
    (said,) = door.finishes
    assert "PRIVATE" not in said.model_dump_json()
    assert "PRIVATE KEY" in Path(member.certificate_file).read_text()


def _cut_off(door: Door, house: App, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Join, and be killed between the answer and the first file; give what is left."""

    def die(*_: object, **__: object) -> Membership:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(enrolment, "write_joined", die)
        with pytest.raises(KeyboardInterrupt):
            _join(door, house)
    (left,) = (Path(house.settings.state) / "joined").iterdir()
    assert left.stat().st_mode & 0o777 == 0o600
    return left


def test_who_was_killed_before_the_answer_was_kept_gets_it_again_by_the_same_words(tmp_path, house, monkeypatch):
    with Door(tmp_path) as door:
        left = _cut_off(door, house, monkeypatch)
        assert door.code.secret not in left.read_text()
        member = resume(door.invitation(), "", house, state=house.settings.state)
    first, second = door.finishes
    assert first == second
    assert member == read_joined(house.settings.state, MembershipKind.WORKER)
    assert not left.exists()
    with Door(tmp_path) as door:
        assert resume(door.invitation(), "", house, state=house.settings.state) is None


def test_another_code_or_name_does_not_go_on_with_an_attempt_that_was_cut_off(tmp_path, house, monkeypatch):
    with Door(tmp_path) as door:
        _cut_off(door, house, monkeypatch)
        other = Invitation.of_code(JoinCode(id="K7", secret="0" * 10), door.url)
        assert resume(other, "", house, state=house.settings.state) is None
        assert resume(door.invitation(), "lab2", house, state=house.settings.state) is None
        assert len(door.finishes) == 1


def test_an_attempt_that_the_coordinator_does_not_take_any_more_is_begun_anew(tmp_path, house, monkeypatch):
    with Door(tmp_path) as door:
        left = _cut_off(door, house, monkeypatch)
        door.change = lambda _: refused("this attempt to join took too long", reason="slow")
        assert resume(door.invitation(), "", house, state=house.settings.state) is None
    assert not left.exists()


def test_a_person_joins_and_keeps_a_token(tmp_path, house):
    with Door(tmp_path, role=Role.SUBMIT) as door:
        member = _join(door, house, "anna-laptop")
    assert (member.side, member.certificate_file, member.token()) == (MembershipKind.OPERATOR, "", "t" * 40)
    assert door.finishes[0].csr_pem == ""


def test_the_code_never_travels(tmp_path, house):
    with Door(tmp_path) as door:
        _join(door, house)
    sent = b"".join(got.body + str(got.headers).encode() + got.target.encode() for got in door.server.asked)
    assert door.code.secret.encode() not in sent
    assert door.key.hex().encode() not in sent


def test_what_the_invitation_is_for_is_known_before_anything_is_asked(tmp_path, house):
    with Door(tmp_path, name="lab7") as door:
        proven = begin(door.invitation(), house)
    assert (proven.role, proven.name, proven.version) == (Role.WORKER, "lab7", "1.0")
    assert abs(proven.offset_s) < 60
    assert door.finishes == []
    assert _nothing_is_kept(house)


def test_a_mistyped_code_is_found_out_before_anything_is_sent(tmp_path, house):
    with Door(tmp_path) as door, pytest.raises(Forbidden, match="can't prove") as caught:
        begin(Invitation.of_code(JoinCode(id="K7", secret="0" * 10), door.url), house)
    assert "check the code's letters" in caught.value.hint
    assert "connection is intercepted" in caught.value.hint
    assert door.finishes == []


def test_a_code_that_nobody_knows_is_refused_in_the_coordinators_words(tmp_path, house):
    with Door(tmp_path) as door, pytest.raises(Forbidden, match="nobody was invited") as caught:
        begin(Invitation.of_code(JoinCode(id="ZZ", secret="0" * 10), door.url), house)
    assert caught.value.data["reason"] == "unknown"


def test_a_stranger_with_their_own_ca_can_not_prove_it(tmp_path, house):
    with Door(tmp_path) as door:
        door.ca_shown = make_ca("a stranger", now_s=NOW_S).certificate_pem
        error = _fails(door, house, Forbidden)
    assert error.data["reason"] == "unproven"
    assert door.finishes == []


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_stranger_can_not_slip_a_second_ca_in(tmp_path, house, order):
    # The proof that is passed on is right for the first; a lenient reader would then trust both.
    stranger = make_ca("a stranger", now_s=NOW_S)
    with Door(tmp_path, server_ca=stranger) as door:
        true = door.ca.certificate_pem
        door.ca_shown = stranger.certificate_pem + true if order == "before" else true + stranger.certificate_pem
        assert _fails(door, house, Forbidden).data["reason"] == "unproven"
    assert door.finishes == []


def test_a_stranger_who_passes_the_proof_on_is_found_out_by_their_certificate(tmp_path, house):
    with Door(tmp_path, server_ca=make_ca("a stranger", now_s=NOW_S)) as door:
        error = _fails(door, house, Forbidden)
    assert error.data["reason"] == "intercepted"
    assert "is intercepted" in error.message
    assert door.finishes == []


@pytest.mark.parametrize("field", ["nonce", "role", "name", "proof"])
def test_nothing_of_the_first_answer_can_be_changed_on_the_way(tmp_path, house, field):
    changes = {"nonce": "00" * 16, "role": "admin", "name": "evil", "proof": "00" * 32}

    def meddle(answer: Said) -> Said:
        told = loads(answer.body)
        assert isinstance(told, dict)
        return Said(headers=answer.headers, body=dumps({**told, field: changes[field]}).encode())

    with Door(tmp_path) as door:
        door.change = meddle
        assert _fails(door, house, Forbidden).data["reason"] == "unproven"
    assert door.finishes == []


def test_a_server_of_another_name_is_not_joined(tmp_path, house):
    with Door(tmp_path, server_names=("desk.local",)) as door:
        error = _fails(door, house, Forbidden)
    assert error.data["reason"] == "host"
    assert "--advertise 127.0.0.1" in error.hint


def test_a_clock_that_is_far_behind_is_named_as_the_reason(tmp_path, house):
    # Whoever made the certificates lives three days later.
    with Door(tmp_path, signed_at_s=NOW_S + 3 * DAY_S) as door:
        door.now_s = NOW_S + 3 * DAY_S
        error = _fails(door, house, Forbidden)
    assert error.data["reason"] == "clock"
    assert "behind" in error.message
    assert "the same code" in error.hint


def test_a_refusal_at_the_end_keeps_nothing(tmp_path, house):
    with Door(tmp_path) as door:
        proven = begin(door.invitation(), house)
        door.change = lambda _answer: refused("this code was used at 14:02", reason="used")
        with pytest.raises(Forbidden, match="was used"):
            finish(proven, "lab1", house, state=house.settings.state)
    assert _nothing_is_kept(house)


def test_a_lost_answer_is_asked_for_again_in_the_same_words(tmp_path, house):
    with Door(tmp_path) as door:
        proven = begin(door.invitation(), house)
        is_first = iter([True])
        door.change = lambda answer: Said(cuts=True) if next(is_first, False) else answer
        finish(proven, "lab1", house, state=house.settings.state)
    first, second = door.finishes
    assert first == second


@pytest.mark.parametrize(
    "spoil",
    [
        {"certificate_pem": ""},
        {"role": "admin"},
        {"role": "admin", "certificate_pem": "", "token": "x" * 20},
        {"name": "../../lab1"},
        {"name": "lab\x1b[2J1"},
        {"token": "x\r\nX-Operator-Token: y"},
    ],
    ids=["nothing", "another_role", "a_token", "another_name", "an_odd_name", "an_odd_token"],
)
def test_an_answer_that_gives_something_else_is_not_kept(tmp_path, house, spoil):
    with Door(tmp_path) as door:
        proven = begin(door.invitation(), house)
        door.change = lambda answer: Said(headers=answer.headers, body=dumps({**_told(answer), **spoil}).encode())
        with pytest.raises(BadAnswer, match="something else"):
            finish(proven, "lab1", house, state=house.settings.state)
    assert _nothing_is_kept(house)


def test_what_is_not_proven_of_the_first_answer_is_told_in_a_short_plain_line(tmp_path, house):
    with Door(tmp_path) as door:
        odd = {"version": "\x1b]0;owned\x07" + "9" * 5000, "server_s": 1e400}
        door.change = lambda answer: Said(headers=answer.headers, body=dumps({**_told(answer), **odd}).encode())
        proven = begin(door.invitation(), house)
    assert (len(proven.version) <= 40, proven.version.isprintable(), proven.offset_s) == (True, True, 0.0)


def test_a_certificate_for_another_key_is_not_kept(tmp_path, house):
    with Door(tmp_path) as door:
        member = _join(door, house)
        other = Path(member.certificate_file).read_text().partition("-----BEGIN PRIVATE")[0]
        proven = begin(door.invitation(), house)
        change = {"certificate_pem": other}
        door.change = lambda answer: Said(headers=answer.headers, body=dumps({**_told(answer), **change}).encode())
        with pytest.raises(Damaged):
            finish(proven, "lab1", house, state=house.settings.state)
    assert read_joined(house.settings.state, MembershipKind.WORKER) == member
    assert Path(member.certificate_file).read_text().startswith(other)


def test_where_nobody_listens_the_hint_says_how_a_coordinator_does(house):
    with LittleServer(lambda _got: Said()) as free:
        port = free.port
    with pytest.raises(NoCoordinator, match="no coordinator can be reached") as caught:
        begin(Invitation.of_code(JoinCode(id="K7", secret="0" * 10), f"https://127.0.0.1:{port}"), house)
    assert "--listen" in caught.value.hint


def test_a_server_without_tls_is_told_apart(house):
    with LittleServer(lambda _got: Said()) as plain, pytest.raises((NoCoordinator, Refused)) as caught:
        begin(Invitation.of_code(JoinCode(id="K7", secret="0" * 10), f"https://127.0.0.1:{plain.port}"), house)
    assert isinstance(caught.value, NoCoordinator)


@pytest.mark.parametrize("body", [b"", b"[]", b"x" * 70_000, b'{"ca_pem": 5}'], ids=["empty", "list", "huge", "wrong"])
def test_what_is_no_coordinator_is_said_to_be_none(tmp_path, house, body):
    with Door(tmp_path) as door:
        door.change = lambda _answer: Said(body=body)
        _fails(door, house, BadAnswer)


def test_a_proven_ca_is_kept_as_exactly_what_was_proven(tmp_path, house):
    with Door(tmp_path) as door:
        door.ca_shown = "\n" + door.ca.certificate_pem.replace("\n", "\r\n") + "\n"
        proven: VerifiedCoordinator = begin(door.invitation(), house)
    assert proven.ca_pem == door.ca.certificate_pem
    assert changed(proven, ca_pem=door.ca_shown).fingerprint == proven.fingerprint


def _told(answer: Said) -> dict[str, object]:
    told = loads(answer.body)
    assert isinstance(told, dict)
    return told
