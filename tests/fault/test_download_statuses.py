"""F46 to F53: servers that are busy, broken, closed to us, or have no such thing."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import AuthRefused, BadAnswer, NetworkFailed, NotOnServer, RateLimited
from stoker.transfer.download.types import DownloadTimeouts
from tests.fault.download_lab import HALF, ONE, SIZE, Case, both_ways, goes_on, judge, open_lab, parametrised
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, FaultyServer, Version, well

CASES = [
    Case(id="F46-429-with-seconds", habit=bad.at_first(1, bad.status(429, Retry_After="3"))),
    Case(id="F46-429-always", habit=bad.status(429, Retry_After="3"), ends=RateLimited),
    Case(id="F46-429-in-the-resume", habit=bad.at_first(1, bad.status(429, Retry_After="3")), had=HALF, asks=goes_on),
    Case(id="F48-429-bare", habit=bad.at_first(1, bad.status(429))),
    Case(id="F48-429-garbage", habit=bad.at_first(1, bad.status(429, Retry_After="soon"))),
    Case(id="F48-429-negative", habit=bad.at_first(1, bad.status(429, Retry_After="-7"))),
    Case(id="F48-429-fraction", habit=bad.at_first(1, bad.status(429, Retry_After="1.5"))),
    Case(id="F48-429-nan", habit=bad.at_first(1, bad.status(429, Retry_After="nan"))),
    Case(id="F48-429-other-digits", habit=bad.at_first(1, bad.status(429, Retry_After="\u00b2"))),
    Case(id="F48-429-date-of-nowhere", habit=bad.at_first(1, bad.status(429, Retry_After="Mon, 99 Foo 2025"))),
    Case(id="F49-429-to-head-only", habit=bad.to_heads(bad.status(429, Retry_After="3"))),
    Case(id="F50-503-with-seconds", habit=bad.at_first(1, bad.status(503, Retry_After="3"))),
    Case(id="F50-503-always", habit=bad.status(503, Retry_After="3"), ends=NetworkFailed),
    *(Case(id=f"F50-{code}-twice", habit=bad.at_first(2, bad.status(code))) for code in (500, 502, 503, 504)),
    *(Case(id=f"F50-{code}-always", habit=bad.status(code), ends=NetworkFailed) for code in (500, 502, 504)),
    Case(id="F50-500-in-the-resume", habit=bad.at_first(2, bad.status(500)), had=HALF, asks=goes_on),
    Case(
        id="F50-503-with-a-page",
        habit=bad.at_first(1, bad.page(b"<html>busy</html>" * 1000, 503)),
        had=HALF,
        asks=goes_on,
    ),
    Case(id="F51-401", habit=bad.status(401), ends=AuthRefused, asks=lambda asked: len(asked) == 1),
    Case(id="F51-403", habit=bad.status(403), had=HALF, ends=AuthRefused, asks=lambda asked: len(asked) == 1),
    Case(id="F52-head-405", habit=bad.to_heads(bad.status(405))),
    Case(id="F52-head-403", habit=bad.to_heads(bad.status(403))),
    Case(id="F52-head-501", habit=bad.to_heads(bad.status(501))),
    *(
        Case(id=f"F53-{code}", habit=bad.status(code), had=HALF, ends=NotOnServer, asks=lambda asked: len(asked) == 1)
        for code in (404, 410, 451)
    ),
    *(
        Case(id=f"status-{code}", habit=bad.status(code), ends=BadAnswer)
        for code in (201, 204, 205, 300, 305, 400, 418)
    ),
    Case(id="status-408", habit=bad.at_first(1, bad.status(408))),
    Case(id="status-425", habit=bad.at_first(1, bad.status(425))),
    Case(id="status-599", habit=bad.at_first(1, bad.status(599))),
]


@both_ways
@parametrised(CASES)
def test_a_status_is_waited_out_or_told(case, with_digest, memory):
    judge(case, memory / "out", with_digest=with_digest)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def lab(memory, clock):
    with open_lab(memory / "out", clock=clock) as lab:
        yield lab


def waited_s(lab) -> float:
    """How long the only pause was."""
    (pause,) = [event.fields["wait_secs"] for event in lab.events if event.fields.get("phase") == "retry"]
    assert abs(lab.clock.monotonic_s() - pause) < 0.01
    return pause


@pytest.mark.parametrize("code", [429, 503])
def test_f46_the_seconds_that_a_server_asks_for_are_waited(lab, code):
    lab.server.become(bad.at_first(1, bad.status(code, Retry_After="17")))
    lab.fetch(ONE)
    assert waited_s(lab) == 17


@pytest.mark.parametrize("skew_s", [0, 3600, -3600], ids=["right", "fast", "slow"])
def test_f47_a_date_is_read_by_the_servers_own_clock(lab, clock, skew_s):
    def busy(asked: Asked, version: Version) -> Answer:
        there_s = clock.wall_s() + skew_s
        dates = {"Retry_After": formatdate(there_s + 9, usegmt=True), "Date": formatdate(there_s, usegmt=True)}
        return bad.status(429, **dates)(asked, version)

    lab.server.become(bad.at_first(1, busy))
    lab.fetch(ONE)
    assert waited_s(lab) == 9


@pytest.mark.parametrize("after", ["0", "-7", "soon", "", "1e3", "-1e999"])
def test_f48_a_pause_that_makes_no_sense_is_replaced_by_a_short_one(lab, after):
    lab.server.become(bad.at_first(1, bad.status(429, Retry_After=after)))
    lab.fetch(ONE)
    assert 0 < waited_s(lab) <= 5


def test_f48_a_pause_of_weeks_is_cut_down_or_refused_and_never_waited(lab, clock):
    lab.server.become(bad.at_first(1, bad.status(429, Retry_After="9" * 20)))
    with pytest.raises(RateLimited) as caught:
        lab.fetch(ONE)
    assert clock.monotonic_s() <= DownloadTimeouts().longest_retry_after_s
    assert caught.value.exit_code == 12
    lab.fetch(ONE)
    assert lab.has() == ONE.data


def test_f46_a_limit_that_outlives_the_attempts_is_told_with_its_own_exit_code(lab):
    lab.server.become(bad.status(429, Retry_After="2"))
    with pytest.raises(RateLimited):
        lab.fetch(ONE, patience=DownloadTimeouts(attempts=2))
    assert len(lab.server.gets()) == 2


def test_f50_attempts_that_bring_something_are_not_counted(lab):
    """Two failures, a few bytes, two failures, a few bytes: three attempts in a row without progress never come."""

    def now_and_then(asked: Asked, version: Version) -> Answer:
        if asked.number % 3 < 2:
            return bad.status(500)(asked, version)
        return bad.cut(SIZE // 5)(asked, version)

    lab.server.become(now_and_then)
    lab.fetch(ONE)
    assert lab.has() == ONE.data
    assert len(lab.server.gets()) == 15


@both_ways
def test_f51_a_signed_link_that_has_expired_is_asked_for_anew(lab, with_digest):
    """The origin gives links to another host that hold for one request: after a cut, the old one is refused there."""
    with FaultyServer() as cdn:
        cdn.versions["/blob"] = ONE
        issued: list[str] = []

        def issuing(asked: Asked, version: Version) -> Answer:
            issued.append(f"/blob?signature={len(issued)}")
            return bad.redirected(cdn.origin + issued[-1])(asked, version)

        used: set[str] = set()

        def once(asked: Asked, version: Version) -> Answer:
            if asked.target in used:
                return bad.status(403)(asked, version)
            used.add(asked.target)
            return bad.cut(HALF)(asked, version) if len(used) == 1 else version.answer(asked)

        lab.server.become(bad.to_gets(issuing))
        cdn.become(bad.to_gets(once))
        fetched = lab.fetch(ONE if with_digest else None)
        lab.transport.close()
        assert lab.has() == ONE.data
        assert fetched.bytes_from_network == len(ONE.data)
        assert "signature" not in fetched.url
        assert not [event for event in lab.events if "signature" in str(event)]


def test_f51_a_link_that_is_always_refused_elsewhere_is_not_a_matter_of_our_credentials_for_ever(lab):
    """The other host says 403 to every fresh link: told after a few of them, not asked for ever."""
    with FaultyServer(ONE, bad.status(403)) as cdn:
        lab.server.become(bad.to_gets(bad.redirected(cdn.url)))
        with pytest.raises((AuthRefused, NetworkFailed, NotOnServer)):
            lab.fetch(ONE)
        lab.transport.close()
        assert len(cdn.gets()) <= 5
    assert lab.has() is None


def test_the_budget_of_time_counts_pauses_too(lab, clock):
    lab.server.become(bad.status(503, Retry_After="50"))
    with pytest.raises(NetworkFailed):
        lab.fetch(ONE, patience=DownloadTimeouts(attempts=1000, no_progress_s=120))
    assert clock.monotonic_s() <= 120
    lab.server.become(well)
    lab.fetch(ONE)
    assert lab.has() == ONE.data
