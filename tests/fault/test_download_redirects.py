"""F54 to F58: redirects that would give our secrets away, lead in circles, or lead where nobody should go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stoker.core.errors import BadAnswer, NetworkFailed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.transfer.download.types import DownloadTimeouts
from tests.fault.download_lab import HALF, ONE, Lab, both_ways, open_lab
from tests.servers import habits as bad
from tests.servers.certificates import Authority
from tests.servers.faulty import Answer, Asked, FaultyServer, Habit, Version, well

SECRETS = {"Authorization": "Bearer secret", "Cookie": "session=secret", "X-Token": "secret"}


@pytest.fixture
def lab(memory):
    with open_lab(memory / "out") as lab:
        yield lab


@pytest.fixture
def other():
    with FaultyServer(ONE) as server:
        yield server


def secrets_in(asked: Asked) -> list[str]:
    return [name for name, value in asked.fields if "secret" in value]


def once(location: str) -> Habit:
    """Redirect whoever asks for the file itself, and serve everything else."""

    def answer(asked: Asked, version: Version) -> Answer:
        return (bad.redirected(location) if asked.target == "/file" else well)(asked, version)

    return answer


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["F54-other-host", "F55-other-port"])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_credentials_stay_with_the_server_that_they_are_for(lab, other, host, code):
    lab.server.become(bad.to_gets(bad.redirected(f"http://{host}:{other.port}/file", code)))
    lab.fetch(ONE, headers=SECRETS)
    lab.transport.close()
    assert lab.has() == ONE.data
    assert other.gets()
    assert [secrets_in(asked) for asked in other.asked] == [[]] * len(other.asked)
    assert all(secrets_in(asked) for asked in lab.server.gets())


def test_f54_credentials_do_not_come_back_when_a_redirect_leads_back(lab, other):
    """There and back again: whoever sent us back chose the address, so it gets nothing."""
    lab.server.versions["/second"] = ONE
    other.become(bad.to_gets(bad.redirected(f"{lab.server.origin}/second")))
    lab.server.become(
        lambda asked, version: (
            bad.redirected(other.url)(asked, version) if asked.path == "/file" else well(asked, version)
        )
    )
    lab.fetch(ONE, headers=SECRETS)
    lab.transport.close()
    (second,) = [asked for asked in lab.server.gets() if asked.path == "/second"]
    assert secrets_in(second) == []


def test_credentials_are_kept_on_the_same_server(lab):
    lab.server.versions["/second"] = ONE
    lab.server.become(
        lambda asked, version: (
            bad.redirected("/second")(asked, version) if asked.path == "/file" else well(asked, version)
        )
    )
    lab.fetch(ONE, headers=SECRETS)
    assert lab.has() == ONE.data
    assert all(len(secrets_in(asked)) == len(SECRETS) for asked in lab.server.gets())


@both_ways
def test_f54_a_resume_over_a_redirect_sends_the_range_and_not_the_secrets(lab, other, with_digest):
    wanted = ONE if with_digest else None
    lab.server.become(bad.to_gets(bad.redirected(other.url)))
    other.become(bad.at_first(1, bad.cut(HALF)))
    lab.fetch(wanted, headers=SECRETS)
    lab.transport.close()
    assert lab.has() == ONE.data
    assert [asked.first_byte for asked in other.gets()] == [0, HALF]
    assert all(secrets_in(asked) == [] for asked in other.asked)


def test_f56_no_way_leads_from_https_to_http(lab, other, memory):
    authority = Authority(memory / "authority")
    transport = Urllib3Transport(HttpSettings(ca_file=str(authority.path)))
    with FaultyServer(ONE, bad.redirected(other.url), tls=authority.server()) as server:
        secure = Lab(folder=lab.folder, server=server, clock=lab.clock, transport=transport)
        with pytest.raises((BadAnswer, NetworkFailed)):
            secure.fetch(ONE, headers=SECRETS)
        transport.close()
    assert other.asked == []
    assert lab.has() is None


def _hops(count: int) -> Callable[[FaultyServer], Habit]:
    def habit(server: FaultyServer) -> Habit:
        for number in range(count + 1):
            server.versions[f"/{number}"] = ONE

        def answer(asked: Asked, version: Version) -> Answer:
            number = 0 if asked.path == "/file" else int(asked.path[1:])
            return bad.redirected(f"/{number + 1}")(asked, version) if number < count else well(asked, version)

        return answer

    return habit


def _alternating(server: FaultyServer) -> Habit:
    server.versions["/second"] = ONE
    return lambda asked, version: bad.redirected("/second" if asked.path == "/file" else "/file")(asked, version)


REFUSED: dict[str, Callable[[FaultyServer], Habit]] = {
    "F57-to-itself": lambda server: bad.redirected(server.url),
    "F57-in-turns": _alternating,
    "F57-eleven-hops": _hops(11),
    "F57-credentials": lambda server: bad.redirected(f"http://user:word@127.0.0.1:{server.port}/file"),
    "F57-no-location": lambda server: bad.status(302),
    "F57-empty-location": lambda server: bad.redirected(""),
    "F57-two-locations": lambda server: bad.with_fields(bad.redirected("/a"), location=("/a", "/b")),
    "F57-file-scheme": lambda server: bad.redirected("file:///etc/passwd"),
    "F57-ftp-scheme": lambda server: bad.redirected("ftp://127.0.0.1/file"),
    "F57-no-host": lambda server: bad.redirected("http:///file"),
    "F57-port-of-words": lambda server: bad.redirected("http://127.0.0.1:many/file"),
    "F57-port-too-large": lambda server: bad.redirected("http://127.0.0.1:99999/file"),
    "F57-broken-ipv6": lambda server: bad.redirected("http://[::1/file"),
    "F57-javascript": lambda server: bad.redirected("javascript:alert(1)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_redirect_that_leads_nowhere_is_told_at_once(lab, case):
    lab.server.become(REFUSED[case](lab.server))
    with pytest.raises((BadAnswer, NetworkFailed)) as caught:
        lab.fetch(ONE, patience=DownloadTimeouts(attempts=1))
    assert "word" not in caught.value.message
    assert lab.has() is None
    assert len(lab.server.gets()) <= 12
    lab.server.become(well)
    lab.fetch(ONE)
    assert lab.has() == ONE.data


FOLLOWED = {
    "F57-relative": "other",
    "F57-absolute-path": "/other",
    "F57-without-scheme": "//127.0.0.1:{port}/other",
    "F57-upper-case": "HTTP://127.0.0.1:{port}/other",
    "F57-dots": "/a/../other",
    "F57-query-only": "?again=1",
    "F57-fragment": "/other?again=1#part",
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_a_redirect_may_be_written_in_many_ways(lab, case):
    lab.server.versions["/other"] = ONE
    lab.server.become(once(FOLLOWED[case].format(port=lab.server.port)))
    lab.fetch(ONE, patience=DownloadTimeouts(attempts=1))
    assert lab.has() == ONE.data
    assert not any("#" in asked.target for asked in lab.server.asked)


def test_f57_ten_hops_are_followed(lab):
    lab.server.become(_hops(10)(lab.server))
    lab.fetch(ONE, patience=DownloadTimeouts(attempts=1))
    assert lab.has() == ONE.data


@pytest.mark.parametrize(
    "inner", ["127.0.0.1", "127.1", "0x7f000001", "[::1]", "localhost", "169.254.169.254", "10.0.0.1"]
)
def test_f58_a_public_server_can_not_send_us_to_this_machine_or_its_neighbours(memory, inner):
    """Asked through a proxy of ours, so that a public name leads to a server of this test."""
    with open_lab(memory / "out") as lab, FaultyServer(ONE) as proxy:
        proxy.become(bad.at_first(1, bad.redirected(f"http://{inner}:{lab.server.port}/file")))
        transport = Urllib3Transport(HttpSettings(proxies={"http": proxy.origin}, connect_s=1))
        public = Lab(folder=lab.folder, server=lab.server, clock=lab.clock, transport=transport)
        with pytest.raises((BadAnswer, NetworkFailed)):
            public.fetch(ONE, url="http://models.example.com/file", patience=DownloadTimeouts(attempts=1))
        transport.close()
        assert lab.server.asked == []
        assert len(proxy.asked) == 1
        assert lab.has() is None
