"""TLS: who is trusted, what is said of who is not, and that a cut is never an end."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stoker.core.errors import LocalFile, NetworkFailed, StokerError
from stoker.host.http import http_routes as trusting
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings, Request
from stoker.host.http.http_routes import trust
from tests.servers.certificates import Authority
from tests.servers.faulty import Act, Answer, FaultyServer, Habit, Line, Version

FILE = Version(data=b"the whole of it" * 10_000)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def good(authority) -> ssl.SSLContext:
    return authority.server("IP:127.0.0.1,IP:::1,DNS:localhost")


@contextmanager
def _trusting(*authorities: Authority, **settings: object) -> Iterator[Urllib3Transport]:
    ca_file = str(authorities[0].path) if authorities else ""
    with closing(Urllib3Transport(HttpSettings(**{"connect_s": 5, "ca_file": ca_file, **settings}))) as transport:  # type: ignore[arg-type]
        yield transport


def _get(transport: Urllib3Transport, url: str) -> bytes:
    with closing(transport.send(Request(url=url, headers={}))) as reply:
        return b"".join(iter(lambda: reply.read(1 << 20), b""))


def _failure(transport: Urllib3Transport, url: str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        _get(transport, url)
    assert "\n" not in caught.value.message
    assert "127.0.0.1" in caught.value.message
    return caught.value


def _self_signed(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return what a server needs that signed its certificate itself, and that certificate."""
    key, certificate = folder / "key", folder / "certificate"
    made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    named = ("-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    subprocess.run(["openssl", *made, *named], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, str(certificate)


def _hash(authority: Authority) -> str:
    """Return the name that OpenSSL looks for in a folder."""
    words = ["openssl", "x509", "-hash", "-noout", "-in", str(authority.path)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def _raw(*pieces: bytes | Act) -> Habit:
    return lambda asked, version: Answer(raw_head=b"", body=pieces)


def test_a_trusted_server_is_asked_and_its_connection_kept(authority, good):
    with FaultyServer(FILE, tls=good) as server, _trusting(authority) as transport:
        for _ in range(3):
            assert _get(transport, server.url) == FILE.data
        assert _get(transport, server.url.replace("127.0.0.1", "localhost")) == FILE.data
        assert server.connections == 2


def test_a_server_on_ipv6_is_checked_by_its_address(authority, good):
    with FaultyServer(FILE, tls=good, host="::1") as server, _trusting(authority) as transport:
        assert _get(transport, server.url) == FILE.data


def test_certificates_to_trust_may_lie_in_a_folder(authority, good, tmp_path):
    shutil.copy(authority.path, tmp_path / f"{_hash(authority)}.0")
    with FaultyServer(FILE, tls=good) as server:
        for settings in ({"ca_path": f"/missing:{tmp_path}"}, {"ca_file": str(tmp_path)}):
            with _trusting(**settings) as transport:
                assert _get(transport, server.url) == FILE.data


@pytest.mark.parametrize("place", ["file", "folder", "usual file"])
def test_what_the_system_trusts_is_trusted_beside_what_the_settings_add(authority, good, tmp_path, monkeypatch, place):
    context, certificate = _self_signed(tmp_path)
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "README").touch()
    file = tmp_path / "system.pem"
    if place == "folder":
        shutil.copy(authority.path, folder / f"{_hash(authority)}.0")
    else:
        shutil.copy(authority.path, file)
    monkeypatch.setattr(trusting, "_USUAL_FILES", (str(file),) if place == "usual file" else ())
    paths = ssl.DefaultVerifyPaths(
        cafile="",
        capath="",
        openssl_cafile_env="SSL_CERT_FILE",
        openssl_cafile="/missing" if place == "usual file" else str(file),
        openssl_capath_env="SSL_CERT_DIR",
        openssl_capath=str(folder),
    )
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    with (
        FaultyServer(FILE, tls=good) as server,
        FaultyServer(FILE, tls=context) as other,
        _trusting(ca_file=certificate) as transport,
    ):
        assert _get(transport, server.url) == FILE.data
        assert _get(transport, other.url) == FILE.data


def test_an_unknown_issuer_is_refused_with_a_way_to_trust_it(good):
    with FaultyServer(FILE, tls=good) as server, _trusting() as transport:
        error = _failure(transport, server.url)
        assert (error.data["reason"], error.data["is_lasting"]) == ("certificate", True)
        assert "SSL_CERT_FILE" in error.hint
        assert server.asked == []


def test_a_certificate_that_nobody_signed_is_refused(tmp_path, authority):
    context, certificate = _self_signed(tmp_path)
    with FaultyServer(FILE, tls=context) as server:
        with _trusting(authority) as transport:
            error = _failure(transport, server.url)
            assert error.data["reason"] == "certificate"
            assert "self-signed" in error.message.replace("self signed", "self-signed")
            assert "SSL_CERT_FILE" in error.hint
        with _trusting(ca_file=certificate) as transport:
            assert _get(transport, server.url) == FILE.data


def test_an_expired_certificate_is_refused(authority):
    with FaultyServer(FILE, tls=authority.server(is_expired=True)) as server, _trusting(authority) as transport:
        error = _failure(transport, server.url)
        assert (error.data["reason"], error.data["is_lasting"]) == ("certificate", True)
        assert "expired" in error.message
        assert "clock" in error.hint


@pytest.mark.parametrize("names", ["DNS:elsewhere.test", "IP:127.0.0.2"])
def test_a_certificate_for_somebody_else_is_refused(authority, names):
    with FaultyServer(FILE, tls=authority.server(names)) as server, _trusting(authority) as transport:
        error = _failure(transport, server.url)
        assert (error.data["reason"], error.data["is_lasting"]) == ("certificate", True)
        assert "another" in error.hint


def test_a_port_that_speaks_no_tls_is_told_so():
    with FaultyServer(FILE) as server, _trusting() as transport:
        error = _failure(transport, server.url.replace("http:", "https:"))
        assert isinstance(error, NetworkFailed)
        assert error.data["reason"] == "tls"


def test_a_port_that_answers_tls_with_plain_text_is_a_lasting_failure():
    with socket.create_server(("127.0.0.1", 0)) as listener, _trusting() as transport:

        def answer() -> None:
            link = listener.accept()[0]
            with link:
                link.recv(4096)
                link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        error = _failure(transport, f"https://127.0.0.1:{listener.getsockname()[1]}/")
        thread.join()
    assert (error.data["reason"], error.data["is_lasting"]) == ("tls", True)
    assert "http://" in error.hint


def test_old_tls_is_refused(authority):
    context = authority.server()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with FaultyServer(FILE, tls=context) as server, _trusting(authority) as transport:
        assert _get(transport, server.url) == FILE.data
    assert trust(HttpSettings()).minimum_version == ssl.TLSVersion.TLSv1_2
    assert trust(HttpSettings()).check_hostname


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 10", b"Transfer-Encoding: chunked", b"X: no length at all"],
    ids=["length", "chunks", "none"],
)
@pytest.mark.parametrize("end", [Line.drop, Line.close], ids=["without a word", "in order"])
def test_tls_that_ends_within_a_body_is_a_cut(authority, good, head, end):
    body = b"9\r\nsome" if b"chunked" in head else b"some"
    habit = _raw(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body, Line.drain, end)
    with FaultyServer(FILE, habit, tls=good) as server, _trusting(authority) as transport:
        if b"no length" in head and end is Line.close:
            assert _get(transport, server.url) == b"some"
        else:
            assert _failure(transport, server.url).data["reason"] == "short_body"


