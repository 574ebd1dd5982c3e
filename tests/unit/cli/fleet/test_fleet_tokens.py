"""`stoker admin tokens` against a real coordinator: shown once, used, rotated, revoked."""

from __future__ import annotations

from stoker.core.errors import Forbidden
from tests.servers.coordinator import Fleet
from tests.unit.cli.fleet.conftest import Stoker


def _may_operate(fleet: Fleet, token: str) -> bool:
    try:
        fleet.client(token=token).reload(dry_run=True)
    except Forbidden:
        return False
    return True


def test_a_token_is_printed_alone_and_works_for_its_role(fleet: Fleet, stoker: Stoker):
    made = stoker("admin", "tokens", "make", "ops", "--role", "operate", "--for", "30d", at=fleet)
    assert made.code == 0
    token = made.out.strip()
    assert len(token.split()) == 1
    assert "name ops, role operate, expires 20" in made.err
    assert "not shown again" in made.err
    assert _may_operate(fleet, token)
    weak = stoker("admin", "tokens", "make", "wall", "--role", "read", at=fleet).out.strip()
    assert not _may_operate(fleet, weak)


def test_tokens_are_listed_without_their_texts_and_those_that_ended_only_when_asked_for(fleet: Fleet, stoker: Stoker):
    token = stoker("admin", "tokens", "make", "ci", "--role", "submit", at=fleet).out.strip()
    done = stoker("admin", "tokens", "list", at=fleet)
    assert done.out.splitlines()[0].split()[:3] == ["id", "name", "role"]
    assert done.out.splitlines()[1].split()[1:3] == ["ci", "submit"]
    assert token not in done.out
    (one,) = stoker("admin", "tokens", "--json", at=fleet).objects()
    assert stoker("admin", "tokens", "revoke", one["id"], at=fleet).out == f"token {one['id']} revoked\n"
    assert stoker("admin", "tokens", "--json", at=fleet).objects() == []
    (ended,) = stoker("admin", "tokens", "--all", "--json", at=fleet).objects()
    assert ended["revoked_s"] is not None
    assert "revoked" in stoker("admin", "tokens", "--all", at=fleet).out
    assert "was already revoked or expired" in stoker("admin", "tokens", "revoke", one["id"], at=fleet).out


def test_a_rotated_token_ends_and_the_new_one_has_its_name_and_role(fleet: Fleet, stoker: Stoker):
    old = stoker("admin", "tokens", "make", "ops", "--role", "operate", at=fleet).out.strip()
    (before,) = stoker("admin", "tokens", "--json", at=fleet).objects()
    (told,) = stoker("admin", "tokens", "rotate", before["id"], "--json", at=fleet).objects()
    assert not _may_operate(fleet, old)
    assert _may_operate(fleet, told["token"])
    (now,) = stoker("admin", "tokens", "--json", at=fleet).objects()
    assert (now["name"], now["role"], now["id"] == before["id"]) == ("ops", "operate", False)


def test_a_token_that_nobody_knows_is_said_to_be_unknown_and_an_empty_list_how_to_make_one(fleet, stoker: Stoker):
    for verb in ("revoke", "rotate"):
        done = stoker("admin", "tokens", verb, "ffffffff", at=fleet)
        assert done.code != 0
        assert "ffffffff" in done.err
        assert "hint: " in done.err
    none = stoker("admin", "tokens", at=fleet)
    assert (none.code, "tokens make" in none.err) == (0, True)


def test_a_token_lasts_a_year_by_default_and_the_list_shows_its_end(fleet: Fleet, stoker: Stoker):
    for name, words in (("usual", ()), ("short", ("--for", "30d")), ("lasting", ("--for", "never"))):
        assert stoker("admin", "tokens", "make", name, "--role", "read", *words, at=fleet).code == 0
    found = {one["name"]: one for one in stoker("admin", "tokens", "--json", at=fleet).objects()}
    days = {name: one["expires_s"] and (one["expires_s"] - one["issued_s"]) / 86_400 for name, one in found.items()}
    assert days == {"usual": 365.0, "short": 30.0, "lasting": None}
    rows = {line.split()[1]: line for line in stoker("admin", "tokens", at=fleet).out.splitlines()}
    assert ("in 36" in rows["usual"], "in 29d" in rows["short"] or "in 30d" in rows["short"]) == (True, True)
    assert stoker("admin", "tokens", "make", "odd", "--role", "read", "--for", "ever", at=fleet).code == 2
