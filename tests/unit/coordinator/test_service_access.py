from __future__ import annotations

import pytest

from stoker.coordinator.service.access import Rules, is_loopback, judge, rules_for
from stoker.coordinator.service.speech import Refusal, known
from stoker.model.errors import StokerError
from stoker.model.fleet_errors import NotAllowed

TOKEN = "a-token-for-tests-only"
HERE = rules_for(token=TOKEN, host="127.0.0.1", port=7717)
EVERYWHERE = rules_for(token=TOKEN, host="0.0.0.0", port=7717)
JOB = "0" * 64


def status(rules: Rules, method: str, path: str, **headers: str) -> int:
    """Give the status that a request is refused with; 0 lets it pass."""
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    try:
        judge(rules, method, path, {b"host": b"127.0.0.1:7717", **named})
    except (Refusal, StokerError) as error:
        return known(error).status
    return 0


@pytest.mark.parametrize(
    "path",
    [
        "/v1/hello",
        "/v1/claims",
        "/v1/renewals",
        f"/v1/attempts/{JOB}/finish",
        f"/v1/attempts/{JOB}/files/logs/a.log",
        "/v1/uploads",
        "/v1/uploads/u1/finish",
        "/v1/job/claim",
        f"/v1/job/{JOB}/heartbeat",
        f"/v1/model/{JOB}",
    ],
)
def test_workers_are_let_in_on_loopback_and_need_the_token_elsewhere(path: str):
    assert status(HERE, "POST", path) == 0
    assert status(EVERYWHERE, "POST", path) == 401
    assert status(EVERYWHERE, "POST", path, x_operator_token=TOKEN) == 0


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs",
        "/v1/jobs/a/cancel",
        "/v1/machines/desk/drain",
        "/v1/reload",
        "/v1/manifest/reload",
        f"/v1/job/{JOB}/cancel",
        f"/v1/job/{JOB}/requeue",
        "/v1/job/claim/cancel",
        "/v1/hello/more",
        "/anything",
    ],
)
def test_what_an_operator_changes_needs_the_token_everywhere(path: str):
    for rules in (HERE, EVERYWHERE):
        assert status(rules, "POST", path) == 401
        assert status(rules, "POST", path, x_operator_token="another") == 403
        assert status(rules, "POST", path, x_operator_token="") == 403
        assert status(rules, "POST", path, x_operator_token=TOKEN) == 0


def test_a_coordinator_without_a_token_lets_no_operator_in():
    assert status(Rules(token=b"", is_open=True, hosts=frozenset()), "POST", "/v1/reload", x_operator_token="") == 403


def test_reads_are_open_on_loopback_only():
    assert status(HERE, "GET", "/v1/jobs") == 0
    assert status(HERE, "HEAD", f"/v1/objects/{JOB}") == 0
    assert status(EVERYWHERE, "GET", "/v1/jobs") == 401


@pytest.mark.parametrize("host", ["127.0.0.1:7717", "localhost:7717", "LOCALHOST:7717", "[::1]:7717", "127.0.0.1"])
def test_loopback_is_asked_by_its_own_names(host: str):
    assert status(HERE, "GET", "/v1/jobs", host=host) == 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:80", "127.0.0.1.evil.example:7717", "", "desk:7717"])
def test_any_other_name_is_refused_on_loopback(host: str):
    assert status(HERE, "GET", "/v1/jobs", host=host) == 403


def test_the_name_that_is_listened_at_is_ours():
    rules = rules_for(token=TOKEN, host="127.0.0.5", port=7717)
    assert status(rules, "GET", "/v1/jobs", host="127.0.0.5:7717") == 0
    assert status(rules_for(token=TOKEN, host="::1", port=1), "GET", "/v1/jobs", host="[::1]:1") == 0


def test_a_page_of_another_address_may_post_nothing():
    assert status(HERE, "POST", "/v1/hello", origin="https://evil.example") == 403
    assert status(HERE, "POST", "/v1/hello", origin="null") == 403
    assert status(HERE, "POST", "/v1/hello", origin="http://127.0.0.1:7717") == 0
    assert status(HERE, "POST", "/v1/reload", origin="https://evil.example", x_operator_token=TOKEN) == 403


@pytest.mark.parametrize(
    ("version", "expected"), [("1", 0), ("2", 412), ("0", 412), ("x", 400), ("", 400), ("-1", 400)]
)
def test_a_protocol_too_far_from_ours_is_refused(version: str, expected: int):
    assert status(HERE, "GET", "/v1/health", x_stoker_protocol=version) == expected


def test_a_refusal_says_what_to_do():
    with pytest.raises(Refusal) as caught:
        judge(HERE, "POST", "/v1/jobs", {b"host": b"127.0.0.1:7717"})
    told = known(caught.value)
    assert isinstance(told.error, NotAllowed)
    assert "STOKER_OPERATOR_TOKEN" in told.error.hint
    assert TOKEN not in str(told.error.to_dict())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_is_known_by_its_addresses(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "desk.local", "localhost.evil.example", ""])
def test_everything_else_is_not_loopback(host: str):
    assert not is_loopback(host)
