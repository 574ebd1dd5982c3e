"""A worker with a ticket: joins a coordinator over TLS by itself, works, leaves when it idles, and leaves nothing."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.host.identity import Liveness, is_alive, of_pid
from stoker.launch.relay import Relay
from stoker.protocol.enrolment_messages import Ticket, ticket_to_text
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, finish, wait_until

CLUSTER = """\
nodes: [{name: desk, host: localhost, transport: local}]
pools: [{name: here, backend: local, wall: 1h, max: 8}]
"""


@dataclass(frozen=True, slots=True)
class Fleet:
    desk: FleetDesk
    url: str
    epoch: int
    node: Shell
    """A machine whose home is not named: shared with the user's other machines."""

    @property
    def tmp(self) -> Path:
        return Path(self.node.env["TMPDIR"])

    def ticket(self, mode: int = 0o600, *, url: str = "", server_name: str = "") -> Path:
        """Plan an allocation; return the file of its ticket."""
        id = secrets.token_hex(3)
        key = self.desk.client.plan_allocations("here", self.epoch, [(id, ())])[id]
        file = self.node.folder / f"{id}.ticket"
        file.touch(mode)
        file.chmod(mode)
        ticket = Ticket(id=id.upper(), key=key, url=url or self.url, name=f"here-{id}", server_name=server_name)
        file.write_text(ticket_to_text(ticket))
        return file

    def homes(self) -> list[str]:
        return [name for name in os.listdir(self.tmp) if name.startswith("stoker-home-")]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("tickets")
    shell, node = Shell(folder / "desk", index=index), Shell(folder / "node", index=index)
    (shell.folder / "cluster.yaml").write_text(CLUSTER)
    del node.env["STOKER_HOME"]
    node.env |= {"HOME": str(folder / "node"), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    words = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--cluster", "cluster.yaml", "--json")
    with running(shell, "serve", *words) as serving:
        url = str(said(serving)["url"])
        with FleetDesk(url, shell.home) as desk:
            epoch = desk.client.watch_pools("test", ["here"], 600.0)["here"]
            yield Fleet(desk=desk, url=f"https://127.0.0.1:{url.rpartition(':')[2]}", epoch=epoch, node=node)


@contextmanager
def running(shell: Shell, *words: object) -> Iterator[subprocess.Popen[str]]:
    process = shell.start(*words)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def said(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    answer = json.loads(line)
    assert isinstance(answer, dict)
    return answer


def test_a_worker_joins_with_its_ticket_works_and_leaves_nothing_behind(fleet: Fleet):
    ticket = fleet.ticket()
    name = f"here-{ticket.stem}"
    copy = ticket.with_suffix(".copy")
    shutil.copy2(ticket, copy)
    fleet.desk.submit("trained", "python", "-c", "print('trained')", folder=fleet.node.folder)
    done = fleet.node.stoker("work", "--ticket", ticket, "--idle", "2s")
    assert done.code == 0, done.out + done.err
    assert f"joined as {name}" in done.out
    assert "leaving, releasing 0 jobs: idle for 2.0s" in done.out
    assert fleet.desk.states()["trained"] == ("completed", name)
    assert not ticket.exists()
    assert fleet.homes() == []
    assert not (fleet.node.folder.parent / ".local").exists(), "nothing is written to the shared home"
    again = fleet.node.stoker("work", "--ticket", copy)
    assert again.code == 64, again.err
    assert f"ticket {ticket.stem.upper()} of {name}" in again.err
    assert "hint: a ticket works once" in again.err
    assert fleet.homes() == []


@pytest.fixture
def relay(fleet: Fleet) -> Iterator[Relay]:
    """A relay at an address that is not in the coordinator's certificate."""
    made = Relay("127.0.0.2", 0, to=("127.0.0.1", int(fleet.url.rpartition(":")[2])))
    yield made
    made.close()


def test_a_worker_works_through_a_relay(fleet: Fleet, relay: Relay):
    ticket = fleet.ticket(url=f"https://127.0.0.2:{relay.port}", server_name="127.0.0.1")
    fleet.desk.submit("relayed", "python", "-c", "print('trained')", folder=fleet.node.folder)
    done = fleet.node.stoker("work", "--ticket", ticket, "--idle", "2s")
    assert done.code == 0, done.out + done.err
    assert fleet.desk.states()["relayed"] == ("completed", f"here-{ticket.stem}")


@pytest.mark.parametrize("name", ["", "elsewhere.example.org"])
def test_behind_a_relay_the_coordinators_own_name_is_verified(fleet: Fleet, relay: Relay, name: str):
    ticket = fleet.ticket(url=f"https://127.0.0.2:{relay.port}", server_name=name)
    done = fleet.node.stoker("work", "--ticket", ticket, "--idle", "2s")
    assert done.code != 0
    assert "certificate" in done.err, done.err


def test_a_ticket_that_others_may_read_or_own_or_that_is_none_is_refused(fleet: Fleet):
    open_to_all = fleet.ticket(0o644)
    done = fleet.node.stoker("work", "--ticket", open_to_all)
    assert (done.code, "others may read" in done.err, "chmod 600" in done.err) == (16, True, True)
    assert open_to_all.exists()
    open_to_all.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(open_to_all, 65534, -1)
        done = fleet.node.stoker("work", "--ticket", open_to_all)
        assert (done.code, "belongs to another user (65534)" in done.err, "chown 0" in done.err) == (16, True, True)
        os.chown(open_to_all, 0, -1)
    open_to_all.write_text('{"v":1,"id":"x"}')
    done = fleet.node.stoker("work", "--ticket", open_to_all)
    assert (done.code, "id is not" in done.err, "url is not" in done.err) == (64, True, True)


def test_a_job_ends_with_its_killed_worker_whose_home_the_next_one_removes_and_that_is_stopped_while_it_joins(
    fleet: Fleet,
):
    pid_file = fleet.node.folder / "pid"
    program = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    fleet.desk.submit("sleeps", "python", "-c", program, folder=fleet.node.folder)
    with running(fleet.node, "work", "--ticket", fleet.ticket(), "--json") as killed:
        assert said(killed)["kind"] == "joined"
        wait_until(lambda: pid_file.exists() and pid_file.read_text())
        (left,) = fleet.homes()
        program_before = of_pid(int(pid_file.read_text()))
        killed.kill()
        killed.wait(PATIENCE_S)
    assert program_before is not None
    # Long before its lease of 90 s is over.
    wait_until(lambda: is_alive(program_before) is Liveness.GONE)
    assert fleet.homes() == [left]
    ticket = fleet.ticket()
    # A place where nobody listens.
    ticket.write_text(ticket.read_text().replace(fleet.url, "https://127.0.0.1:9"))
    with running(fleet.node, "work", "--ticket", ticket) as joining:
        wait_until(lambda: fleet.homes() not in ([], [left]) and left not in fleet.homes())
        joining.send_signal(signal.SIGTERM)
        done = finish(joining)
    assert done.code == 143, done.err
    assert fleet.homes() == []
    assert ticket.exists()
