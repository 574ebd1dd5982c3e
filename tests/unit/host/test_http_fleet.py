"""A fleet's own trust: its CA and nobody else's, our certificate shown, another one used as soon as it is there."""

from __future__ import annotations

import os
import re
import ssl
from contextlib import closing
from pathlib import Path

import pytest

import stoker
from stoker.core.clock import SystemClock
from stoker.core.errors import BadInput, LocalFile, NetworkFailed, NoCoordinator
from stoker.host.certificates import KeyPair, Signer, make_ca, make_csr, make_key
from stoker.host.http import client as http_client
from stoker.host.http.client import Urllib3Transport, ask_unproven
from stoker.host.http.exchange import FleetIdentity, HttpSettings, Request, asked_directly, is_this_computer
from stoker.host.tls_contexts import read_peer, server_context
from stoker.protocol.client import FleetClient
from stoker.protocol.transport import RequestTimeouts
from tests.servers.little import Got, LittleServer, Said

NOW_S = SystemClock().wall_s()


class Fleet:
    """A CA with a server of its own, and certificates of machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = make_ca("a fleet", now_s=NOW_S)
        self.ca_file = str(folder / "ca.pem")
        Path(self.ca_file).write_text(self.ca.certificate_pem)

    def server_tls(self, ca: KeyPair | None = None, *names: str) -> ssl.SSLContext:
        key_pem = make_key()
        made = Signer(ca or self.ca).server(key_pem, names or ("127.0.0.1",), now_s=NOW_S)
        certificate, key = self.folder / "server.pem", self.folder / "server.key"
        certificate.write_text(made.certificate_pem)
        key.write_text(key_pem)
        return server_context(certificate_file=str(certificate), key_file=str(key), ca_pem=self.ca.certificate_pem)

    def machine(self, name: str, ca: KeyPair | None = None, *, now_s: float = NOW_S) -> str:
        """Put a machine's certificate into its file, in one step, and give the file."""
        key_pem = make_key()
        made = Signer(ca or self.ca).machine(make_csr(key_pem, name), name, now_s=now_s)
        path = self.folder / "machine.pem"
        fresh = path.with_suffix(".new")
        fresh.write_text(made.certificate_pem + key_pem)
        fresh.replace(path)
        return str(path)

    def transport(self, certificate_file: str = "", *, also: str = "") -> Urllib3Transport:
        identity = FleetIdentity(ca_file=self.ca_file, certificate_file=certificate_file)
        return Urllib3Transport(HttpSettings(connect_s=5, head_s=5, fleet=identity, ca_file=also))


@pytest.fixture
def fleet(tmp_path) -> Fleet:
    return Fleet(tmp_path)


def _who(got: Got) -> Said:
    peer = read_peer(got.shown)
    return Said(body=f"{peer.machine if peer else 'nobody'} {got.port}".encode())


def _ask(transport: Urllib3Transport, url: str) -> list[str]:
    with closing(transport.send(Request(url=url, headers={}))) as reply:
        return reply.read(1 << 16).decode().split()


def test_the_fleets_own_server_is_believed_and_sees_no_certificate(fleet):
    with LittleServer(_who, tls=fleet.server_tls()) as server, closing(fleet.transport()) as transport:
        assert _ask(transport, server.url)[0] == "nobody"


def test_a_machine_shows_its_certificate(fleet):
    with (
        LittleServer(_who, tls=fleet.server_tls()) as server,
        closing(fleet.transport(fleet.machine("lab1"))) as transport,
    ):
        assert _ask(transport, server.url)[0] == "lab1"


def test_another_ca_is_not_believed_even_if_the_system_or_the_environment_does(fleet, tmp_path):
    other = make_ca("a stranger", now_s=NOW_S)
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(other.certificate_pem)
    with (
        LittleServer(_who, tls=fleet.server_tls(other)) as server,
        closing(fleet.transport(also=str(trusted))) as transport,
        pytest.raises(NetworkFailed) as caught,
    ):
        _ask(transport, server.url)
    assert caught.value.data["reason"] == "certificate"
    assert caught.value.data["verify_code"] in (18, 19, 20)


def test_a_server_of_another_name_is_not_believed(fleet):
    with (
        LittleServer(_who, tls=fleet.server_tls(None, "desk.local")) as server,
        closing(fleet.transport()) as transport,
        pytest.raises(NetworkFailed) as caught,
    ):
        _ask(transport, server.url)
    assert caught.value.data["verify_code"] in (62, 64)


def test_a_machine_of_the_fleet_can_not_pass_for_its_coordinator(fleet, tmp_path):
    # Its certificate may serve others of the fleet, but it has no host's name in it.
    pair = fleet.machine("127.0.0.1")
    context = server_context(certificate_file=pair, key_file=pair, ca_pem=fleet.ca.certificate_pem)
    with (
        LittleServer(_who, tls=context) as server,
        closing(fleet.transport()) as transport,
        pytest.raises(NetworkFailed) as caught,
    ):
        _ask(transport, server.url)
    assert caught.value.data["reason"] == "certificate"


