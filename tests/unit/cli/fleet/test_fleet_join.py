"""`stoker join` against a door over real TLS: what it prints, what it keeps, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cli import join
from stoker.coordinator.auth import Invite
from stoker.coordinator.queue.commands import MakeInvite
from stoker.core.clock import SystemClock
from stoker.core.leases import Role
from stoker.host.certificates import make_ca
from stoker.protocol.discovery import MembershipKind, read_joined
from stoker.worker import enrolment
from tests.servers.coordinator import Fleet
from tests.servers.door import Door, refused, stretched
from tests.unit.cli.fleet.conftest import Stoker

Opens = Callable[..., Door]


@pytest.fixture
def opens(tmp_path: Path, monkeypatch, request) -> Opens:
    """Open a door; it is closed with the test."""
    monkeypatch.setattr(enrolment, "join_key", stretched)

    def make(**more: object) -> Door:
        door = Door(tmp_path, **more)  # type: ignore[arg-type]
        request.addfinalizer(door.close)
        return door

    return make


def test_a_machine_is_looked_at_line_by_line_and_joins(opens: Opens, stoker: Stoker, home: Path):
    door = opens()
    done = stoker("join", door.words, "--name", "lab1")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("✓ CA")
    assert "matches the code" in lines[0]
    assert {"cpu", "memory", "disk", "store", "clock", "python"} <= {
        line.split()[1] for line in lines[1:-1] if line[0] != " "
    }
    assert lines[-1].startswith(f"joined {door.url} as lab1; certificate until ")
    assert "stoker work" in done.err
    member = read_joined(str(home / "state"), MembershipKind.WORKER)
    assert member is not None
    assert member.name == "lab1"


def test_the_status_of_a_machine_that_only_works_names_its_fleet(opens: Opens, stoker: Stoker):
    door = opens()
    stoker("join", door.words, "--name", "lab1")
    done = stoker("status")
    assert f"joined {door.url} as lab1; " in done.out
    assert "stoker join --operator" in done.out
    (told,) = stoker("status", "--json").objects()
    assert told["joined"] == {"url": door.url, "name": "lab1"}


def test_a_program_gets_one_object(opens: Opens, stoker: Stoker):
    door = opens()
    (told,) = stoker("join", door.words, "--name", "lab1", "--json").objects()
    assert (told["joined"], told["name"], told["role"], told["url"]) == (True, "lab1", "worker", door.url)
    assert {check["verdict"] for check in told["checks"]} <= {"ok", "warn"}


def test_a_person_joins_without_a_look_at_the_machine(opens: Opens, stoker: Stoker, home: Path):
    done = stoker("join", "--operator", opens(role=Role.SUBMIT).words)
    assert done.code == 0
    assert "role submit" in done.out
    assert len(done.out.splitlines()) == 2
    member = read_joined(str(home / "state"), MembershipKind.OPERATOR)
    assert member is not None
    assert member.token() == "t" * 40
    assert "t" * 40 not in done.out + done.err


def test_a_second_join_says_so_and_again_replaces_it_under_the_same_name(opens: Opens, stoker: Stoker, home: Path):
    door = opens()
    stoker("join", door.words, "--name", "lab1")
    second = stoker("join", door.words)
    assert second.code == 32
    assert f"already joined {door.url} as lab1 (the same fleet)" in second.err
    assert "--again" in second.err
    assert len(door.finishes) == 1
    assert stoker("join", door.words, "--again").code == 0
    assert [said.name for said in door.finishes] == ["lab1", "lab1"]
    assert stoker("join", "--operator", opens(role=Role.READ).words).code == 0


def test_a_machine_that_can_not_work_is_not_heard_of(opens: Opens, stoker: Stoker, monkeypatch):
    monkeypatch.setattr(join, "_store_trouble", lambda _call: "read-only file system")
    door = opens()
    done = stoker("join", door.words)
    assert done.code == 1
    assert "✗ store" in done.out
    assert "not joined: store: read-only file system" in done.err
    assert "the code is still valid" in done.err
    assert door.finishes == []
    (told,) = stoker("join", door.words, "--json").objects()
    assert told["joined"] is False


def test_the_name_is_the_invitations_where_it_has_one(opens: Opens, stoker: Stoker):
    door = opens(name="lab7")
    done = stoker("join", door.words, "--name", "lab1")
    assert done.code == 2
    assert "this code is for lab7" in done.err
    assert stoker("join", door.words).code == 0
    assert door.finishes[0].name == "lab7"


@pytest.mark.parametrize("name", ["a/b", "-x", "ä", ""], ids=["slash", "dash", "letter", "empty"])
def test_a_name_that_can_not_be_one_is_refused_before_anything_is_asked(opens: Opens, stoker: Stoker, name: str):
    door = opens()
    done = stoker("join", door.words, f"--name={name}")
    if name:
        assert done.code == 2
        assert door.finishes == []
    else:
        assert door.finishes[0].name == os.uname().nodename


def test_a_machines_code_is_not_a_persons(opens: Opens, stoker: Stoker):
    done = stoker("join", "--operator", opens().words)
    assert done.code == 2
    assert "is for a machine" in done.err


def test_a_man_in_the_middle_is_named_as_one(opens: Opens, stoker: Stoker, home: Path):
    door = opens(server_ca=make_ca("a stranger", now_s=SystemClock().wall_s()))
    done = stoker("join", door.words)
    assert done.code == 33
    assert "connection to 127.0.0.1" in done.err
    assert "is intercepted: its certificate is not from the fleet's CA" in " ".join(done.err.split())
    assert not (home / "state" / "joined").exists()


@pytest.mark.parametrize(
    ("reason", "message"),
    [("expired", "this code ended at 14:02"), ("used", "this code was used"), ("spent", "too many wrong tries")],
)
def test_what_the_coordinator_refuses_is_told_in_its_words(opens: Opens, stoker: Stoker, reason: str, message: str):
    door = opens()
    door.change = lambda _answer: refused(message, reason=reason)
    done = stoker("join", door.words)
    assert done.code == 33
    assert message in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("join",), "CODE@HOST"),
        (("join", "K7QD-M2XW-9HCE"), "no host to join"),
        (("join", "K7QD@desk"), "12 letters"),
        (("machines", "invite", "--role", "submit"), "--operator"),
        (("machines", "invite", "--operator", "--role", "king"), "'king'"),
        (("machines", "invite", "--operator", "--role", "worker"), "'worker'"),
        (("machines", "invite", "--withdraw", "K7QD", "--name", "lab1"), "--withdraw excludes"),
        (("admin", "tokens", "make", "ci"), "--role"),
        (("admin", "tokens", "make", "ci", "--role", "king"), "'king'"),
    ],
    ids=range(9),
)
def test_words_of_trust_that_can_not_be_are_refused(stoker: Stoker, words, said):
    done = stoker(*words)
    assert done.code == 2
    assert said in done.err


def test_nobody_is_invited_to_a_coordinator_that_serves_its_own_machine_alone(fleet, stoker: Stoker):
    done = stoker("machines", "invite", at=fleet)
    assert done.code == 2
    assert "--listen 0.0.0.0" in done.err


def test_an_unused_code_is_withdrawn_by_its_first_part(fleet: Fleet, stoker: Stoker):
    fleet.queue.ask(MakeInvite(invite=Invite(id="K7QD", role="worker", key="ab" * 32, by="ada"), life_s=900.0))
    done = stoker("machines", "invite", "--withdraw", "k7qd-m2xw-9hce", at=fleet)
    assert (done.code, done.out) == (0, "K7QD: withdrawn\n")
    again = stoker("machines", "invite", "--withdraw", "K7QD", "--json", at=fleet)
    assert (again.code, again.objects()) == (1, [{"id": "K7QD", "withdrawn": False}])
    unknown = stoker("machines", "invite", "--withdraw", "P4ZT", at=fleet)
    assert unknown.code == 1
    assert "the id is the first part of the code" in unknown.err


def test_where_nothing_was_joined_the_hint_says_how(stoker: Stoker):
    done = stoker("work", "--for", "1s")
    assert done.code == 34
    assert "stoker join CODE@HOST" in done.err
