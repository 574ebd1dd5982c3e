from __future__ import annotations

import pytest

from stoker.coordinator.auth import ApiTokenRecord, IssuedCertificate, TrustState, token_digest
from stoker.coordinator.http.access import (
    LOCAL_ADMIN,
    LOCAL_WORKER,
    UNKNOWN,
    Access,
    Peer,
    Rules,
    is_loopback,
    recorded,
    rules_for,
)
from stoker.coordinator.http.http_messages import Refusal, refusal_of
from stoker.core.clock import FakeClock
from stoker.core.errors import Forbidden, NotFound, StokerError
from stoker.core.frozen import changed
from stoker.core.leases import Principal, Role
from stoker.host.tls_contexts import Certificate

TOKEN = "a-token-for-tests-only"
HERE = rules_for(token=TOKEN, host="127.0.0.1", port=7717)
EVERYWHERE = rules_for(token=TOKEN, host="0.0.0.0", port=7717)
JOB = "0" * 64
SERIAL = "5" * 40
NOW_S = FakeClock().wall_s()
LAB1 = Peer(
    address="192.0.2.7",
    certificate=Certificate(machine="lab1", serial=SERIAL, not_before_s=0.0, not_after_s=NOW_S + 100),
)
OWN = Peer(is_own_user=True)
LOOPBACK = Peer(address="127.0.0.1")
WORKERS_ROUTES = [
    ("POST", "/v1/hello"),
    ("POST", "/v1/claims"),
    ("POST", "/v1/renewals"),
    ("POST", f"/v1/attempts/{JOB}/finish"),
    ("PUT", f"/v1/attempts/{JOB}/files/logs/a.log"),
    ("POST", "/v1/sources"),
    ("POST", "/v1/certificates/renew"),
]
WORKERS_TOO = [
    ("POST", "/v1/uploads"),
    ("PATCH", "/v1/uploads/u1"),
    ("POST", "/v1/uploads/u1/finish"),
    ("POST", "/v1/contents/fetch"),
    ("POST", "/v1/contents"),
    ("POST", "/v1/contents/missing"),
    ("POST", f"/v1/trees/{JOB}"),
    ("PUT", f"/v1/trees/{JOB}"),
    ("GET", f"/v1/objects/{JOB}"),
    ("HEAD", f"/v1/objects/{JOB}"),
    ("GET", f"/v1/trees/{JOB}"),
    ("GET", "/v1/status"),
]
BY_ROLE = [
    ("GET", "/v1/jobs", Role.READ),
    ("GET", "/v1/events", Role.READ),
    ("GET", "/v1/openapi.json", Role.READ),
    ("GET", "/v1/certificates", Role.READ),
    ("POST", "/v1/jobs", Role.SUBMIT),
    ("POST", "/v1/jobs/a/cancel", Role.SUBMIT),
    ("POST", "/v1/jobs/cancel", Role.SUBMIT),
    ("POST", "/v1/jobs/a/requeue", Role.SUBMIT),
    ("POST", "/v1/jobs/a/priority", Role.SUBMIT),
    ("POST", "/v1/jobs/a/pin", Role.OPERATE),
    ("POST", "/v1/machines/desk/forget", Role.OPERATE),
    ("POST", "/v1/reload", Role.OPERATE),
    ("POST", "/v1/prune", Role.OPERATE),
    ("POST", "/v1/invites", Role.OPERATE),
    ("GET", "/v1/invites", Role.OPERATE),
    ("DELETE", "/v1/invites/AB", Role.OPERATE),
    ("POST", f"/v1/certificates/{SERIAL}/revoke", Role.OPERATE),
    ("GET", "/v1/launch", Role.READ),
    ("POST", "/v1/pools/watch", Role.LAUNCH),
    ("POST", "/v1/pools/a100/allocations", Role.LAUNCH),
    ("POST", "/v1/pools/a100/moves", Role.LAUNCH),
    ("POST", "/v1/pools/a100/pause", Role.LAUNCH),
    ("POST", "/v1/pools/a100/requests", Role.LAUNCH),
    ("POST", "/v1/pools/a100/requests/0000000a/close", Role.LAUNCH),
    ("POST", "/v1/pools/a100/resume", Role.OPERATE),
    ("POST", "/v1/pools/a100/stop", Role.OPERATE),
    ("POST", "/v1/pools/a100/anything", Role.ADMIN),
    ("POST", "/v1/tokens", Role.ADMIN),
    ("GET", "/v1/tokens", Role.ADMIN),
    ("POST", "/v1/tokens/a/rotate", Role.ADMIN),
    ("GET", "/v1/hooks", Role.ADMIN),
    ("POST", "/v1/hooks", Role.SUBMIT),
    ("POST", "/anything", Role.ADMIN),
    ("DELETE", "/v1/jobs", Role.ADMIN),
    ("POST", "/v1/hello/more", Role.ADMIN),
]
ROLES = (Role.READ, Role.SUBMIT, Role.LAUNCH, Role.OPERATE, Role.ADMIN)


