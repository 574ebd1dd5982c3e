"""F38 to F45: connections that are cut, slow, silent, not trusted or not there, and proxies that get in the way."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import AuthRefused, BadAnswer, NetworkFailed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.transfer.download.types import DownloadTimeouts
from tests.fault.download_lab import HALF, ONE, SIZE, Case, Lab, both_ways, goes_on, judge, open_lab, parametrised
from tests.servers import habits as bad
from tests.servers.certificates import Authority
from tests.servers.faulty import Act, Answer, Asked, FaultyServer, Habit, Line, Version, well


def _slowly(data: bytes, pause_s: float) -> list[bytes | Act]:
    pieces: list[bytes | Act] = []
    for at in range(len(data)):
        pieces += [data[at : at + 1], lambda line: time.sleep(pause_s)]
    return pieces


def _early_hints(asked: Asked, version: Version) -> Answer:
    right = version.answer(asked)
    right.raw_head = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + right.head()
    return right


def _body_of_head(asked: Asked, version: Version) -> Answer:
    right = version.answer(asked)
    right.sends_body_of_head = True
    return right


def _with_more_behind(asked: Asked, version: Version) -> Answer:
    """A right answer with rubbish behind it, where the next answer would begin."""
    right = version.answer(asked)
    right.body = (right.data + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",)
    return right


MANY_FIELDS = b"".join(b"X-%d: 1\r\n" % number for number in range(500))

CASES = [
    Case(id="F37-reset-in-the-resume", habit=bad.at_first(1, bad.cut(5000, Line.reset)), had=HALF, asks=goes_on),
    Case(id="F37-reset-always", habit=bad.to_gets(bad.cut(0, Line.reset)), ends=NetworkFailed),
    Case(id="F38-closed-before-the-head", habit=bad.at_first(1, bad.before_head(Line.close))),
    Case(id="F38-closed-before-the-head-always", habit=bad.before_head(Line.close), ends=NetworkFailed),
    Case(id="F38-reset-before-the-head", habit=bad.at_first(2, bad.before_head(Line.reset))),
    Case(id="F38-half-a-head", habit=bad.at_first(1, bad.before_head(b"HTTP/1.1 200 OK\r\nContent-Le", Line.close))),
    Case(id="F38-not-http", habit=bad.before_head(b"SSH-2.0-OpenSSH_9.2\r\n", Line.close), ends=BadAnswer),
    Case(id="F38-no-head-at-all", habit=bad.before_head(ONE.data, Line.close), ends=BadAnswer),
    Case(
        id="F39-head-without-end",
        habit=bad.before_head(*_slowly(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400, 0.005)),
        ends=NetworkFailed,
        read_s=0.3,
    ),
    Case(id="F39-silent-before-the-head", habit=bad.at_first(1, bad.before_head(Line.stall)), read_s=0.3),
    Case(
        id="F41-silent-in-the-body",
        habit=bad.at_first(1, bad.stalling(HALF)),
        read_s=0.3,
        asks=lambda asked: asked[1].first_byte == HALF,
    ),
    Case(id="F41-silent-always", habit=bad.to_gets(bad.stalling(0)), read_s=0.2, ends=NetworkFailed),
    Case(id="F41-silent-in-the-resume", habit=bad.at_first(1, bad.stalling(7000)), had=HALF, read_s=0.3, asks=goes_on),
    Case(id="early-hints", habit=_early_hints),
    Case(id="body-of-a-head", habit=_body_of_head),
    Case(id="rubbish-behind-the-body", habit=_with_more_behind, ends_bare=BadAnswer),
    Case(
        id="500-fields",
        habit=bad.at_first(9, bad.raw_head(lambda head: head[:-2] + MANY_FIELDS + b"\r\n")),
        ends=BadAnswer,
    ),
    Case(
        id="a-field-of-a-megabyte",
        habit=bad.raw_head(lambda head: head[:-2] + b"X: " + b"y" * 2**20 + b"\r\n\r\n"),
        ends=BadAnswer,
    ),
    Case(id="a-head-of-bare-line-feeds", habit=bad.raw_head(lambda head: head.replace(b"\r\n", b"\n"))),
    Case(id="a-nul-in-the-head", habit=bad.raw_head(lambda head: head[:-2] + b"X: a\0b\r\n\r\n"), ends=BadAnswer),
    Case(id="a-field-without-name", habit=bad.raw_head(lambda head: head[:-2] + b": nothing\r\n\r\n"), ends=BadAnswer),
    Case(
        id="status-of-four-digits", habit=bad.raw_head(lambda head: head.replace(b" 200 ", b" 2000 ")), ends=BadAnswer
    ),
    Case(id="status-with-a-sign", habit=bad.raw_head(lambda head: head.replace(b" 200 ", b" +200 ")), ends=BadAnswer),
    Case(id="http-9.9", habit=bad.raw_head(lambda head: head.replace(b"HTTP/1.1", b"HTTP/9.9")), ends=BadAnswer),
]


@both_ways
@parametrised(CASES)
def test_a_broken_connection_costs_no_more_than_what_it_did_not_bring(case, with_digest, memory):
    judge(case, memory / "out", with_digest=with_digest)


def test_f40_a_body_that_drips_is_asked_for_again_where_it_was(memory):
    clock = FakeClock()
    with open_lab(memory / "out", clock=clock) as lab:
        # The pause is real only so that the pieces arrive one by one.
        drips = bad.in_pieces(1, lambda: (clock.advance(1.0), time.sleep(0.001)), start=HALF)
        lab.server.become(bad.at_first(1, drips))
        lab.fetch(ONE)
        assert lab.has() == ONE.data
        first, second = lab.server.gets()
        assert first.first_byte == 0
        assert HALF < second.first_byte < HALF + 200
        (reason,) = lab.reasons()
        assert "slow" in reason


def test_f40_a_small_body_that_only_ever_drips_is_given_up(memory):
    clock = FakeClock()
    with open_lab(memory / "out", replace(ONE, data=ONE.data[:400]), clock=clock) as lab:
        lab.server.become(bad.in_pieces(1, lambda: (clock.advance(1.0), time.sleep(0.001))))
        with pytest.raises(NetworkFailed):
            lab.fetch()
        assert len(lab.server.gets()) == 3
        assert lab.has() is None


@pytest.mark.parametrize(("read_s", "silent_s", "requests"), [(5.0, 0.2, 1), (0.5, 0.8, 2)], ids=["shorter", "longer"])
def test_f41_silence_is_borne_as_long_as_was_said_and_no_longer(memory, read_s, silent_s, requests):
    with open_lab(memory / "out", read_s=read_s) as lab:
        pauses_s = iter([silent_s])
        lab.server.become(bad.in_pieces(HALF, lambda: time.sleep(next(pauses_s, 0)), start=HALF))
        lab.fetch(ONE)
        assert lab.has() == ONE.data
        assert len(lab.server.gets()) == requests


# --- F42: TLS


@contextlib.contextmanager
def tls_lab(lab: Lab, server: FaultyServer, authority: Authority | None) -> Iterator[Lab]:
    transport = Urllib3Transport(HttpSettings(connect_s=5, read_s=5, ca_file=str(authority.path) if authority else ""))
    try:
        yield replace_server(lab, server, transport)
    finally:
        transport.close()


def replace_server(lab: Lab, server: FaultyServer, transport: Urllib3Transport) -> Lab:
    return Lab(folder=lab.folder, server=server, clock=lab.clock, transport=transport)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def lab(memory):
    with open_lab(memory / "out") as lab:
        yield lab


def test_f42_a_certificate_that_we_trust_is_enough(lab, authority):
    with FaultyServer(ONE, tls=authority.server()) as server, tls_lab(lab, server, authority) as secure:
        secure.fetch(ONE)
        assert secure.has() == ONE.data


@pytest.mark.parametrize("how", ["unknown", "expired", "other-host"])
def test_f42_a_certificate_that_can_not_be_trusted_is_refused_at_once(lab, authority, how):
    context = authority.server(
        "DNS:elsewhere.test" if how == "other-host" else "IP:127.0.0.1", is_expired=how == "expired"
    )
    with (
        FaultyServer(ONE, tls=context) as server,
        tls_lab(lab, server, None if how == "unknown" else authority) as secure,
    ):
        with pytest.raises(NetworkFailed) as caught:
            secure.fetch(ONE)
        assert "certificate" in caught.value.message
        assert server.asked == []
        assert server.connections == 1
        assert secure.has() is None


@both_ways
@pytest.mark.parametrize("length", ["announced", "until-the-end"])
def test_f42_tls_that_ends_without_saying_so_is_a_cut(lab, authority, with_digest, length):
    """Whoever is in between could have cut it: without a length, the end of the connection is no end of the body."""

    def dropped(asked: Asked, version: Version) -> Answer:
        right = version.answer(asked)
        right.body = (right.data[: len(right.data) // 2], Line.drain, Line.drop)
        return right if length == "announced" else right.set("Content-Length")

    with FaultyServer(ONE, tls=authority.server()) as server, tls_lab(lab, server, authority) as secure:
        server.become(bad.at_first(1, dropped))
        secure.fetch(ONE if with_digest else None)
        assert secure.has() == ONE.data


def test_f42_plain_http_where_tls_was_expected_is_told(lab):
    with pytest.raises(NetworkFailed):
        lab.fetch(url=lab.server.url.replace("http:", "https:"))
    assert lab.has() is None


# --- F43: nobody there


def test_f43_a_refused_port_is_told_after_the_last_attempt(lab):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(NetworkFailed) as caught:
            lab.fetch(url=url)
    assert len(lab.reasons()) == 2
    assert caught.value.exit_code == 14


def test_f43_a_name_that_nobody_knows_is_told(lab, monkeypatch):
    def unknown(host: str, *args: object, **options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(NetworkFailed) as caught:
        lab.fetch(url="http://no-such-host.test/file", patience=DownloadTimeouts())
    assert "no-such-host.test" in caught.value.message
    assert caught.value.message.endswith("(3 attempts without a new byte)")
    assert "spelling" in caught.value.hint
    assert lab.reasons() == ["dns", "dns"]


def test_f43_a_proxy_that_nobody_knows_is_told(lab, monkeypatch):
    def unknown(host: str, *args: object, **options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    transport = Urllib3Transport(HttpSettings(proxies={"http": "http://no-such-proxy.test:3128"}))
    with contextlib.closing(transport), pytest.raises(NetworkFailed, match=r"no-such-proxy\.test") as caught:
        replace(lab, transport=transport).fetch(url="http://files.test/file", patience=DownloadTimeouts())
    assert "HTTP_PROXY" in caught.value.hint
    assert lab.reasons() == ["proxy", "proxy"]


def test_f43_name_servers_that_fail_are_waited_for(lab, monkeypatch):
    answers = [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")] * 10
    lab.fetch(ONE, url=_by_name(lab, monkeypatch, answers), patience=DownloadTimeouts())
    assert (lab.has(), lab.reasons()) == (ONE.data, ["dns"] * 10)


def test_f43_a_name_that_was_reached_and_is_gone_is_waited_for(lab, monkeypatch):
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    lab.server.become(bad.at_first(1, bad.cut(HALF)))
    lab.fetch(ONE, url=_by_name(lab, monkeypatch, [None, *[unknown] * 10]), patience=DownloadTimeouts())
    assert (lab.has(), lab.reasons()) == (ONE.data, ["short_body", *["dns"] * 10])


def _by_name(lab: Lab, monkeypatch: pytest.MonkeyPatch, answers: Sequence[socket.gaierror | None]) -> str:
    """Return an address of the lab's server by a name that is looked up with these answers, then always found."""
    look_up, coming = socket.getaddrinfo, iter(answers)

    def answer(host: str, *args: Any, **options: Any) -> object:
        if error := next(coming, None):
            raise error
        return look_up("127.0.0.1", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return lab.server.url.replace("127.0.0.1", "files.test")


@contextlib.contextmanager
def black_hole(port: int = 0) -> Iterator[int]:
    """An address of this machine that takes no connection and refuses none: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_INET6))
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(("::1", port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket(socket.AF_INET6))
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield listener.getsockname()[1]


def test_f43_an_address_that_swallows_everything_costs_the_time_to_connect_and_no_more(lab):
    quick = Urllib3Transport(HttpSettings(connect_s=0.2))
    with black_hole() as port, contextlib.closing(quick):
        one = Lab(folder=lab.folder, server=lab.server, clock=lab.clock, transport=quick)
        with pytest.raises(NetworkFailed):
            one.fetch(url=f"http://[::1]:{port}/file", patience=DownloadTimeouts(attempts=2))


def test_f43_a_host_whose_first_address_is_dead_is_reached_by_its_second(lab, monkeypatch):
    port = lab.server.port
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with black_hole(port):
        lab.fetch(ONE, url=f"http://two-addresses.test:{port}/file")
    assert lab.has() == ONE.data


def test_f43_a_server_on_ipv6_is_a_server_like_any_other(lab):
    with FaultyServer(ONE, bad.at_first(1, bad.cut(HALF)), host="::1") as server:
        lab.fetch(ONE, url=server.url)
        lab.transport.close()
    assert lab.has() == ONE.data


# --- F44: kept connections


@pytest.mark.parametrize("end", [Line.close, Line.reset], ids=["closed", "reset"])
def test_f44_a_kept_connection_that_the_server_has_ended_is_no_attempt(lab, end):
    def ended(asked: Asked, version: Version) -> Answer:
        right = version.answer(asked)
        right.body = (right.data, Line.drain, end)
        return right

    lab.server.become(ended)
    for _ in range(3):
        lab.fetch(ONE, patience=DownloadTimeouts(attempts=1), force=True)
        assert lab.has() == ONE.data
    assert lab.reasons() == []


def test_a_connection_is_kept_for_the_next_file_where_the_body_was_read_to_its_end(lab):
    for _ in range(3):
        lab.fetch(ONE, force=True)
    assert lab.server.connections == 1


# --- F45: proxies


@contextlib.contextmanager
def behind_proxy(lab: Lab, habit: Habit, **settings: object) -> Iterator[tuple[Lab, FaultyServer]]:
    """A proxy that serves every file by itself, as one with a cache would, with a bad habit."""
    with FaultyServer(ONE, habit) as proxy:
        proxies = {"http": proxy.origin, "https": proxy.origin}
        transport = Urllib3Transport(HttpSettings(connect_s=2, read_s=2, proxies=proxies))
        try:
            yield replace_server(lab, lab.server, transport), proxy
        finally:
            transport.close()


@both_ways
def test_f45_a_proxy_that_strips_ranges_costs_the_whole_file_again(lab, with_digest):
    wanted = ONE if with_digest else None
    lab.interrupt(HALF, wanted)
    lab.server.become(well)
    with behind_proxy(lab, bad.ignores_ranges) as (proxied, proxy):
        proxied.fetch(wanted)
        assert proxied.has() == ONE.data
        assert lab.server.asked == []
        assert proxy.gets()[0].target == lab.server.url


def test_f45_a_proxy_that_wants_to_know_who_we_are_is_told_apart_from_the_server(lab):
    with behind_proxy(lab, bad.status(407, Proxy_Authenticate="Basic")) as (proxied, proxy):
        with pytest.raises((AuthRefused, NetworkFailed)) as caught:
            proxied.fetch(ONE)
        assert "proxy" in caught.value.message
        assert len(proxy.gets()) == 1
        assert lab.has() is None


@pytest.mark.parametrize(
    "habit",
    [
        bad.before_head(Line.close),
        bad.before_head(Line.reset),
        bad.status(407),
        bad.status(502),
        bad.before_head(b"x\r\n\r\n", Line.close),
    ],
    ids=["closed", "reset", "407", "502", "rubbish"],
)
def test_f45_a_proxy_that_drops_connect_is_told(lab, habit):
    with behind_proxy(lab, habit) as (proxied, proxy):
        proxy.versions["example.test:443"] = ONE
        with pytest.raises((NetworkFailed, AuthRefused, BadAnswer)):
            proxied.fetch(ONE, url="https://example.test/file", headers={"Authorization": "Bearer secret"})
        assert proxy.asked
        assert all(asked.method == "CONNECT" for asked in proxy.asked)
        assert all(asked.field("Authorization") is None for asked in proxy.asked)
    assert lab.has() is None


def test_two_downloads_at_once_over_one_transport_do_not_mix(memory):
    with open_lab(memory / "out") as lab:
        other = replace(ONE, data=ONE.data[::-1])
        lab.server.versions["/other"] = other
        lab.server.become(bad.at_first(3, bad.cut(SIZE // 4)))
        failures: list[BaseException] = []

        def fetch(name: str, version: Version) -> None:
            one = Lab(folder=memory / name, server=lab.server, clock=FakeClock(), transport=lab.transport)
            one.folder.mkdir()
            try:
                one.fetch(version, url=f"{lab.server.origin}/{name}")
                assert one.has() == version.data
            except BaseException as error:  # noqa: BLE001 - carried over to the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=fetch, args=pair) for pair in (("file", ONE), ("other", other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
