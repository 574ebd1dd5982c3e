"""Certificates as the fleet's CA makes them, shown over real sockets."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from stoker.core.clock import SystemClock
from stoker.core.errors import BadInput, Damaged, LocalFile
from stoker.host.certificates import (
    KeyPair,
    Signer,
    is_signed_by,
    make_ca,
    make_csr,
    make_key,
    names_in,
    read_certificate,
)
from stoker.host.tls_contexts import Certificate, client_context, load_server, read_peer, server_context

NOW_S = SystemClock().wall_s()
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def ca() -> KeyPair:
    return make_ca("stoker fleet of tests", now_s=NOW_S)


def server_file(folder: Path, ca: KeyPair, *names: str, life_s: float = DAY_S) -> str:
    key = make_key()
    path = folder / f"server-{len(list(folder.iterdir()))}.pem"
    path.write_text(key + Signer(ca).server(key, names, now_s=NOW_S, life_s=life_s).certificate_pem)
    return str(path)


def machine_file(folder: Path, ca: KeyPair, name: str, *, life_s: float = DAY_S) -> str:
    key = make_key()
    path = folder / f"{name}-{len(list(folder.iterdir()))}.pem"
    signed = Signer(ca).machine(make_csr(key, name), name, now_s=NOW_S, life_s=life_s)
    path.write_text(key + signed.certificate_pem)
    return str(path)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Certificate | None:
    """Connect, and give what the server learns of its client. Raises what the client, else the server, raised."""
    ours, theirs = socket.socketpair()
    seen: list[Certificate | Exception | None] = []

    def serve() -> None:
        try:
            with server.wrap_socket(ours, server_side=True) as line:
                line.recv(1)
                seen.append(read_peer(line.getpeercert()))
                line.sendall(b"!")
        except Exception as error:  # noqa: BLE001 - told to the test
            seen.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(theirs, server_hostname=host) as line:
            line.sendall(b"?")
            line.recv(1)
    finally:
        theirs.close()
        thread.join()
        ours.close()
    if isinstance(seen[0], Exception):
        raise seen[0]
    return seen[0]


def test_a_machine_is_known_by_the_name_that_was_signed(tmp_path: Path, ca: KeyPair):
    certificate = machine_file(tmp_path, ca, "lab1")
    path = server_file(tmp_path, ca, "desk.local", "192.0.2.7")
    server = server_context(certificate_file=path, key_file=path, ca_pem=ca.certificate_pem)
    client = client_context(ca.certificate_pem, certificate_file=certificate, key_file=certificate)
    seen = shake_hands(server, client, "desk.local")
    assert seen is not None
    assert seen == read_certificate(Path(certificate).read_text().partition("-----END PRIVATE KEY-----\n")[2])
    assert seen.machine == "lab1"
    assert shake_hands(server, client_context(ca.certificate_pem), "192.0.2.7") is None


def test_what_a_request_says_of_itself_is_never_believed(ca: KeyPair):
    key = ec.generate_private_key(ec.SECP256R1())
    wish = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "desk.local")]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("desk.local")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = wish.public_bytes(serialization.Encoding.PEM).decode()
    signed = Signer(ca).machine(pem, "lab1", now_s=NOW_S)
    found = x509.load_pem_x509_certificate(signed.certificate_pem.encode())
    assert read_certificate(signed.certificate_pem).machine == "lab1"
    assert names_in(signed.certificate_pem) == frozenset()
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "desk" not in found.subject.rfc4514_string()
    assert is_signed_by(signed.certificate_pem, ca.certificate_pem)
    assert signed.serial == read_certificate(signed.certificate_pem).serial


def test_a_machine_called_like_the_coordinators_host_can_not_speak_for_it(tmp_path: Path, ca: KeyPair):
    path = machine_file(tmp_path, ca, "desk.local")
    impostor = server_context(certificate_file=path, key_file=path, ca_pem=ca.certificate_pem)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"desk\.local"):
        shake_hands(impostor, client_context(ca.certificate_pem), "desk.local")
    # A client that looks at common names sees none that is a host's.
    lax = client_context(ca.certificate_pem)
    lax.hostname_checks_common_name = True
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(impostor, lax, "desk.local")


def test_another_cas_server_is_refused_whatever_it_is_called(tmp_path: Path, ca: KeyPair):
    other = make_ca("stoker fleet of tests", now_s=NOW_S)
    path = server_file(tmp_path, other, "desk.local")
    server = server_context(certificate_file=path, key_file=path, ca_pem=other.certificate_pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context(ca.certificate_pem), "desk.local")


@pytest.mark.parametrize("life_s", [DAY_S, -1.0], ids=["another CA", "expired"])
def test_a_machine_whose_certificate_does_not_hold_is_refused_by_the_server(tmp_path: Path, ca: KeyPair, life_s: float):
    signer = ca if life_s < 0 else make_ca("stoker fleet of tests", now_s=NOW_S)
    certificate = machine_file(tmp_path, signer, "lab1", life_s=life_s)
    path = server_file(tmp_path, ca, "desk.local")
    server = server_context(certificate_file=path, key_file=path, ca_pem=ca.certificate_pem)
    client = client_context(ca.certificate_pem, certificate_file=certificate, key_file=certificate)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake_hands(server, client, "desk.local")


def test_a_server_shows_a_new_certificate_without_a_restart(tmp_path: Path, ca: KeyPair):
    path = server_file(tmp_path, ca, "old.local")
    server = server_context(certificate_file=path, key_file=path, ca_pem=ca.certificate_pem)
    client = client_context(ca.certificate_pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, "new.local")
    path = server_file(tmp_path, ca, "new.local")
    load_server(server, certificate_file=path, key_file=path)
    assert shake_hands(server, client, "new.local") is None


def test_nothing_older_than_tls_1_2_is_spoken(tmp_path: Path, ca: KeyPair):
    path = server_file(tmp_path, ca, "desk.local")
    for context in (
        server_context(certificate_file=path, key_file=path, ca_pem=ca.certificate_pem),
        client_context(ca.certificate_pem),
    ):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def unsigned_csr() -> str:
    good = make_csr(make_key(), "lab1")
    der = bytearray(ssl.PEM_cert_to_DER_cert(good.replace("CERTIFICATE REQUEST", "CERTIFICATE")))
    der[-1] ^= 1
    return ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "CERTIFICATE REQUEST")


def rsa_csr() -> str:
    key = rsa.generate_private_key(65537, 1024)
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: "", "not a certificate request"),
        (
            lambda: "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
            "not a certificate request",
        ),
        (unsigned_csr, "not a certificate request|not signed"),
        (rsa_csr, "EC P-256"),
    ],
    ids=["empty", "garbage", "unsigned", "rsa"],
)
def test_a_request_that_proves_no_key_is_refused(ca: KeyPair, make, says: str):
    with pytest.raises(BadInput, match=says):
        Signer(ca).machine(make(), "lab1", now_s=NOW_S)


def test_a_certificate_never_outlives_its_ca():
    short = make_ca("short", now_s=NOW_S, life_s=DAY_S)
    signed = Signer(short).machine(make_csr(make_key(), "lab1"), "lab1", now_s=NOW_S, life_s=30 * DAY_S)
    assert signed.not_after_s == pytest.approx(NOW_S + DAY_S, abs=2.0)


def test_a_key_of_another_ca_does_not_sign():
    one, two = make_ca("one", now_s=NOW_S), make_ca("two", now_s=NOW_S)
    with pytest.raises(Damaged, match="does not belong"):
        Signer(KeyPair(certificate_pem=one.certificate_pem, key_pem=two.key_pem))


def test_a_servers_certificate_holds_for_names_and_addresses(ca: KeyPair):
    signed = Signer(ca).server(make_key(), ["desk.local", "192.0.2.7", "[fd00::2]"], now_s=NOW_S)
    assert names_in(signed.certificate_pem) == {"desk.local", "192.0.2.7", str(ipaddress.ip_address("fd00::2"))}
    assert read_certificate(signed.certificate_pem).machine == ""


def test_files_that_are_no_certificate_are_told(tmp_path: Path, ca: KeyPair):
    (tmp_path / "none.pem").write_text("nothing")
    with pytest.raises(LocalFile, match="not a certificate"):
        client_context(
            ca.certificate_pem, certificate_file=str(tmp_path / "none.pem"), key_file=str(tmp_path / "none.pem")
        )
    with pytest.raises(Damaged):
        read_certificate(b"nothing")
