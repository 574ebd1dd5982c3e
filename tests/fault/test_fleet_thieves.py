"""What was taken back stays so, what is a machine's is its own, and no stranger keeps the others out: real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.http.http_connection import ConnectionAcceptor, ConnectionLimits
from tests.fault.test_fleet_trust import claim, enrolled, hello, submit
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.tls_line import Line, Lines


@pytest.fixture
def database(sqlite_template: Path, tmp_path: Path) -> Path:
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    return path


@pytest.fixture
def fleet(database: Path, tmp_path: Path) -> Iterator[Fleet]:
    with coordinator(f"sqlite:///{database}", tmp_path, is_secure=True) as fleet:
        yield fleet


@pytest.fixture
def lines(fleet: Fleet, tmp_path: Path) -> Iterator[Lines]:
    made = Lines(fleet, tmp_path)
    yield made
    made.close()


@pytest.fixture
def operator(lines: Lines) -> Line:
    return lines.open(token=TOKEN)


def test_a_database_that_is_put_back_brings_nothing_to_life_that_was_taken_back(database: Path, tmp_path: Path):
    url = f"sqlite:///{database}"
    with coordinator(url, tmp_path, is_secure=True) as fleet:
        lines = Lines(fleet, tmp_path)
        operator = lines.open(token=TOKEN)
        _, lost = enrolled(lines, operator, "lost")
        _, kept = enrolled(lines, operator, "kept")
        _, made = operator.ask("POST", "/v1/tokens", {"name": "ann", "role": "operate"})
        lines.close()
    before = database.read_bytes()
    with coordinator(url, tmp_path, is_secure=True) as fleet:
        lines = Lines(fleet, tmp_path)
        operator = lines.open(token=TOKEN)
        assert lines.open(certificate=lost).ask("POST", "/v1/hello", hello("lost"))[0] == 200
        assert operator.ask("POST", "/v1/machines/lost/forget", {})[0] == 200
        assert operator.ask("POST", f"/v1/tokens/{made['view']['id']}/revoke", {})[0] == 200
        lines.close()
    for beside in tmp_path.glob("queue.db-*"):
        beside.unlink()
    database.write_bytes(before)
    assert (tmp_path / "state" / "authority" / "revoked").stat().st_mode & 0o777 == 0o600
    with coordinator(url, tmp_path, is_secure=True) as fleet:
        lines = Lines(fleet, tmp_path)
        status, refused = lines.open(certificate=lost).ask("POST", "/v1/hello", hello("lost"))
        assert (status, "was revoked" in refused["message"]) == (403, True)
        assert lines.open(token=made["token"]).ask("GET", "/v1/jobs")[0] == 403
        assert lines.open(certificate=kept).ask("POST", "/v1/hello", hello("kept"))[0] == 200
        lines.close()


def test_a_machine_sees_the_files_of_its_own_attempts_alone(lines: Lines, operator: Line):
    own, _ = enrolled(lines, operator, "lab-own")
    other, _ = enrolled(lines, operator, "lab-other")
    assert (
        own.ask("POST", "/v1/hello", hello("lab-own"))[0]
        == other.ask("POST", "/v1/hello", hello("lab-other"))[0]
        == 200
    )
    job = submit(operator, "mine", allowed_hosts=("lab-own",))
    assert own.ask("POST", "/v1/claims", claim("lab-own"))[1]["grants"][0]["job"] == job
    assert own.ask("GET", f"/v1/jobs/{job}/files")[0] == 200
    assert operator.ask("GET", f"/v1/jobs/{job}/files")[0] == 200
    assert other.ask("GET", f"/v1/jobs/{job}/files")[0] == 404
    assert other.ask("GET", f"/v1/jobs/{job}/files?attempt=1")[0] == 404


def test_one_address_takes_no_more_room_than_its_own(
    lines: Lines, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here every address is this machine's own: they are told apart as if they were others'.
    monkeypatch.setattr("stoker.coordinator.http.http_connection.is_loopback", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(ConnectionAcceptor, "_is_full", few(ConnectionAcceptor._is_full))
    host, port = fleet.url.removeprefix("https://").split(":")

    def silent(number: int) -> socket.socket:
        return socket.create_connection((host, int(port)), timeout=30, source_address=(f"127.9.9.{number}", 0))

    held = [silent(1) for _ in range(3)]
    try:
        # The reset may come before connecting has returned.
        with pytest.raises(ConnectionResetError), silent(1) as turned_away:
            turned_away.recv(1)
        assert lines.open(token=TOKEN, address="127.9.9.2").ask("GET", "/v1/status")[0] == 200
        held.pop(0).close()
        # What was held and let go is free again, once the other side has seen it.
        for _ in range(1000):
            try:
                again = silent(1)
                held.append(again)
                again.settimeout(0.2)
                again.recv(1)
            except TimeoutError:
                break
            except ConnectionResetError:
                continue
        else:
            pytest.fail("it never was")
    finally:
        for one in held:
            one.close()


def few(is_full: Any) -> Any:
    def judged(self: ConnectionAcceptor, source: str) -> bool:
        self._crowd = ConnectionLimits(each=5, strangers_each=3)
        return bool(is_full(self, source))

    return judged
