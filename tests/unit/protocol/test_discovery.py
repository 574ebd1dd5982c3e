"""Which coordinator is meant: named, set, or serving this home; how it is reached, and what is shown to it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, LocalFile
from stoker.core.frozen import changed
from stoker.core.leases import Role
from stoker.host.certificates import make_ca
from stoker.host.http.exchange import FleetIdentity
from stoker.host.identity import ProcessIdentity, mine
from stoker.protocol.discovery import (
    CoordinatorEndpoint,
    Membership,
    MembershipKind,
    ServeFile,
    coordinator_gone,
    find_coordinator,
    living_coordinator,
    no_coordinator_known,
    read_serve_file,
    whole_address,
    withdraw,
    write_joined,
)
from stoker.protocol.enrolment_messages import fingerprint

HERE = "http://127.0.0.1:7717"
SOCKET = "/recorded/7717.sock"
RUNTIME = {"STOKER_RUNTIME": "/run/anna"}


def _found(at: str, state: Path, **environment: str) -> CoordinatorEndpoint:
    found = find_coordinator(at, environment=environment, state=str(state))
    assert found is not None
    return found


def _serve(state: Path, *, owner: ProcessIdentity | None = None, token: str = "") -> None:
    token_file = state / "operator.token"
    if token:
        token_file.write_text(f"{token}\n")
    made = ServeFile(url=HERE, owner=owner or mine(), token_file=str(token_file) if token else "", socket=SOCKET)
    made.write(str(state))


def test_nothing_is_found_where_nothing_serves(tmp_path):
    assert find_coordinator("", environment={}, state=str(tmp_path)) is None
    assert coordinator_gone(str(tmp_path)) is None


@pytest.mark.parametrize("side", MembershipKind)
@pytest.mark.parametrize("at", ["", HERE, f"{HERE}/"])
def test_the_coordinator_of_this_home_is_reached_by_its_socket_without_a_token(tmp_path, side, at):
    _serve(tmp_path, token="secret")
    found = find_coordinator(at, environment=RUNTIME, state=str(tmp_path), side=side)
    identity = FleetIdentity(sockets=(SOCKET, "/run/anna/7717.sock"))
    assert found == CoordinatorEndpoint(url=HERE, token="", identity=identity, is_here=True)


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ("http://127.0.0.1:7717", "7717"),
        ("http://localhost:80", "80"),
        ("LOCALHOST", "7717"),
        ("http://127.0.0.5:7717", "127.0.0.5-7717"),
        ("http://[::1]:7717", "::1-7717"),
    ],
)
@pytest.mark.parametrize("side", MembershipKind)
def test_a_coordinator_of_another_home_is_reached_by_the_socket_of_its_port(tmp_path, at, name, side):
    found = find_coordinator(at, environment=RUNTIME, state=str(tmp_path), side=side)
    assert found is not None
    assert found.identity == FleetIdentity(sockets=(f"/run/anna/{name}.sock",))
    assert (found.token, found.is_here) == ("", False)


def test_where_the_last_coordinator_of_this_home_listened_is_looked_first(tmp_path):
    _serve(tmp_path)
    withdraw(str(tmp_path))
    assert _found(HERE, tmp_path, **RUNTIME).identity == FleetIdentity(sockets=(SOCKET, "/run/anna/7717.sock"))
    assert _found("http://127.0.0.1:1", tmp_path, **RUNTIME).identity == FleetIdentity(sockets=("/run/anna/1.sock",))


@pytest.mark.parametrize("at", ["", HERE, "http://127.0.0.1:1"])
def test_a_worker_takes_no_token_from_its_environment(tmp_path, at):
    _serve(tmp_path, token="secret")
    environment = {"STOKER_OPERATOR_TOKEN": "mine"}
    as_worker = find_coordinator(at, environment=environment, state=str(tmp_path), side=MembershipKind.WORKER)
    assert as_worker is not None
    assert as_worker.token == ""
    assert _found(at, tmp_path, **environment).token == "mine"


def test_a_worker_takes_jobs_from_another_machine_over_tls_alone(tmp_path):
    with pytest.raises(BadInput, match="over TLS only") as caught:
        find_coordinator("http://desk:7717", environment={}, state=str(tmp_path), side=MembershipKind.WORKER)
    assert "stoker join CODE@desk" in caught.value.hint


def test_a_coordinator_that_is_gone_is_not_found(tmp_path):
    _serve(tmp_path, owner=changed(mine(), start_ticks=mine().start_ticks + 1))
    assert read_serve_file(str(tmp_path)) is not None
    assert coordinator_gone(str(tmp_path)) == HERE
    assert "is not running" in no_coordinator_known(str(tmp_path)).message
    assert living_coordinator(str(tmp_path)) is None


def test_a_coordinator_that_ended_in_order_is_remembered(tmp_path):
    _serve(tmp_path)
    withdraw(str(tmp_path))
    assert not (tmp_path / "serve.json").exists()
    assert find_coordinator("", environment={}, state=str(tmp_path)) is None
    assert coordinator_gone(str(tmp_path)) == HERE
    _serve(tmp_path)
    assert coordinator_gone(str(tmp_path)) is None


def test_a_coordinator_of_another_host_on_a_shared_home_is_not_this_one(tmp_path):
    _serve(tmp_path, owner=changed(mine(), host="elsewhere"))
    assert living_coordinator(str(tmp_path)) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"url": "x"}', b'{"url": "x", "owner": 5}'], ids=range(5))
def test_a_damaged_file_is_no_coordinator(tmp_path, text):
    (tmp_path / "serve.json").write_bytes(text)
    assert find_coordinator("", environment={}, state=str(tmp_path)) is None


def test_the_option_wins_over_the_variable_and_that_over_this_home(tmp_path):
    _serve(tmp_path)
    assert _found("http://desk:2", tmp_path, STOKER_COORDINATOR="http://lab:1").url == "http://desk:2"
    assert _found("", tmp_path, STOKER_COORDINATOR="http://lab:1").url == "http://lab:1"


def test_the_token_of_this_home_is_shown_to_nobody_else(tmp_path):
    _serve(tmp_path, token="secret")
    assert _found("http://evil:7717", tmp_path).token == ""
    assert _found("https://evil:7717", tmp_path).token == ""
    assert _found("http://lab:7717", tmp_path, STOKER_OPERATOR_TOKEN="mine").token == "mine"


def test_others_may_read_where_it_is(tmp_path):
    _serve(tmp_path)
    assert stat.S_IMODE(os.stat(tmp_path / "serve.json").st_mode) & stat.S_IRUSR


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("desk", "https://desk:7717"),
        ("desk.local", "https://desk.local:7717"),
        ("desk:80", "https://desk:80"),
        ("192.168.1.10", "https://192.168.1.10:7717"),
        ("[fe80::1]", "https://[fe80::1]:7717"),
        ("desk/fleet", "https://desk:7717/fleet"),
        ("localhost", "http://localhost:7717"),
        ("LOCALHOST:80", "http://LOCALHOST:80"),
        ("127.0.0.1", "http://127.0.0.1:7717"),
        ("127.1", "http://127.1:7717"),
        ("[::1]", "http://[::1]:7717"),
        ("[::1]:9", "http://[::1]:9"),
        ("https://desk", "https://desk"),
        ("http://desk", "http://desk"),
    ],
)
def test_an_address_may_be_as_short_as_a_name(text, url):
    assert whole_address(text) == url


def _join(
    state: Path, role: Role = Role.SUBMIT, url: str = "https://desk.local:7717", mark: str = "ab" * 32
) -> Membership:
    """Join as a person, or as a machine whose certificate nobody looks at here."""
    made = write_joined(
        str(state),
        Membership(url=url, name="anna", role=role, fingerprint=mark),
        ca_pem="CA",
        token="joined-token",
    )
    if role is not Role.WORKER:
        return made
    certificate_file = state / "joined" / "machine.pem"
    certificate_file.touch(mode=0o600)
    record = state / "joined" / "worker.json"
    record.write_text(record.read_text().replace('"certificate_file": ""', '"certificate_file": "machine.pem"'))
    return changed(made, certificate_file=str(certificate_file))


def test_a_fleet_that_was_joined_is_found_where_nothing_serves(tmp_path):
    member = _join(tmp_path)
    found = _found("", tmp_path)
    assert (found.url, found.token, found.name) == (member.url, "joined-token", "anna")
    assert found.identity == FleetIdentity(ca_file=member.ca_file)
    assert not found.is_here


def test_this_home_wins_over_what_was_joined_and_the_environment_over_both(tmp_path):
    _join(tmp_path)
    _serve(tmp_path, token="secret")
    found = _found("", tmp_path)
    assert (found.url, found.token, found.is_here) == (HERE, "", True)
    assert _found("", tmp_path, STOKER_COORDINATOR="http://lab:1") == CoordinatorEndpoint(url="http://lab:1", token="")


def test_a_person_never_goes_as_the_machine_that_joined(tmp_path):
    machine = _join(tmp_path, Role.WORKER, url="https://lab.local:7717")
    as_worker = find_coordinator("", environment={}, state=str(tmp_path), side=MembershipKind.WORKER)
    assert as_worker == CoordinatorEndpoint(url=machine.url, token="", identity=machine.identity, name="anna")
    assert find_coordinator("", environment={}, state=str(tmp_path)) is None
    assert "this machine is worker anna of https://lab.local:7717" in no_coordinator_known(str(tmp_path)).message
    assert "invite --operator" in no_coordinator_known(str(tmp_path)).hint
    assert _found("lab.local", tmp_path) == CoordinatorEndpoint(
        url=machine.url, token="", identity=FleetIdentity(ca_file=machine.ca_file)
    )
    _join(tmp_path)
    assert _found("", tmp_path).token == "joined-token"
    assert find_coordinator("", environment={}, state=str(tmp_path), side=MembershipKind.WORKER) == as_worker


def test_a_worker_does_not_go_as_a_person(tmp_path):
    _join(tmp_path)
    assert find_coordinator("", environment={}, state=str(tmp_path), side=MembershipKind.WORKER) is None


def test_what_is_named_over_tls_is_trusted_by_the_fleet_that_was_joined_alone(tmp_path):
    member = _join(tmp_path)
    # Whatever name it has now: its certificate must be the fleet's, or nothing is shown to it.
    assert _found("desk", tmp_path).identity == member.identity
    assert _found("desk", tmp_path).token == "joined-token"
    assert _found("http://desk:7717", tmp_path) == CoordinatorEndpoint(url="http://desk:7717", token="")


def test_the_fleet_at_the_address_that_is_named_comes_first(tmp_path):
    _join(tmp_path)
    machine = _join(tmp_path, Role.WORKER, url="https://lab.local:7717")
    assert _found("lab.local", tmp_path).identity == FleetIdentity(ca_file=machine.ca_file)


def test_a_token_of_the_environment_is_shown_instead_of_the_joined_one(tmp_path):
    _join(tmp_path)
    assert _found("", tmp_path, STOKER_OPERATOR_TOKEN="mine").token == "mine"


def test_a_machine_shows_its_certificate_and_no_token_and_a_person_there_their_token_alone(tmp_path):
    machine = _join(tmp_path, Role.WORKER)
    environment = {"STOKER_OPERATOR_TOKEN": "mine"}
    working = find_coordinator("", environment=environment, state=str(tmp_path), side=MembershipKind.WORKER)
    assert working == CoordinatorEndpoint(url=machine.url, token="", identity=machine.identity, name="anna")
    asking = find_coordinator("", environment=environment, state=str(tmp_path))
    assert asking == CoordinatorEndpoint(url=machine.url, token="mine", identity=FleetIdentity(ca_file=machine.ca_file))


def test_a_coordinator_of_this_home_that_speaks_tls_is_trusted_by_its_own_ca(tmp_path):
    made = ServeFile(url="https://10.0.0.1:7717", owner=mine(), ca_file="/ca.pem", socket=SOCKET)
    made.write(str(tmp_path))
    found = _found("", tmp_path)
    assert (found.identity, found.is_here) == (FleetIdentity(ca_file="/ca.pem", sockets=(SOCKET,)), True)
    named = _found("10.0.0.1", tmp_path)
    assert named == found


def test_a_worker_of_this_home_asks_by_its_certificate_once_it_has_one(tmp_path):
    ca = make_ca("a fleet", now_s=1_800_000_000.0).certificate_pem
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text(ca)
    here = "https://127.0.0.1:7717"
    ServeFile(url=here, owner=mine(), ca_file=str(ca_file)).write(str(tmp_path))

    def as_worker() -> CoordinatorEndpoint | None:
        return find_coordinator("", environment={}, state=str(tmp_path), side=MembershipKind.WORKER)

    before = CoordinatorEndpoint(url=here, token="", identity=FleetIdentity(ca_file=str(ca_file)), is_here=True)
    assert as_worker() == before
    _join(tmp_path, Role.WORKER, url=here)
    assert as_worker() == before
    # Whatever address it joined by: it is the fleet of that CA.
    member = _join(tmp_path, Role.WORKER, url="https://10.0.0.1:7717", mark=fingerprint(ca))
    assert as_worker() == CoordinatorEndpoint(url=here, token="", identity=member.identity, name="anna", is_here=True)


def test_secrets_that_others_may_read_are_not_used(tmp_path):
    os.chmod(_join(tmp_path).token_file, 0o644)
    with pytest.raises(LocalFile, match="others may read"):
        find_coordinator("", environment={}, state=str(tmp_path))


def test_finding_costs_no_pydantic():
    code = "import sys, stoker.protocol.discovery; sys.exit('pydantic' in sys.modules or 'ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