class Desk:
    """An access, and what it judges by."""

    def __init__(self, rules: Rules) -> None:
        self.clock = FakeClock()
        self.standing = TrustState()
        self.used: list[str] = []
        self.access = Access(rules, standing=lambda: self.standing, clock=self.clock, on_use=self.used.append)
        self.standing.certificates[SERIAL] = IssuedCertificate(serial=SERIAL, name="lab1", expires_s=NOW_S + 100)
        for role in ROLES:
            held = ApiTokenRecord(
                id=role.value, name=f"ada-{role}", role=role.value, sha256=token_digest(role.encode() * 9)
            )
            self.standing.tokens[held.sha256] = held

    def ask(self, method: str, path: str, peer: Peer = UNKNOWN, **headers: str) -> Principal:
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        return self.access.judge(method, path, {b"host": b"127.0.0.1:7717", **named}, peer)

    def status(self, method: str, path: str, peer: Peer = UNKNOWN, **headers: str) -> int:
        """Return the status that a request is refused with; 0 lets it pass."""
        try:
            self.ask(method, path, peer, **headers)
        except (Refusal, StokerError) as error:
            return refusal_of(error).status
        return 0


def status(rules: Rules, method: str, path: str, **headers: str) -> int:
    return Desk(rules).status(method, path, UNKNOWN, **headers)


@pytest.mark.parametrize(("method", "path"), WORKERS_ROUTES + WORKERS_TOO)
def test_workers_of_the_own_user_are_let_in_and_all_others_need_a_certificate(method: str, path: str):
    elsewhere = Desk(EVERYWHERE)
    for rules in (HERE, EVERYWHERE):
        assert Desk(rules).ask(method, path, OWN) == LOCAL_WORKER
        assert Desk(rules).status(method, path, LOOPBACK) == 401
    assert elsewhere.status(method, path) == 401
    assert elsewhere.ask(method, path, LAB1) == Principal(name="lab1", role=Role.WORKER)


@pytest.mark.parametrize("rules", [HERE, EVERYWHERE], ids=["here", "everywhere"])
def test_workers_own_requests_are_judged_by_the_same_rule(rules: Rules):
    head = {b"host": b"127.0.0.1:7717"}
    assert Desk(rules).access.judge("POST", "/v1/claims", head, OWN) == LOCAL_WORKER
    with pytest.raises(Refusal) as caught:
        Desk(rules).access.judge("POST", "/v1/claims", head, LOOPBACK)
    assert refusal_of(caught.value).status == 401


@pytest.mark.parametrize(("method", "path", "role"), BY_ROLE)
@pytest.mark.parametrize("rules", [HERE, EVERYWHERE], ids=["here", "everywhere"])
def test_the_own_user_is_an_admin_unless_a_token_is_shown(rules: Rules, method: str, path: str, role: Role):
    desk = Desk(rules)
    assert desk.ask(method, path, OWN) == LOCAL_ADMIN
    may = role is Role.READ
    assert desk.status(method, path, OWN, x_operator_token="read" * 9) == (0 if may else 403)
    assert desk.status(method, path, OWN, x_operator_token="none of ours") == 403


