"""Invitations and tokens as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.cli.work import worker_line
from stoker.core.leases import Role
from stoker.protocol.enrolment_messages import InviteResponse, TokenView
from stoker.views.fleet_lines import TOKEN_HEADER, day, invited_lines, join_lines, token_row

NOW_S = 1_800_000_000.0


def _invited(**more: Any) -> InviteResponse:
    told = {
        "id": "K7",
        "code": "K7QD-M2XW-9HCE",
        "role": Role.WORKER,
        "expires_s": NOW_S + 900,
        "url": "https://desk.local:7717",
        **more,
    }
    return InviteResponse(**told)


def test_an_invitation_prints_the_exact_command_for_every_name():
    lines = invited_lines(_invited(names=("desk.local:7717", "desk:7717", "10.0.0.4:7717")), now_s=NOW_S)
    assert lines[0] == "K7QD-M2XW-9HCE invites a machine, once, within 15m00s; run there:"
    assert lines[1:4] == [f"  stoker join K7QD-M2XW-9HCE@{name}" for name in ("desk.local", "desk", "10.0.0.4")]
    assert "use the host name" in lines[4]


def test_a_port_that_is_not_the_usual_one_is_named():
    assert join_lines(_invited(names=("desk:80",))) == ["stoker join K7QD-M2XW-9HCE@desk:80"]
    assert join_lines(_invited(url="https://[fe80::1]:9")) == ["stoker join K7QD-M2XW-9HCE@[fe80::1]:9"]


def test_a_persons_invitation_says_what_they_may():
    lines = invited_lines(_invited(role=Role.SUBMIT, name="anna"), now_s=NOW_S)
    assert lines[0].startswith("K7QD-M2XW-9HCE invites a user with role submit called anna")
    assert lines[1:] == ["  stoker join --operator K7QD-M2XW-9HCE@desk.local"]


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({}, "never"),
        ({"expires_s": NOW_S + 86400}, "in 1d00h"),
        ({"expires_s": NOW_S - 60}, "expired 1 min ago"),
        ({"expires_s": NOW_S + 60, "revoked_s": NOW_S - 60}, "revoked 1 min ago"),
    ],
    ids=["never", "later", "ended", "revoked"],
)
def test_a_token_says_until_when_it_counts(more: dict[str, float], end: str):
    token = TokenView(id="573f7a79", name="ci", role=Role.SUBMIT, issued_s=NOW_S - 3600, by="operator", **more)
    row = dict(zip(TOKEN_HEADER, token_row(token, NOW_S), strict=True))
    assert row["expires"] == end
    assert (row["created"], row["last used"], row["role"]) == ("1 h ago", "never", "submit")


def test_what_has_no_end_says_so():
    assert day(None) == "no end"
    assert day(NOW_S).startswith("2027-01-1")


def test_a_worker_tells_of_its_certificate():
    assert "renewed" in worker_line("certificate_renewed", {"worker": "lab1", "expires_s": NOW_S})
    line = worker_line("certificate_not_renewed", {"worker": "lab1", "why": "away", "hint": "wait"})
    assert line == "certificate not renewed yet: away (hint: wait)"
