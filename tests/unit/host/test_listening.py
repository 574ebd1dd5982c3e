from __future__ import annotations

import resource
import socket
import sys

import pytest

from stoker.core.errors import BadInput, Unavailable
from stoker.host import network
from stoker.host.network import allow_many_files, listen_addresses, listen_at, read_listen, source_of


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7717", "127.0.0.1", 7717),
        ("[::1]:0", "::1", 0),
        ("[::1]", "::1", -1),
        ("desk", "desk", -1),
        (":80", "", 80),
        ("", "", -1),
    ],
)
def test_an_address_is_read_as_people_write_it(text: str, host: str, port: int):
    assert read_listen(text) == (host, port)


@pytest.mark.parametrize("text", ["desk:http", "desk:70000", "::1", "desk:-1", "desk:٣"])
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(BadInput):
        read_listen(text)


def test_a_port_in_use_is_said_to_be():
    with listen_at("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port} is in use") as caught:
            listen_at("127.0.0.1", port)
        assert "--listen 127.0.0.1:0" in caught.value.hint


def test_the_hint_names_the_option_of_the_command():
    with listen_at("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(Unavailable) as caught:
            listen_at("127.0.0.1", first.getsockname()[1], if_taken="--relay desk:PORT takes another port")
        assert caught.value.hint.startswith("--relay desk:PORT takes another port; ")


@pytest.mark.parametrize(
    ("host", "resolved", "addresses"),
    [
        ("login1", ("10.0.0.7", "fd00::7"), ("10.0.0.7", "fd00::7")),
        ("login", ("10.0.0.7", "10.0.0.8"), ("10.0.0.7",)),
        ("login1", ("127.0.1.1",), ("::",)),
        ("login1", ("203.0.113.5",), ("::",)),
        ("login1", (), ("::",)),
        ("localhost", ("::1", "127.0.0.1"), ("::1", "127.0.0.1")),
        ("127.0.0.2", ("127.0.0.2",), ("127.0.0.2",)),
    ],
)
def test_a_host_name_gives_the_addresses_that_are_this_computers(
    monkeypatch: pytest.MonkeyPatch, host: str, resolved: tuple[str, ...], addresses: tuple[str, ...]
):
    def resolve(name: str, *_: object, **_options: object) -> list[tuple[object, ...]]:
        assert name == host
        if not resolved:
            raise socket.gaierror
        return [(0, 0, 0, "", (address, 0)) for address in resolved]

    monkeypatch.setattr(network, "own_addresses", lambda: ("10.0.0.7", "fd00::7"))
    monkeypatch.setattr(network, "_ipv6_of_kernel", lambda: ["::1"])
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert listen_addresses(host) == addresses


def test_without_ipv6_all_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "_ipv6_of_kernel", list)
    monkeypatch.setattr(sys, "platform", "linux")
    assert listen_addresses("203.0.113.5") == ("0.0.0.0",)


@pytest.mark.timing
def test_a_port_is_free_again_at_once():
    with listen_at("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = first.accept()
            accepted.close()
    listen_at("127.0.0.1", port).close()


def test_an_address_of_elsewhere_is_refused():
    with pytest.raises(BadInput):
        listen_at("192.0.2.1", 0)


def test_as_many_connections_are_allowed_as_the_system_lets_us():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allow_many_files(600)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 600
        allow_many_files(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 600
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("odd:", "odd:"),
    ],
    ids=["v4", "mapped", "v6", "link", "odd"],
)
def test_a_whole_network_of_addresses_is_one_source(address: str, source: str):
    assert source_of(address) == source