@pytest.mark.parametrize(("method", "path"), WORKERS_ROUTES)
def test_no_token_of_a_persons_makes_a_machine(method: str, path: str):
    assert status(EVERYWHERE, method, path, x_operator_token=TOKEN) == 401
    assert status(EVERYWHERE, method, path, authorization="Bearer " + "admin" * 9) == 401


@pytest.mark.parametrize(("method", "path", "role"), BY_ROLE)
@pytest.mark.parametrize("has", ROLES)
def test_every_route_asks_for_its_role(method: str, path: str, role: Role, has: Role):
    may = Principal(name="", role=has).may(role)
    assert status(EVERYWHERE, method, path, authorization=f"Bearer {has.value * 9}") == (0 if may else 403)
    assert status(EVERYWHERE, method, path, x_operator_token=has.value * 9) == (0 if may else 403)


def test_launching_is_no_submitting_and_the_other_way_round():
    assert not Principal(name="", role=Role.LAUNCH).may(Role.SUBMIT)
    assert not Principal(name="", role=Role.SUBMIT).may(Role.LAUNCH)


@pytest.mark.parametrize(("method", "path", "role"), BY_ROLE)
def test_a_machine_may_ask_nothing_of_peoples(method: str, path: str, role: Role):
    assert Desk(EVERYWHERE).status(method, path, LAB1) == 403


@pytest.mark.parametrize(("method", "path", "role"), BY_ROLE)
def test_the_operators_own_token_opens_everything_that_people_may(method: str, path: str, role: Role):
    assert Desk(EVERYWHERE).ask(method, path, x_operator_token=TOKEN) == Principal(name="operator", role=Role.ADMIN)
    assert status(EVERYWHERE, method, path) == 401
    assert status(HERE, method, path) == 401
    assert status(HERE, method, path, x_operator_token="another") == 403
    assert status(HERE, method, path, x_operator_token=TOKEN) == 0


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/health"), ("POST", "/v1/join/begin")])
def test_health_and_joining_are_open_to_everybody(method: str, path: str):
    assert status(EVERYWHERE, method, path) == 0


def test_a_coordinator_without_a_token_lets_no_operator_in():
    assert status(Rules(token=b"", hosts=frozenset()), "POST", "/v1/reload", x_operator_token="") == 403


def test_a_certificate_that_was_taken_back_is_refused_at_once():
    desk = Desk(EVERYWHERE)
    assert desk.status("POST", "/v1/claims", LAB1) == 0
    desk.standing.certificates[SERIAL] = changed(desk.standing.certificates[SERIAL], revoked_s=NOW_S, why="forgotten")
    with pytest.raises(Forbidden, match="forgotten"):
        desk.ask("POST", "/v1/claims", LAB1)
    with pytest.raises(Forbidden, match="forgotten"):
        desk.access.judge("POST", "/v1/claims", {}, LAB1)


def test_a_certificate_ends_with_its_time_even_on_a_connection_that_stands():
    desk = Desk(EVERYWHERE)
    desk.clock.advance(101.0)
    with pytest.raises(Forbidden, match="expired"):
        desk.access.judge("POST", "/v1/claims", {}, LAB1)


@pytest.mark.parametrize(
    "shown",
    [
        Certificate(machine="lab1", serial="6" * 40, not_before_s=0.0, not_after_s=NOW_S + 100),
        Certificate(machine="lab2", serial=SERIAL, not_before_s=0.0, not_after_s=NOW_S + 100),
        Certificate(machine="", serial=SERIAL, not_before_s=0.0, not_after_s=NOW_S + 100),
    ],
    ids=["another number", "another name", "no machine's"],
)
def test_what_we_have_not_issued_is_refused_whoever_signed_it(shown: Certificate):
    with pytest.raises(Forbidden, match="was not issued"):
        Desk(EVERYWHERE).access.judge("POST", "/v1/claims", {}, Peer(address="192.0.2.7", certificate=shown))