def test_a_renewed_certificate_is_shown_from_the_next_question_on(fleet):
    path = fleet.machine("lab1")
    with LittleServer(_who, tls=fleet.server_tls()) as server, closing(fleet.transport(path)) as transport:
        first, port = _ask(transport, server.url)
        assert _ask(transport, server.url) == [first, port]
        fleet.machine("lab2")
        second, other_port = _ask(transport, server.url)
        assert (first, second) == ("lab1", "lab2")
        assert other_port != port
        assert _ask(transport, server.url) == [second, other_port]


def test_a_certificate_of_another_fleet_is_refused_by_the_server_and_that_lasts(fleet):
    path = fleet.machine("lab1", make_ca("another", now_s=NOW_S))
    with (
        LittleServer(_who, tls=fleet.server_tls()) as server,
        closing(fleet.transport(path)) as transport,
        pytest.raises(NetworkFailed) as caught,
    ):
        _ask(transport, server.url)
    assert caught.value.data["reason"] in ("tls", "reset", "closed_early")
    if caught.value.data["reason"] == "tls":
        assert caught.value.data["is_lasting"]


def test_a_certificate_that_has_ended_is_told_as_such_with_what_to_do(fleet):
    path = fleet.machine("lab1", now_s=NOW_S - 60 * 86400)
    with LittleServer(_who, tls=fleet.server_tls()) as server, closing(fleet.transport(path)) as transport:
        client = FleetClient(transport, server.url, clock=SystemClock(), patience=RequestTimeouts(retry_s=0.0))
        with pytest.raises(NoCoordinator) as caught:
            client.status()
    # A server that closes at once may cut the connection before its reason is read.
    if caught.value.data["reason"] == "tls":
        assert caught.value.data["tls"] == "SSLV3_ALERT_CERTIFICATE_EXPIRED"
        assert caught.value.data["is_lasting"]
        assert "stoker join CODE@HOST --again" in caught.value.hint


def test_another_ca_is_told_as_another_fleet_or_somebody_in_between(fleet):
    other = make_ca("a stranger", now_s=NOW_S)
    with LittleServer(_who, tls=fleet.server_tls(other)) as server, closing(fleet.transport()) as transport:
        client = FleetClient(transport, server.url, clock=SystemClock(), patience=RequestTimeouts(retry_s=0.0))
        with pytest.raises(NoCoordinator) as caught:
            client.status()
    assert "intercepted connection" in caught.value.hint


@pytest.mark.parametrize("text", [None, "", "no certificate"], ids=["missing", "empty", "text"])
def test_a_ca_that_can_not_be_read_is_said_to_be(fleet, text):
    os.unlink(fleet.ca_file)
    if text is not None:
        Path(fleet.ca_file).write_text(text)
    with closing(fleet.transport()) as transport, pytest.raises(LocalFile, match="the fleet's CA") as caught:
        transport.send(Request(url="https://127.0.0.1:9/", headers={}))
    assert "stoker join" in caught.value.hint


def test_an_unproven_question_is_answered_by_anybody(fleet):
    stranger = make_ca("a stranger", now_s=NOW_S)
    with LittleServer(lambda _got: Said(status=403, body=b"x" * 100_000), tls=fleet.server_tls(stranger)) as server:
        answer = ask_unproven(f"{server.url}/v1/join/begin", b"{}", settings=HttpSettings(connect_s=5), headers={})
        (got,) = server.asked
    assert (answer.status, len(answer.data)) == (403, 64 * 1024)
    assert got.shown in (None, {})
    assert not {"Authorization", "X-Operator-Token"} & set(got.headers)


def test_an_unproven_question_shows_no_certificate_of_ours(fleet):
    identity = FleetIdentity(ca_file=fleet.ca_file, certificate_file=fleet.machine("lab1"))
    with LittleServer(_who, tls=fleet.server_tls()) as server:
        settings = HttpSettings(connect_s=5, fleet=identity)
        assert ask_unproven(server.url, b"{}", settings=settings, headers={}).data.startswith(b"nobody")


def test_an_unproven_question_is_asked_over_tls_alone():
    with pytest.raises(BadInput, match="TLS"):
        ask_unproven("http://127.0.0.1:9/", b"{}", settings=HttpSettings(), headers={})


def test_nothing_but_joining_asks_without_proof():
    root = Path(stoker.__file__).parent
    using = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"\b(?:unproven_context|ask_unproven|CERT_NONE)\b", path.read_text())
    }
    assert using == {
        "host/tls_contexts.py",
        "host/http/client.py",
        "app/app.py",
        "api/app_parts.py",
        "worker/enrolment.py",
    }
    assert "environ" not in Path(http_client.__file__).read_text()


@pytest.mark.parametrize(
    ("url", "is_direct"),
    [
        ("https://desk:7717", True),
        ("https://desk.local:7717", True),
        ("https://10.0.0.1:7717", True),
        ("https://[fe80::1]:7717", True),
        ("https://example.org", False),
        ("https://93.184.215.14", False),
    ],
)
def test_hosts_of_our_own_network_are_asked_without_a_proxy(url, is_direct):
    assert bool(asked_directly(url)) is is_direct


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("a.localhost", True),
        ("127.0.0.1", True),
        ("127.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("desk", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_only_this_computer_is_this_computer(host, is_here):
    assert is_this_computer(host) is is_here
