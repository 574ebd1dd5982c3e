"""Proxies that are real: requests handed on, tunnels through them, and whose fault it is when they fail."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from stoker.core.errors import NetworkFailed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings, Request
from tests.servers import habits
from tests.servers.certificates import Authority
from tests.servers.faulty import Act, Answer, FaultyServer, Habit, Line, Version
from tests.servers.tunnel import TunnelProxy

FILE = Version(data=b"the whole of it")


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secure(authority) -> Iterator[FaultyServer]:
    with FaultyServer(FILE, tls=authority.server("DNS:server.test")) as server:
        yield server


@contextmanager
def _through(proxy: str, authority: Authority | None = None, **settings: float) -> Iterator[Urllib3Transport]:
    ca_file = str(authority.path) if authority else ""
    told = {"connect_s": 5.0, "head_s": 5.0, "read_s": 5.0} | settings
    with closing(Urllib3Transport(HttpSettings(proxies={"all": proxy}, ca_file=ca_file, **told))) as transport:  # type: ignore[arg-type]
        yield transport


def _get(transport: Urllib3Transport, url: str) -> bytes:
    with closing(transport.send(Request(url=url, headers={"Authorization": "Bearer secret"}))) as reply:
        return b"".join(iter(lambda: reply.read(1 << 20), b""))


def _failure(transport: Urllib3Transport, url: str) -> NetworkFailed:
    with pytest.raises(NetworkFailed) as caught:
        _get(transport, url)
    assert "\n" not in caught.value.message
    assert "secret" not in str(caught.value.to_dict())
    return caught.value


def _raw(*pieces: bytes | Act) -> Habit:
    return lambda asked, version: Answer(raw_head=b"", body=pieces)


def test_a_plain_request_is_handed_to_the_proxy_with_its_whole_address():
    with FaultyServer(FILE) as proxy:
        with _through(proxy.origin.replace("://", "://us:pw@")) as transport:
            assert _get(transport, "http://server.test/file?q=1") == FILE.data
            assert _get(transport, "http://other.test:8080/file") == FILE.data
        first, second = proxy.asked
        assert first.target == "http://server.test/file?q=1"
        assert first.field("Host") == "server.test"
        assert first.field("Proxy-Authorization") == "Basic dXM6cHc="
        assert second.field("Host") == "other.test:8080"
        assert proxy.connections == 1


def test_a_proxy_without_a_password_gets_none():
    with FaultyServer(FILE) as proxy, _through(proxy.origin) as transport:
        _get(transport, "http://server.test/file")
        assert proxy.asked[0].field("Proxy-Authorization") is None


def test_a_plain_request_may_go_to_a_proxy_over_tls(authority):
    with (
        FaultyServer(FILE, tls=authority.server("IP:127.0.0.1")) as proxy,
        _through(proxy.origin, authority) as transport,
    ):
        assert _get(transport, "http://server.test/file") == FILE.data
        assert proxy.asked[0].target == "http://server.test/file"


def test_https_goes_through_a_tunnel_that_the_proxy_can_not_look_into(authority, secure):
    with TunnelProxy(("127.0.0.1", secure.port), password="dXM6cHc=") as proxy:
        with _through(proxy.origin.replace("://", "://us:pw@"), authority) as transport:
            for _ in range(3):
                assert _get(transport, "https://server.test/file?sig=secret") == FILE.data
        (head,) = proxy.heads
        assert head.startswith("CONNECT server.test:443 HTTP/1.")
        assert "Bearer" not in head
        assert "sig" not in head
        assert secure.asked[0].field("Authorization") == "Bearer secret"
        assert secure.asked[0].field("Proxy-Authorization") is None
        assert secure.asked[0].target == "/file?sig=secret"


def test_a_tunnel_may_go_through_a_proxy_over_tls(authority, secure):
    with (
        TunnelProxy(("127.0.0.1", secure.port), tls=authority.server("IP:127.0.0.1")) as proxy,
        _through(proxy.origin, authority) as transport,
    ):
        assert _get(transport, "https://server.test/file") == FILE.data


def test_a_server_behind_a_tunnel_is_checked_like_any_other(authority, secure):
    with TunnelProxy(("127.0.0.1", secure.port)) as proxy:
        with _through(proxy.origin, authority) as transport:
            error = _failure(transport, "https://else.test/file")
            assert (error.data["reason"], error.data["host"]) == ("certificate", "else.test")
        with _through(proxy.origin) as transport:
            assert _failure(transport, "https://server.test/file").data["reason"] == "certificate"


@pytest.mark.parametrize("who", ["", "us:wrong@"])
def test_a_proxy_that_wants_a_password_is_told_apart(authority, secure, who):
    with TunnelProxy(("127.0.0.1", secure.port), password="dXM6cHc=") as proxy:
        with _through(proxy.origin.replace("://", f"://{who}"), authority) as transport:
            error = _failure(transport, "https://server.test/file")
        assert (error.data["reason"], error.data["is_lasting"]) == ("proxy_auth", True)
        assert "NAME:PASSWORD" in error.hint
        assert "wrong" not in str(error.to_dict())
    assert secure.asked == []


def test_a_proxy_that_wants_a_password_for_plain_requests_is_told_apart():
    with FaultyServer(FILE, habits.status(407)) as proxy, _through(proxy.origin) as transport:
        assert _failure(transport, "http://server.test/file").data["reason"] == "proxy_auth"


def test_a_407_from_a_server_itself_is_just_an_answer():
    with (
        FaultyServer(FILE, habits.status(407)) as server,
        closing(Urllib3Transport(HttpSettings())) as transport,
        closing(transport.send(Request(url=server.url, headers={}))) as reply,
    ):
        assert reply.status == 407


@pytest.mark.parametrize(
    ("habit", "cause"),
    [
        (_raw(Line.close), "closed_early"),
        (_raw(Line.reset), "reset"),
        (_raw(b"HTTP/1.1 200 OK\r\nVi", Line.close), "closed_early"),
        (_raw(b"hello?\r\n\r\n", Line.close), "protocol"),
    ],
)
def test_a_proxy_that_makes_no_tunnel_is_blamed(habit, cause):
    with FaultyServer(habit=habit) as proxy, _through(proxy.origin) as transport:
        proxy.versions["server.test:443"] = FILE
        error = _failure(transport, "https://server.test/file")
        assert (error.data["reason"], error.data["cause"]) == ("proxy", cause)
        assert str(proxy.port) in error.message
        assert "HTTPS_PROXY" in error.hint


def test_a_proxy_that_refuses_a_tunnel_is_blamed_with_its_status():
    with FaultyServer(habit=habits.status(502)) as proxy, _through(proxy.origin) as transport:
        proxy.versions["server.test:443"] = FILE
        error = _failure(transport, "https://server.test/file")
        assert (error.data["reason"], error.data["status"]) == ("proxy", 502)


def test_a_proxy_that_is_silent_is_given_up_by_the_time_to_connect():
    with FaultyServer(habit=_raw(Line.stall)) as proxy, _through(proxy.origin, connect_s=0.2) as transport:
        proxy.versions["server.test:443"] = FILE
        error = _failure(transport, "https://server.test/file")
        assert (error.data["reason"], error.data["cause"]) == ("proxy", "connect_timeout")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_blamed(scheme):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with _through(f"http://us:secret@{address}") as transport:
            error = _failure(transport, f"{scheme}://server.test/file")
    assert (error.data["reason"], error.data["cause"], error.data["host"]) == ("proxy", "refused", address)


def test_hosts_on_the_list_are_asked_directly():
    with FaultyServer(FILE) as server:
        settings = HttpSettings(proxies={"http": "http://127.0.0.1:1"}, no_proxy=("127.0.0.0/8",))
        with closing(Urllib3Transport(settings)) as transport:
            assert _get(transport, server.url) == FILE.data