def test_a_token_that_is_over_opens_nothing():
    desk = Desk(EVERYWHERE)
    digest = token_digest(b"read" * 9)
    desk.standing.tokens[digest] = changed(desk.standing.tokens[digest], expires_s=NOW_S + 10)
    assert desk.status("GET", "/v1/jobs", authorization="bearer " + "read" * 9) == 0
    desk.clock.advance(11.0)
    assert desk.status("GET", "/v1/jobs", authorization="bearer " + "read" * 9) == 403
    digest = token_digest(b"submit" * 9)
    desk.standing.tokens[digest] = changed(desk.standing.tokens[digest], revoked_s=NOW_S)
    assert desk.status("GET", "/v1/jobs", authorization="bearer " + "submit" * 9) == 403


def test_wrong_tokens_are_slowed_down_and_a_right_one_from_the_same_address_is_not():
    desk = Desk(EVERYWHERE)
    guesser, other = Peer(address="192.0.2.66"), Peer(address="192.0.2.7")
    tried = [desk.status("GET", "/v1/jobs", guesser, authorization=f"Bearer guess-{at}") for at in range(30)]
    assert tried == [403] * 20 + [429] * 10
    assert desk.status("GET", "/v1/jobs", guesser, x_operator_token=TOKEN) == 0
    assert desk.status("GET", "/v1/jobs", guesser, authorization="Bearer " + "read" * 9) == 0
    assert desk.status("GET", "/v1/jobs", guesser, authorization="Bearer guess") == 429
    assert desk.status("GET", "/v1/jobs", other, authorization="Bearer guess") == 403
    desk.clock.advance(10.0)
    assert desk.status("GET", "/v1/jobs", guesser, authorization="Bearer guess") == 403


def test_nobody_on_loopback_locks_the_operator_out():
    desk = Desk(HERE)
    tried = {desk.status("POST", "/v1/reload", x_operator_token=f"guess-{at}") for at in range(30)}
    assert tried == {403, 429}
    assert desk.status("POST", "/v1/reload", x_operator_token=TOKEN) == 0


def test_the_use_of_a_token_is_noted():
    desk = Desk(EVERYWHERE)
    desk.ask("GET", "/v1/jobs", authorization="Bearer " + "read" * 9)
    desk.ask("GET", "/v1/jobs", x_operator_token=TOKEN)
    assert desk.used == ["read"]


@pytest.mark.parametrize("rules", [HERE, EVERYWHERE], ids=["here", "everywhere"])
def test_without_identity_only_health_is_open_on_loopback_too(rules: Rules):
    desk = Desk(rules)
    assert desk.status("GET", "/v1/health", LOOPBACK) == 0
    assert desk.status("GET", "/v1/jobs", LOOPBACK) == 401
    assert desk.status("HEAD", f"/v1/objects/{JOB}", LOOPBACK) == 401
    assert desk.status("GET", "/metrics", LOOPBACK) == 401


@pytest.mark.parametrize("host", ["127.0.0.1:7717", "localhost:7717", "LOCALHOST:7717", "[::1]:7717", "127.0.0.1"])
def test_loopback_is_asked_by_its_own_names(host: str):
    assert status(HERE, "GET", "/v1/health", host=host) == 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:80", "127.0.0.1.evil.example:7717", "", "desk:7717"])
def test_any_other_name_is_refused_on_loopback(host: str):
    assert status(HERE, "GET", "/v1/health", host=host) == 403


OTHER_NAMES = (
    "evil.example",
    "evil.example:7717",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "desk",
    "192.0.2.7",
)
NO_NAMES = (
    "",
    ":1",
    "localhost:",
    "localhost:x",
    "[::1",
    "[::1]x",
    "[evil]:1",
    "::1",
    "evil@localhost",
    "localhost/evil",
)
OWN_NAMES = changed(EVERYWHERE, names=frozenset({"desk.example.org", "192.0.2.7", "2001:db8::7"}))


