"""Who belongs to the fleet, in rows: on both databases, over restarts, and with an event for every change."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.auth import MOST_FAILURES, ApiTokenRecord, Invite, IssuedCertificate
from stoker.coordinator.database.backup import back_up, restore
from stoker.coordinator.database.database import open_database
from stoker.coordinator.queue.commands import (
    FailInvite,
    ForgetMachine,
    IssueCertificate,
    MakeInvite,
    MakeToken,
    NoteTokens,
    QueueCommandResult,
    RevokeCertificate,
    RevokeToken,
    RotateToken,
    UseInvite,
    WithdrawInvite,
    Write,
)
from stoker.core.errors import Conflict, Forbidden, NotFound, RateLimited, Refused
from stoker.core.frozen import changed
from stoker.protocol.lease_messages import Finish, LeaseInstructionKind, LeaseReport, Renewal, RenewalResponse, Start
from tests.contract.queue_driving import Driven, order

LIFE_S = 900.0


def ask(fleet: Driven, command: Any) -> QueueCommandResult:
    answer = fleet.ask(command)
    assert isinstance(answer, QueueCommandResult)
    return answer


def invite(fleet: Driven, id: str = "K7", role: str = "worker", **more: Any) -> None:
    made = Invite(id=id, role=role, key="ab" * 32, by="ada", **more)
    ask(fleet, MakeInvite(invite=made, life_s=LIFE_S))


def certificate(fleet: Driven, serial: str, name: str = "lab1") -> IssuedCertificate:
    now_s = fleet.clock.wall_s()
    return IssuedCertificate(serial=serial * 40, name=name, issued_s=now_s, expires_s=now_s + 30 * 86_400.0)


def token(id: str, name: str = "ada", role: str = "submit") -> ApiTokenRecord:
    return ApiTokenRecord(id=id, name=name, role=role, sha256=id * (64 // len(id)), by="operator")


def enrol(fleet: Driven, serial: str, machine: str = "m1", **more: Any) -> None:
    """Let a machine join with an invitation of its own."""
    id = f"{serial}{len(fleet.queue.standing().invites)}".upper()
    invite(fleet, id, **more)
    ask(fleet, UseInvite(id=id, request=serial, answer="{}", certificate=certificate(fleet, serial, machine)))


def kinds(fleet: Driven) -> list[str]:
    return [event["kind"] for event in fleet.reader.events() if event["kind"] != "coordinator_started"]


def reopened(fleet: Driven) -> None:
    fleet.close()
    fleet.open()


def test_an_invitation_is_used_once_and_its_key_is_gone(fleet: Driven):
    invite(fleet)
    use = UseInvite(id="K7", request="first", answer='{"a":1}', certificate=certificate(fleet, "1"))
    assert ask(fleet, use).data == {"answer": '{"a":1}'}
    # The same words again, as after a lost answer; and any other words.
    assert ask(fleet, changed(use, answer="other")).data == {"answer": '{"a":1}'}
    with pytest.raises(Forbidden) as caught:
        fleet.ask(changed(use, request="second", certificate=certificate(fleet, "2")))
    assert caught.value.data["reason"] == "used"
    reopened(fleet)
    assert ask(fleet, use).data == {"answer": '{"a":1}'}
    found = fleet.queue.standing().invites["K7"]
    assert (found.key, found.used_s is not None) == ("", True)
    assert list(fleet.queue.standing().certificates) == ["1" * 40]
    assert kinds(fleet) == ["invited", "certificate_issued"]
    assert [event["by"] for event in fleet.reader.events() if "by" in event] == ["ada", "ada"]


def test_a_code_that_was_open_when_a_backup_was_made_opens_nothing_after_it_is_restored(fleet: Driven, tmp_path: Path):
    invite(fleet)
    path = tmp_path / "backup"
    back_up(fleet.database, str(path), clock=fleet.clock)
    ask(fleet, WithdrawInvite(id="K7"))
    fleet.close()
    database = open_database(fleet.url, clock=fleet.clock)
    restore(database, io.BytesIO(path.read_bytes()), "backup", clock=fleet.clock, may_replace=True)
    database.close()
    fleet.open()
    with pytest.raises(Forbidden):
        fleet.ask(UseInvite(id="K7", request="r", answer="{}", certificate=certificate(fleet, "1")))


def test_an_invitation_ends_with_its_time_with_wrong_codes_or_when_it_is_taken_back(fleet: Driven):
    for id in ("AA", "BB", "CC"):
        invite(fleet, id)
    left = [ask(fleet, FailInvite(id="AA")).data["left"] for _ in range(MOST_FAILURES)]
    assert left == [*range(MOST_FAILURES)][::-1]
    assert ask(fleet, FailInvite(id="AA")).changed == ()
    ask(fleet, WithdrawInvite(id="BB", by="ada"))
    assert ask(fleet, WithdrawInvite(id="BB")).notes
    reopened(fleet)
    fleet.clock.advance(LIFE_S)
    for id, reason in (("AA", "spent"), ("BB", "expired"), ("CC", "expired"), ("DD", "unknown")):
        with pytest.raises(Forbidden) as caught:
            fleet.ask(UseInvite(id=id, request="r", answer="{}", certificate=certificate(fleet, "1")))
        assert caught.value.data["reason"] == reason
    assert not fleet.queue.standing().certificates
    assert kinds(fleet) == ["invited"] * 3 + ["join_refused"] * MOST_FAILURES + ["invite_withdrawn"]


def test_an_id_of_an_open_invitation_is_not_given_again(fleet: Driven):
    invite(fleet)
    with pytest.raises(Conflict):
        invite(fleet)
    fleet.clock.advance(LIFE_S)
    invite(fleet)


def test_a_name_that_somebody_has_needs_an_invitation_for_it(fleet: Driven):
    enrol(fleet, "1", "lab1")
    with pytest.raises(Conflict, match="lab1"):
        enrol(fleet, "2", "lab1")
    with pytest.raises(Forbidden, match="lab2"):
        enrol(fleet, "3", "lab1", name="lab2")
    enrol(fleet, "4", "lab1", name="lab1")
    known = fleet.queue.standing().certificates
    assert known["1" * 40].revoked_s is not None
    assert known["4" * 40].revoked_s is None
    assert set(known) == {"1" * 40, "4" * 40}


def test_the_name_of_a_worker_without_a_certificate_needs_an_invitation_for_it(fleet: Driven):
    fleet.join("desk")
    with pytest.raises(Conflict, match="desk"):
        enrol(fleet, "1", "desk")
    enrol(fleet, "2", "desk", name="desk")
    assert set(fleet.queue.standing().certificates) == {"2" * 40}


def test_a_person_who_joins_has_a_token_and_nobody_else_gets_their_name(fleet: Driven):
    invite(fleet, "AA", "operate")
    ask(fleet, UseInvite(id="AA", request="r", answer="{}", token=token("a1", role="operate")))
    invite(fleet, "BB", "submit")
    with pytest.raises(Conflict):
        fleet.ask(UseInvite(id="BB", request="r", answer="{}", token=token("b2")))
    held = fleet.queue.standing().tokens["a1" * 32]
    assert (held.name, held.role, held.by) == ("ada", "operate", "ada")


def test_a_certificate_is_renewed_as_long_as_the_present_one_is_good(fleet: Driven):
    enrol(fleet, "1", "lab1")
    ask(fleet, IssueCertificate(certificate=certificate(fleet, "2"), present="1" * 40))
    for present, name in (("9" * 40, "lab1"), ("1" * 40, "lab2")):
        with pytest.raises(Forbidden):
            fleet.ask(IssueCertificate(certificate=certificate(fleet, "3", name), present=present))
    ask(fleet, RevokeCertificate(serial="1" * 40, why="lost", by="ada"))
    with pytest.raises(Forbidden, match="lost"):
        fleet.ask(IssueCertificate(certificate=certificate(fleet, "3"), present="1" * 40))
    reopened(fleet)
    assert fleet.queue.standing().certificates["1" * 40].why == "lost"
    assert [one.serial[0] for one in fleet.queue.standing().certificates_of("lab1", fleet.clock.wall_s())] == ["2"]


def test_nobody_fills_the_table_with_certificates(fleet: Driven):
    enrol(fleet, "1", "lab1")
    for serial in "2345678":
        ask(fleet, IssueCertificate(certificate=certificate(fleet, serial), present="1" * 40))
    with pytest.raises(RateLimited):
        fleet.ask(IssueCertificate(certificate=certificate(fleet, "9"), present="1" * 40))


def test_to_forget_a_machine_takes_its_certificates_back_and_loses_what_it_holds(fleet: Driven):
    enrol(fleet, "1", "m1")
    fleet.submit(order("a"), order("b"))
    fleet.join("m1", "m2")
    first, second = fleet.claim(most=2)
    fleet.start(first)
    assert ask(fleet, ForgetMachine(machine="m1", by="ada")).changed == ("m1",)
    assert fleet.queue.standing().certificates["1" * 40].revoked_s is not None
    assert {job.state for job in fleet.reader.page().jobs} == {"pending"}
    with pytest.raises(NotFound):
        fleet.claim("m1")
    assert fleet.reader.machines("m1") == ()
    told = [event for event in fleet.reader.events() if event["kind"] in ("certificate_revoked", "machine_forgotten")]
    assert [event["by"] for event in told] == ["ada", "ada"]
    # Its leases are not waited for: another machine has them as soon as it may.
    fleet.clock.advance(60.0)
    fleet.sweep_late()
    fleet.join("m2")
    assert {grant.job for grant in fleet.claim("m2", most=2)} == {first.job, second.job}


def test_a_machine_that_joined_and_never_spoke_can_be_forgotten(fleet: Driven):
    enrol(fleet, "1", "lab1")
    assert ask(fleet, ForgetMachine(machine="lab1")).changed == ("lab1",)
    with pytest.raises(NotFound):
        fleet.ask(ForgetMachine(machine="lab1"))


def test_a_machine_without_a_certificate_is_not_forgotten_while_it_holds_something(fleet: Driven):
    fleet.submit(order("a"))
    fleet.join("m1")
    (grant,) = fleet.claim()
    with pytest.raises(Refused, match="lease"):
        fleet.ask(ForgetMachine(machine="m1"))
    fleet.release(grant)
    assert ask(fleet, ForgetMachine(machine="m1", is_forced=True)).changed == ("m1",)


def test_whose_last_certificate_is_taken_back_is_out_of_the_fleet(fleet: Driven):
    enrol(fleet, "1", "m1")
    fleet.submit(order("a"))
    fleet.join("m1")
    ask(fleet, IssueCertificate(certificate=certificate(fleet, "2", "m1"), present="1" * 40))
    fleet.claim()
    ask(fleet, RevokeCertificate(serial="1" * 40))
    assert fleet.reader.page().jobs[0].state == "claimed"
    ask(fleet, RevokeCertificate(serial="2" * 40))
    assert fleet.reader.page().jobs[0].state == "pending"
    assert fleet.reader.machines() == ()


def test_a_machine_speaks_for_its_own_leases_only(fleet: Driven):
    fleet.submit(order("a", on_partition="keep"))
    fleet.join("m1", "m2")
    (grant,) = fleet.claim("m1")
    said: dict[str, Any] = {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}
    fleet.objects["c" * 64] = 10
    finish = Finish(**said, tree="d" * 64, archive_sha256="c" * 64, size_bytes=10)
    for word in (Start(**said), finish):
        with pytest.raises(Forbidden, match="m2"):
            fleet.ask(Write(job=grant.job, said=word, machine="m2"))
    lease = LeaseReport(job=grant.job, **said)
    renewed = fleet.ask(Renewal(worker="m2", incarnation="incarnation-m2", leases=(lease,)))
    assert isinstance(renewed, RenewalResponse)
    assert [one.do for one in renewed.orders] == [LeaseInstructionKind.DROP]
    fleet.ask(Write(job=grant.job, said=Start(**said), machine="m1"))
    # Its lease ends; it may still bring its result, and nobody else may bring one for it.
    fleet.sweep_late()
    with pytest.raises(Forbidden, match="m2"):
        fleet.ask(Write(job=grant.job, said=finish, machine="m2"))
    fleet.ask(Write(job=grant.job, said=finish, machine="m1"))
    assert fleet.reader.page().jobs[0].state == "completed"


def test_the_fence_of_files_is_the_machines_own(fleet: Driven):
    fleet.submit(order("a"))
    fleet.join("m1")
    (grant,) = fleet.claim("m1")
    token = grant.token()
    assert [fleet.queue.is_current(token, name) for name in ("", "m1", "m2")] == [True, True, False]


def test_tokens_are_made_rotated_revoked_and_noted(fleet: Driven):
    assert ask(fleet, MakeToken(token=token("a1"), life_s=100.0)).changed == ("a1",)
    with pytest.raises(Conflict, match="ada"):
        fleet.ask(MakeToken(token=token("b2")))
    ask(fleet, NoteTokens(ids=("a1", "nobody")))
    rotated = ask(fleet, RotateToken(id="a1", new=token("c3", name="", role="read"), by="ada"))
    assert rotated.changed == ("a1", "c3")
    reopened(fleet)
    old, new = (fleet.queue.standing().token_by_id(id) for id in ("a1", "c3"))
    assert old is not None
    assert new is not None
    assert (old.revoked_s, old.last_used_s) != (None, None)
    assert (new.name, new.role, new.expires_s) == ("ada", "submit", new.issued_s + 100.0)
    with pytest.raises(Refused, match="expired or was revoked"):
        fleet.ask(RotateToken(id="a1", new=token("d4")))
    assert ask(fleet, RevokeToken(id="c3", by="ada")).changed == ("c3",)
    assert ask(fleet, RevokeToken(id="c3")).notes
    with pytest.raises(NotFound):
        fleet.ask(RevokeToken(id="nobody"))
    ask(fleet, MakeToken(token=token("e5")))
    assert kinds(fleet) == ["token_made", "token_revoked", "token_made", "token_revoked", "token_made"]


def test_nothing_of_a_failed_commit_counts(fleet: Driven):
    def break_once(point: str) -> None:
        if point == "before_commit":
            fleet.faults = lambda _point: None
            raise OSError("the disk is gone")

    invite(fleet)
    use = UseInvite(id="K7", request="r", answer="{}", certificate=certificate(fleet, "1"))
    fleet.faults = break_once
    assert ask(fleet, use).data == {"answer": "{}"}
    assert len(fleet.queue.standing().certificates) == 1
    assert kinds(fleet).count("certificate_issued") == 1