def test_tls_that_ends_within_a_head_is_a_cut(authority, good):
    with (
        FaultyServer(FILE, _raw(b"HTTP/1.1 200 OK\r\n", Line.drain, Line.drop), tls=good) as server,
        _trusting(authority) as transport,
    ):
        assert _failure(transport, server.url).data["reason"] == "closed_early"


def test_an_abort_wakes_a_read_over_tls_and_never_gives_ciphertext(authority, good):
    habit = _raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"some" * 1000, Line.stall)
    with FaultyServer(FILE, habit, tls=good) as server, _trusting(authority) as transport:
        with closing(transport.send(Request(url=server.url, headers={}))) as reply:
            got = b""
            while len(got) < 4000:
                got += reply.read(1 << 20)
            timer = threading.Timer(0.2, reply.abort)
            timer.start()
            with pytest.raises(NetworkFailed) as caught:  # noqa: PT012 - until it is woken
                while True:
                    got += reply.read(1 << 20)
            timer.join()
        assert caught.value.data["reason"] == "aborted"
        assert got == b"some" * 1000


@pytest.mark.parametrize("content", [None, "no certificate\n"])
def test_certificates_that_can_not_be_read_are_told_by_the_name_of_their_file(tmp_path: Path, content):
    path = tmp_path / "ours.pem"
    if content is not None:
        path.write_text(content)
    with _trusting(ca_file=str(path)) as transport, pytest.raises(LocalFile) as caught:
        _get(transport, "https://127.0.0.1:1/")
    assert "ours.pem" in caught.value.message
    assert "SSL_CERT_FILE" in caught.value.hint
