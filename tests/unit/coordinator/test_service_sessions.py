from __future__ import annotations

import pytest

from stoker.coordinator.auth import ApiTokenRecord, TrustState, token_digest
from stoker.coordinator.http.access import Access, Peer, rules_for
from stoker.coordinator.http.http_messages import Refusal, refusal_of
from stoker.coordinator.http.pages import read_public_url
from stoker.coordinator.http.sessions import CODE_LIFE_S, LIFE_S, MOST_SESSIONS, Login, Sessions, lower_role
from stoker.core.clock import FakeClock
from stoker.core.errors import Forbidden, StokerError
from stoker.core.frozen import changed
from stoker.core.leases import Principal, Role

TOKEN = b"stk_anna"
ANNA = ApiTokenRecord(id="a1", name="anna", role="submit", sha256=token_digest(TOKEN))
HOST = b"127.0.0.1:7717"
OWN_PAGE = {b"host": HOST, b"origin": b"http://" + HOST, b"x-stoker-page": b"1"}
PEER = Peer(address="127.0.0.1")


class Desk:
    """An access check with sessions, at a clock that tests move."""

    def __init__(self, public: str = "", host: str = "127.0.0.1") -> None:
        self.clock = FakeClock()
        self.trust = TrustState()
        self.trust.tokens[ANNA.sha256] = ANNA
        self.sessions = Sessions(self.clock, instance="test")
        address = read_public_url(public) if public else None
        rules = rules_for(token="operator-token", host=host, port=7717, names=("desk.local:7717",), public=address)
        self.access = Access(rules, standing=lambda: self.trust, clock=self.clock, sessions=self.sessions)

    def cookie(self) -> bytes:
        made = self.access.log_in(OWN_PAGE, PEER, token=TOKEN.decode(), code="")
        self.key = made.key.encode()
        return made.cookie.partition(";")[0].encode()

    def status(self, method: str, path: str, **headers: bytes) -> int:
        named = {name.replace("_", "-").encode(): value for name, value in {"host": HOST, **headers}.items()}
        try:
            self.access.judge(method, path, named, PEER)
        except (StokerError, Refusal) as error:
            return refusal_of(error).status
        return 0


def test_a_token_begins_a_session_whose_cookie_reads():
    desk = Desk()
    made = desk.access.log_in(OWN_PAGE, PEER, token=TOKEN.decode(), code="")
    text, session = made.cookie, made.session
    assert "HttpOnly" in text
    assert "SameSite=Strict" in text
    assert TOKEN.decode() not in text
    assert session.login.principal == Principal(name="anna", role=Role.SUBMIT)
    assert desk.status("GET", "/v1/jobs", cookie=text.partition(";")[0].encode()) == 0
    assert desk.status("GET", "/v1/jobs") == 401


def test_a_change_by_cookie_needs_our_origin_and_the_key_of_the_session():
    desk = Desk()
    cookie, origin = desk.cookie(), b"http://" + HOST
    key, other = desk.key, Desk()
    other.cookie()
    ask = ("POST", "/v1/jobs/a/cancel")
    assert desk.status(*ask, cookie=cookie, origin=origin, x_stoker_page=key) == 0
    assert desk.status(*ask, cookie=cookie, origin=origin) == 403
    assert desk.status(*ask, cookie=cookie, x_stoker_page=key) == 403
    for foreign in (
        b"http://evil.example",
        b"null",
        b"http://127.0.0.1:7718",
        b"",
        b"http://" + HOST + b".evil.example",
    ):
        assert desk.status(*ask, cookie=cookie, origin=foreign, x_stoker_page=key) == 403
    for guess in (b"1", b"", other.key, key[:-1]):
        assert desk.status(*ask, cookie=cookie, origin=origin, x_stoker_page=guess) == 403


def test_a_page_without_a_session_learns_that_and_no_more():
    desk = Desk()
    assert desk.status("GET", "/v1/sessions") == 401
    assert desk.access.judge("GET", "/v1/sessions", OWN_PAGE, PEER).is_known is False
    desk.trust.tokens[ANNA.sha256] = changed(ANNA, revoked_s=desk.clock.wall_s())
    assert desk.status("GET", "/v1/sessions", x_stoker_page=b"1", x_operator_token=b"wrong") == 403
    assert desk.status("GET", "/v1/jobs", x_stoker_page=b"1") == 401


def test_one_user_does_not_end_the_sessions_of_another():
    desk = Desk()
    first = desk.cookie()
    eve = Login(principal=Principal(name="eve", role=Role.READ))
    for _ in range(MOST_SESSIONS + 10):
        desk.sessions.begin(eve)
        desk.sessions.make_code(eve)
    assert desk.status("GET", "/v1/jobs", cookie=first) == 0