@pytest.mark.parametrize("rules", [HERE, EVERYWHERE], ids=["here", "everywhere"])
@pytest.mark.parametrize(
    "host",
    [*OTHER_NAMES, *NO_NAMES],
)
def test_a_page_that_points_its_name_at_a_forwarded_socket_is_refused(rules: Rules, host: str):
    assert Desk(rules).status("GET", "/v1/jobs", OWN, host=host) == 403
    with pytest.raises(Refusal, match="is not a name of this coordinator"):
        Desk(rules).access.judge("POST", "/v1/claims", {b"host": host.encode()}, OWN)


@pytest.mark.parametrize("rules", [HERE, EVERYWHERE], ids=["here", "everywhere"])
@pytest.mark.parametrize("host", ["localhost", "LocalHost:8080", "127.0.0.1:8080", "127.0.0.9", "[::1]:8080", "[::1]"])
def test_a_socket_is_asked_by_names_of_loopback_whatever_port_it_is_forwarded_to(rules: Rules, host: str):
    assert Desk(rules).status("GET", "/v1/jobs", OWN, host=host) == 0
    assert Desk(rules).status("POST", "/v1/reload", OWN, host=host, origin=f"http://{host}") == 0
    assert Desk(rules).status("POST", "/v1/reload", OWN, host=host, origin="http://evil.example") == 403


@pytest.mark.parametrize("host", ["desk.example.org:7717", "Desk.example.org", "192.0.2.7:1", "[2001:db8::7]:7717"])
def test_a_socket_is_asked_by_the_names_of_its_coordinator(host: str):
    assert Desk(OWN_NAMES).status("GET", "/v1/jobs", OWN, host=host) == 0
    assert Desk(EVERYWHERE).status("GET", "/v1/jobs", OWN, host=host) == 403


def test_the_address_that_is_listened_at_is_a_name_of_the_coordinator():
    rules = rules_for(token=TOKEN, host="192.0.2.9", port=7717, names=("desk.local:7717", "[2001:db8::7]:7717"))
    assert rules.names == {"192.0.2.9", "desk.local", "2001:db8::7"}


def test_the_name_that_is_listened_at_is_ours():
    rules = rules_for(token=TOKEN, host="127.0.0.5", port=7717)
    assert status(rules, "GET", "/v1/health", host="127.0.0.5:7717") == 0
    assert status(rules_for(token=TOKEN, host="::1", port=1), "GET", "/v1/health", host="[::1]:1") == 0


def test_a_page_of_another_address_may_post_nothing():
    assert status(HERE, "POST", "/v1/hello", origin="https://evil.example") == 403
    assert status(HERE, "POST", "/v1/hello", origin="null") == 403
    assert status(HERE, "POST", "/v1/reload", origin="http://127.0.0.1:7717", x_operator_token=TOKEN) == 0
    assert status(HERE, "POST", "/v1/reload", origin="https://evil.example", x_operator_token=TOKEN) == 403


@pytest.mark.parametrize(
    ("version", "expected"), [("2", 0), ("1", 0), ("3", 412), ("0", 412), ("x", 400), ("", 400), ("-1", 400)]
)
def test_a_protocol_too_far_from_ours_is_refused(version: str, expected: int):
    assert status(HERE, "GET", "/v1/health", x_stoker_protocol=version) == expected


def test_a_refusal_says_what_to_do():
    with pytest.raises(Refusal) as caught:
        Desk(HERE).ask("POST", "/v1/jobs")
    told = refusal_of(caught.value)
    assert isinstance(told.error, Forbidden)
    assert "STOKER_OPERATOR_TOKEN" in told.error.hint
    assert TOKEN not in str(told.error.to_dict())


@pytest.mark.parametrize(
    ("name", "claimed", "expected"),
    [
        ("", "me@desk", "me@desk"),
        ("", "", "local user"),
        ("", " ", "local user"),
        ("", "ada", "local user (ada)"),
        ("ada", "", "ada"),
        ("ada", "ada", "ada"),
        ("ada", "bob (root@desk)", "ada (bob (root@desk))"),
    ],
)
def test_who_is_recorded_begins_with_the_name_that_was_verified(name: str, claimed: str, expected: str):
    assert recorded(Principal(name=name, role=Role.ADMIN), claimed) == expected
    assert len(recorded(Principal(name="ada", role=Role.ADMIN), "x" * 300)) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_is_known_by_its_addresses(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "desk.local", "localhost.evil.example", ""])
