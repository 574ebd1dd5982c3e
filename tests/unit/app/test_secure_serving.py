from __future__ import annotations

from pathlib import Path

import pytest

from stoker.app.coordinator_app import CoordinatorTls, read_names
from stoker.coordinator.http.server_options import ServeOptions
from stoker.core.clock import FakeClock
from stoker.core.errors import BadInput, LocalFile
from stoker.host.certificates import names_in
from stoker.host.network import own_addresses, own_names


def secure(folder: Path, *, host: str = "0.0.0.0", advertise: str = "") -> CoordinatorTls:
    options = ServeOptions(advertise=advertise)
    return CoordinatorTls(str(folder), options, host=host, port=7717, clock=FakeClock())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("desk.example.org", ("desk.example.org",)),
        ("Desk , 192.0.2.7,[fd00::2]", ("desk", "192.0.2.7", "fd00::2")),
    ],
)
def test_names_to_be_known_by_are_read(text: str, names: tuple[str, ...]):
    assert read_names(text) == names


@pytest.mark.parametrize("text", ["desk:7717", "http://desk", "two words"])
def test_what_is_no_name_is_refused(text: str):
    with pytest.raises(BadInput, match="no name of a host"):
        read_names(text)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("0.0.0.0", "https://127.0.0.1:7717"),
        ("::", "https://[::1]:7717"),
        ("192.0.2.7", "https://192.0.2.7:7717"),
        ("desk.local", "https://desk.local:7717"),
    ],
)
def test_commands_of_this_machine_ask_where_it_listens(tmp_path: Path, host: str, local: str):
    assert secure(tmp_path, host=host).local_url == local


def test_what_was_advertised_comes_first_and_everything_is_in_the_certificate(tmp_path: Path):
    made = secure(tmp_path, host="192.0.2.7", advertise="desk.example.org")
    assert made.names()[:2] == ("desk.example.org:7717", "192.0.2.7:7717")
    assert made.url == "https://desk.example.org:7717"
    text = (tmp_path / "authority" / "server.pem").read_text()
    held = names_in(text[text.index("-----BEGIN CERT") :])
    assert {"desk.example.org", "192.0.2.7", "127.0.0.1", "::1", *own_names(), *own_addresses()} <= held
    assert not made.refresh()


def test_a_computer_knows_its_own_names():
    names = own_names()
    assert {"localhost", "127.0.0.1", "::1"} <= set(names)
    assert not any(address.startswith(("127.", "fe80")) for address in own_addresses())


def test_a_ca_that_others_may_read_is_not_served_with(tmp_path: Path):
    secure(tmp_path)
    (tmp_path / "authority" / "ca.key").chmod(0o644)
    with pytest.raises(LocalFile, match="others may read"):
        secure(tmp_path)