def test_a_session_ends_while_the_machine_sleeps_too():
    desk = Desk()
    cookie = desk.cookie()
    desk.clock.suspend(LIFE_S)
    assert desk.status("GET", "/v1/jobs", cookie=cookie) == 401


def test_a_session_has_the_role_of_its_token():
    desk = Desk()
    headers = {"cookie": desk.cookie(), "origin": b"http://" + HOST, "x_stoker_page": desk.key}
    assert desk.status("POST", "/v1/machines/a/drain", **headers) == 403


def test_revoking_the_token_ends_its_sessions():
    desk = Desk()
    cookie = desk.cookie()
    desk.trust.tokens[ANNA.sha256] = changed(ANNA, revoked_s=desk.clock.wall_s())
    assert desk.status("GET", "/v1/jobs", cookie=cookie) == 401


def test_a_session_ends_after_half_a_day_and_at_log_out():
    desk = Desk()
    early, late = desk.cookie(), desk.cookie()
    desk.sessions.end({b"cookie": early})
    assert desk.status("GET", "/v1/jobs", cookie=early) == 401
    assert desk.status("GET", "/v1/jobs", cookie=late) == 0
    desk.clock.advance(LIFE_S)
    assert desk.status("GET", "/v1/jobs", cookie=late) == 401


def test_a_code_works_once_and_for_a_minute():
    desk = Desk()
    login = Login(principal=Principal(name="", role=Role.READ))
    code = desk.sessions.make_code(login)
    assert desk.access.log_in(OWN_PAGE, PEER, token="", code=code).session.login == login
    late = desk.sessions.make_code(login)
    desk.clock.advance(CODE_LIFE_S)
    for used in (code, late, "guess", "\ud800"):
        with pytest.raises(Refusal):
            desk.access.log_in(OWN_PAGE, PEER, token="", code=used)


def test_wrong_codes_are_limited():
    desk = Desk()
    codes = set()
    for _ in range(40):
        try:
            desk.access.log_in(OWN_PAGE, PEER, token="", code="guess")
        except (StokerError, Refusal) as error:
            codes.add(refusal_of(error).status)
    assert codes == {403, 429}


def test_a_form_of_another_page_does_not_log_in():
    with pytest.raises(Forbidden):
        Desk().access.log_in({b"host": HOST}, PEER, token=TOKEN.decode(), code="")


def test_a_code_has_at_most_the_role_of_its_maker():
    assert lower_role(Role.OPERATE, "read") is Role.READ
    assert lower_role(Role.SUBMIT, "") is Role.SUBMIT
    with pytest.raises(Forbidden):
        lower_role(Role.READ, "operate")
    with pytest.raises(Forbidden):
        lower_role(Role.ADMIN, "worker")


def test_pages_are_open_under_our_names_only():
    desk = Desk(host="0.0.0.0")
    assert desk.status("GET", "/", host=b"desk.local:7717") == 0
    assert desk.status("GET", "/assets/x/js/main.js", host=b"desk.local") == 0
    assert desk.status("GET", "/login", host=b"evil.example") == 403
    assert desk.status("GET", "/v1/health", host=b"any.example") == 0, "programs may use any name"
    assert desk.status("POST", "/", host=b"desk.local") in (401, 403)


def test_a_public_address_is_accepted_as_host_and_origin():
    desk = Desk(public="https://example.org/stoker")
    assert desk.status("GET", "/", host=b"example.org") == 0
    assert desk.status("GET", "/", host=b"example.org:443") == 0
    assert desk.status("GET", "/", host=b"evil.example") == 403
    headers = {"cookie": desk.cookie(), "x_stoker_page": desk.key, "origin": b"https://example.org"}
    cancel = "/v1/jobs/a/cancel"
    assert desk.status("POST", cancel, **headers) == 0
    assert desk.status("POST", cancel, **headers, host=b"example.org") == 0
    without_tls = {**headers, "host": b"example.org", "origin": b"http://example.org"}
    assert desk.status("POST", cancel, **without_tls) == 403


def test_a_cookie_under_tls_is_bound_to_its_host():
    sessions = Sessions(FakeClock(), instance="x", is_secure=True)
    text = sessions.begin(Login(principal=Principal(name="", role=Role.READ))).cookie
    assert text.startswith("__Host-stoker-")
    assert "; Secure" in text
    below = Sessions(FakeClock(), instance="x", is_secure=True, prefix="/stoker")
    assert not below.cookie_name.startswith("__Host-")
    assert sessions.cookie_name != Sessions(FakeClock(), instance="y", is_secure=True).cookie_name
