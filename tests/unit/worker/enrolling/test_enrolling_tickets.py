"""Joining with a ticket: the same exchange as with a code, under the ticket's name, and refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.api.app_parts import AppSettings
from stoker.app.app import App
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.errors import NoCoordinator, StokerError, TicketRefused
from stoker.core.frozen import changed
from stoker.core.leases import Role
from stoker.host.certificates import make_ca, read_certificate
from stoker.protocol.discovery import Membership, MembershipKind, read_joined
from stoker.protocol.enrolment_messages import Ticket
from stoker.worker.enrolment import join_with_ticket
from tests.servers.door import Door, refused
from tests.servers.little import LittleServer, Said, said

NAME = "a100-7f3a2c"


@pytest.fixture
def house(tmp_path) -> App:
    return App(AppSettings(home=str(tmp_path / "home"), folder=str(tmp_path), environment={}))


def _ticket(door: Door) -> Ticket:
    return Ticket(id=door.code.id, key=door.key.hex(), url=door.url, name=NAME)


def _join(ticket: Ticket, house: App, notes: list[str] | None = None, limit_s: float | None = None) -> Membership:
    note = (notes if notes is not None else []).append
    return join_with_ticket(ticket, house, state=house.settings.state, limit_s=limit_s, note=note)


def _refused(ticket: Ticket, house: App) -> StokerError:
    with pytest.raises(TicketRefused) as caught:
        _join(ticket, house)
    assert not (Path(house.settings.state) / "joined").exists()
    assert ticket.key not in str(caught.value.to_dict())
    assert "stoker launch a100" in caught.value.hint
    return caught.value


def test_a_worker_joins_with_the_key_of_its_ticket_under_its_name(tmp_path, house):
    with Door(tmp_path, name=NAME) as door:
        member = _join(_ticket(door), house)
    assert member == read_joined(house.settings.state, MembershipKind.WORKER)
    assert (member.url, member.name, member.role) == (door.url, NAME, Role.WORKER)
    assert read_certificate(Path(member.certificate_file).read_text()).machine == NAME
    sent = b"".join(got.body + str(got.headers).encode() + got.target.encode() for got in door.server.asked)
    assert door.key.hex().encode() not in sent


def test_a_ticket_that_was_used_is_refused_with_the_coordinators_reason(tmp_path, house):
    with Door(tmp_path, name=NAME) as door:
        door.change = lambda answer: (
            refused("the invitation was used already", reason="used") if door.finishes else answer
        )
        error = _refused(_ticket(door), house)
    assert "refused: the invitation was used already" in error.message
    assert (error.exit_code, error.data["reason"]) == (64, "used")


@pytest.mark.parametrize(
    "door_of", [{"name": "a100-000000"}, {"name": ""}, {"name": NAME, "role": Role.SUBMIT}], ids=str
)
def test_a_ticket_of_another_name_or_role_is_not_used(tmp_path, house, door_of):
    with Door(tmp_path, **door_of) as door:
        assert "not for a machine with the name" in _refused(_ticket(door), house).message
    assert door.finishes == []


def test_nothing_is_sent_to_another_fleet(tmp_path, house):
    with Door(tmp_path, name=NAME) as door:
        error = _refused(changed(_ticket(door), key="00" * 32), house)
    assert "of another fleet" in error.message
    assert door.finishes == []


def test_an_intercepted_connection_is_no_fault_of_the_ticket(tmp_path, house):
    stranger = make_ca("a stranger", now_s=SystemClock().wall_s())
    with (
        Door(tmp_path, name=NAME, server_ca=stranger) as door,
        pytest.raises(StokerError, match="is intercepted") as caught,
    ):
        _join(_ticket(door), house)
    assert caught.value.exit_code == 33
    assert door.finishes == []


def test_a_coordinator_that_is_down_or_busy_is_asked_again(tmp_path, house):
    house.clock = FakeClock(SystemClock().wall_s())
    notes: list[str] = []
    with Door(tmp_path, name=NAME) as door:
        busy = said({"error": "rate_limited", "message": "too many requests", "hint": "", "data": {}}, 429)
        answers = iter([busy, busy, Said(cuts=True)])
        door.change = lambda answer: next(answers, answer)
        member = _join(_ticket(door), house, notes)
    assert member.name == NAME
    assert notes == ["note: not joined yet, trying again: too many requests"]


def test_a_request_whose_response_was_lost_is_repeated_and_not_made_anew(tmp_path, house):
    house.clock = FakeClock(SystemClock().wall_s())
    with Door(tmp_path, name=NAME) as door:
        # Longer than one request is repeated.
        door.change = lambda answer: Said(cuts=True) if 0 < len(door.finishes) < 8 else answer
        member = _join(_ticket(door), house)
    assert member.name == NAME
    assert {one.model_dump_json() for one in door.finishes} == {door.finishes[0].model_dump_json()}


def test_a_coordinator_that_stays_away_is_given_up_within_the_workers_time(tmp_path, house):
    house.clock = FakeClock(SystemClock().wall_s())
    with LittleServer(lambda _got: Said()) as free:
        url = f"https://127.0.0.1:{free.port}"
    began_s = house.clock.boottime_s()
    with pytest.raises(NoCoordinator):
        _join(Ticket(id="K7", key="00" * 32, url=url, name=NAME), house, limit_s=20.0)
    assert 5.0 < house.clock.boottime_s() - began_s <= 20.0