def test_everything_else_is_not_loopback(host: str):
    assert not is_loopback(host)


SYSTEM_A_FREE = [
    ("POST", "/v1/job/claim"),
    ("POST", f"/v1/job/{JOB}/heartbeat"),
    ("POST", f"/v1/job/{JOB}/complete"),
    ("POST", f"/v1/job/{JOB}/fail"),
    ("PUT", f"/v1/model/{JOB}"),
    ("GET", "/v1/workers"),
]
SYSTEM_A_OPERATORS = [
    ("POST", f"/v1/job/{JOB}/cancel"),
    ("POST", f"/v1/job/{JOB}/requeue"),
    ("POST", "/v1/job/claim/cancel"),
    ("POST", "/v1/manifest/reload"),
]


def test_the_token_of_the_coordinators_own_launcher_may_only_launch():
    desk, token = Desk(changed(EVERYWHERE, launch_token=b"launcher" * 6)), f"Bearer {'launcher' * 6}"
    assert desk.ask("POST", "/v1/pools/watch", authorization=token).role is Role.LAUNCH
    for path in ("/v1/jobs", "/v1/pools/a100/stop", "/v1/tokens"):
        assert desk.status("POST", path, authorization=token) == 403
    assert Desk(EVERYWHERE).status("POST", "/v1/pools/watch", authorization=token) == 403
    assert Desk(EVERYWHERE).status("POST", "/v1/pools/watch", authorization="Bearer ") == 403


LOCAL_A, REMOTE_A = (changed(rules, system_a=True) for rules in (HERE, EVERYWHERE))


@pytest.mark.parametrize("rules", [HERE, EVERYWHERE], ids=["loopback", "elsewhere"])
@pytest.mark.parametrize(("method", "path"), [*SYSTEM_A_FREE, *SYSTEM_A_OPERATORS])
def test_routes_of_system_a_are_off_unless_they_are_asked_for(rules: Rules, method: str, path: str):
    for said in ({}, {"x_operator_token": TOKEN}):
        with pytest.raises(NotFound, match="system A are off") as refused:
            Desk(rules).ask(method, path, LAB1, **said)
        assert "--system-a" in refused.value.hint


@pytest.mark.parametrize(("method", "path"), [*SYSTEM_A_FREE, ("GET", "/v1/jobs")])
def test_on_loopback_system_a_asks_without_credentials_and_elsewhere_with_them(method: str, path: str):
    assert status(LOCAL_A, method, path) == 0
    assert status(REMOTE_A, method, path) == 401
    assert status(LOCAL_A, method, path, host="evil.example") == 403
    if method != "GET":
        assert status(LOCAL_A, method, path, origin="http://evil.example") == 403
        assert Desk(REMOTE_A).ask(method, path, LAB1) == Principal(name="lab1", role=Role.WORKER)


@pytest.mark.parametrize(("method", "path"), SYSTEM_A_OPERATORS)
def test_operators_of_system_a_need_their_token_everywhere(method: str, path: str):
    for rules in (LOCAL_A, REMOTE_A):
        desk = Desk(rules)
        assert desk.status(method, path) == 401
        assert desk.status(method, path, x_operator_token=TOKEN) == 0
        for role in ROLES:
            is_refused = role in (Role.READ, Role.SUBMIT, Role.LAUNCH)
            assert desk.status(method, path, x_operator_token=role.value * 9) == (403 if is_refused else 0)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs"),
        ("POST", "/v1/jobs/a/cancel"),
        ("GET", "/v1/tokens"),
        ("GET", "/v1/invites"),
        ("POST", "/v1/reload"),
    ],
)
def test_system_a_opens_nothing_of_peoples(method: str, path: str):
    assert status(LOCAL_A, method, path) == 401
