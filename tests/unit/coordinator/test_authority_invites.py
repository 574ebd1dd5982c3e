"""What an attempt to join is worth, decided without a queue or a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.auth import (
    MOST_FAILURES,
    REPEAT_S,
    SLOT_S,
    FleetCa,
    Invite,
    InviteVerdict,
    RateLimiter,
    RateLimiterSettings,
    judge_finish,
    key_of,
    open_ca,
    request_digest,
    server_nonce,
    wrong_code,
)
from stoker.core.clock import FakeClock
from stoker.core.errors import RateLimited
from stoker.core.frozen import changed
from stoker.protocol.enrolment_messages import JoinFinish, finish_proof, join_key, make_code

NOW_S = FakeClock().wall_s()
CODE = make_code("K7", b"12345678")
KEY = join_key(CODE)
NONCE = "ab" * 16
OPEN = Invite(id="K7", role="worker", key=KEY.hex(), made_s=NOW_S, expires_s=NOW_S + 900)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> FleetCa:
    folder: Path = tmp_path_factory.mktemp("authority")
    return open_ca(str(folder), fleet="desk", now_s=NOW_S)


def attempt(ca: FleetCa, *, now_s: float = NOW_S, key: bytes = KEY, **more: Any) -> JoinFinish:
    """Return what an honest machine says, but for what is changed."""
    fields = {"name": "lab1", "csr_pem": "a request", "nonce": NONCE, **more}
    nonce = fields.pop("server_nonce", None) or server_nonce(ca, "K7", fields["nonce"], now_s)
    proven = {name: fields[name] for name in ("name", "csr_pem", "nonce")}
    proof = fields.pop("proof", None) or finish_proof(key, server_nonce=nonce, **proven)
    return JoinFinish(id="K7", server_nonce=nonce, proof=proof, **fields)


def verdict(ca: FleetCa, invite: Invite | None, said: JoinFinish, now_s: float = NOW_S) -> tuple[InviteVerdict, object]:
    judged = judge_finish(ca, invite, said, now_s)
    assert (judged.error is None) == (judged.verdict in (InviteVerdict.TAKE, InviteVerdict.REPEAT))
    return judged.verdict, judged.error.data.get("reason") if judged.error else None


def test_whoever_has_the_code_is_taken(ca: FleetCa):
    assert verdict(ca, OPEN, attempt(ca)) == (InviteVerdict.TAKE, None)


@pytest.mark.parametrize(
    ("invite", "reason"),
    [
        (changed(OPEN, expires_s=NOW_S), "expired"),
        (changed(OPEN, name="lab2"), "name"),
        (changed(OPEN, role="submit"), "role"),
    ],
    ids=["expired", "another name", "a person's"],
)
def test_who_has_the_code_learns_why_it_takes_nobody(ca: FleetCa, invite: Invite, reason: str):
    assert verdict(ca, invite, attempt(ca)) == (InviteVerdict.REFUSE, reason)


@pytest.mark.parametrize(
    "invite",
    [
        None,
        OPEN,
        changed(OPEN, name="lab2", role="admin"),
        changed(OPEN, expires_s=NOW_S),
        changed(OPEN, used_s=NOW_S - 1, key=""),
        changed(OPEN, failures=MOST_FAILURES, key=""),
        changed(OPEN, key=""),
    ],
    ids=["unknown", "open", "named", "expired", "used", "spent", "withdrawn"],
)
def test_a_stranger_gets_the_same_refusal_whatever_there_is(ca: FleetCa, invite: Invite | None):
    guess = attempt(ca, key=join_key(make_code("K7", b"87654321")))
    judged = judge_finish(ca, invite, guess, NOW_S)
    assert judged.verdict is InviteVerdict.WRONG
    assert judged.error is not None
    assert judged.error.to_dict() == wrong_code().to_dict()


def test_nobody_joins_with_the_key_of_an_invitation_that_is_not_there(ca: FleetCa):
    for invite in (None, changed(OPEN, key="")):
        assert verdict(ca, invite, attempt(ca, key=key_of(ca, None, "K7"))) == (InviteVerdict.WRONG, "wrong")


def test_a_wrong_code_is_wrong_and_so_is_anything_that_was_not_proven(ca: FleetCa):
    other = join_key(make_code("K7", b"87654321"))
    assert verdict(ca, OPEN, attempt(ca, key=other)) == (InviteVerdict.WRONG, "wrong")
    good = attempt(ca)
    for change in ({"name": "lab2"}, {"csr_pem": "another request"}, {"proof": "0" * 64}):
        assert verdict(ca, OPEN, good.model_copy(update=change)) == (InviteVerdict.WRONG, "wrong")


def test_a_nonce_that_is_not_ours_or_too_old_begins_again(ca: FleetCa):
    assert verdict(ca, OPEN, attempt(ca, server_nonce="cd" * 16)) == (InviteVerdict.REFUSE, "slow")
    old = attempt(ca, now_s=NOW_S - 2 * SLOT_S)
    assert verdict(ca, OPEN, old) == (InviteVerdict.REFUSE, "slow")
    # Somebody else's nonce: made for another nonce of theirs.
    stolen = server_nonce(ca, "K7", "ef" * 16, NOW_S)
    assert verdict(ca, OPEN, attempt(ca, server_nonce=stolen)) == (InviteVerdict.REFUSE, "slow")
    assert verdict(ca, OPEN, attempt(ca, now_s=NOW_S - SLOT_S + 1)) == (InviteVerdict.TAKE, None)


def test_the_same_words_get_the_same_answer_for_a_while(ca: FleetCa):
    said = attempt(ca)
    used = changed(OPEN, used_s=NOW_S, key="", request=request_digest(said), answer="{}")
    over_s = max(NOW_S + REPEAT_S, OPEN.expires_s)
    assert verdict(ca, used, said, over_s - 1) == (InviteVerdict.REPEAT, None)
    assert verdict(ca, used, said, over_s + 1) == (InviteVerdict.REFUSE, "slow")
    brief = changed(used, expires_s=NOW_S + 1)
    assert verdict(ca, brief, said, NOW_S + REPEAT_S) == (InviteVerdict.REPEAT, None)
    assert verdict(ca, brief, said, NOW_S + REPEAT_S + 1) == (InviteVerdict.REFUSE, "slow")
    assert verdict(ca, used, attempt(ca, name="lab2")) == (InviteVerdict.WRONG, "wrong")


def test_our_nonce_needs_no_memory_and_can_not_be_foretold(ca: FleetCa, tmp_path: Path):
    other = open_ca(str(tmp_path / "other"), fleet="desk", now_s=NOW_S)
    assert server_nonce(ca, "K7", NONCE, NOW_S) == server_nonce(ca, "K7", NONCE, NOW_S)
    assert server_nonce(ca, "K7", NONCE, NOW_S) != server_nonce(other, "K7", NONCE, NOW_S)
    assert len(server_nonce(ca, "K7", NONCE, NOW_S)) == 32


def test_tries_come_back_with_time_and_each_address_has_its_own():
    guesses = RateLimiter(RateLimiterSettings(burst=3, each_s=10.0))
    for _ in range(3):
        guesses.check("a", 0.0)
        guesses.spend("a", 0.0)
    with pytest.raises(RateLimited) as caught:
        guesses.check("a", 5.0)
    assert caught.value.data["retry_after_s"] == 10
    guesses.check("b", 5.0)
    guesses.check("a", 10.0)
    guesses.spend("a", 10.0)
    with pytest.raises(RateLimited):
        guesses.check("a", 10.0)
    guesses.check("a", 1000.0)


def test_addresses_do_not_fill_the_memory():
    guesses = RateLimiter(RateLimiterSettings(burst=3, each_s=10.0))
    for at in range(20_000):
        guesses.spend(str(at), 0.0)
    assert len(guesses._spent) == 10_000
