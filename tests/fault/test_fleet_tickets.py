"""Launchers and the workers that they start, at a coordinator with TLS: roles, tickets, certificates."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.queue.commands import Declare
from stoker.core.clock import SystemClock
from stoker.core.errors import Forbidden, StaleLease
from stoker.core.frozen import changed
from stoker.core.leases import Role
from stoker.core.machine import Cluster
from stoker.core.pool import AllocationCause, AllocationState, Pool, PoolBackend
from stoker.host.certificates import make_csr, make_key, read_certificate
from stoker.host.tls_contexts import unproven_context
from stoker.protocol.client import FleetClient
from stoker.protocol.enrolment_messages import TokenRequest, begin_proof, finish_proof
from stoker.protocol.job_messages import Submission
from stoker.protocol.launch_messages import AllocationMove
from tests.contract.queue_driving import order
from tests.fault.test_fleet_trust import hello
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.tls_line import Lines
from tests.unit.host.real_processes import wait_until

CLOCK = SystemClock()
POOL = Pool(name="a100", backend=PoolBackend.LOCAL, max=50, wall_s=3600.0)


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("tickets")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder, is_secure=True) as fleet:
        fleet.queue.ask(Declare(cluster=Cluster(nodes=(), pools=(POOL,))))
        yield fleet


@pytest.fixture
def lines(fleet: Fleet, tmp_path: Path) -> Iterator[Lines]:
    made = Lines(fleet, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def launcher(fleet: Fleet) -> FleetClient:
    made = fleet.client().make_token(TokenRequest(name="login", role=Role.LAUNCH))
    return fleet.client(token=made.token)


class Worker:
    """Joins with a ticket, by hand."""

    def __init__(self, lines: Lines, id: str, key: str, folder: Path) -> None:
        self._lines = lines
        self._id, self.key, self.name = id.upper(), bytes.fromhex(key), f"a100-{id}"
        self._pair = make_key()
        self._file = folder / secrets.token_hex(4)

    def join(self, name: str = "") -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of the last request."""
        asked = {"id": self._id, "nonce": secrets.token_hex(16)}
        status, begun = self._lines.open(context=unproven_context()).ask("POST", "/v1/join/begin", asked)
        assert status == 200, begun
        nonces = {"nonce": asked["nonce"], "server_nonce": begun["nonce"]}
        proof = begin_proof(self.key, ca_pem=begun["ca_pem"], role=Role.WORKER, name="", **nonces)
        assert proof == begun["proof"]
        named = {"name": name or self.name, "csr_pem": make_csr(self._pair, self.name)}
        body = {"id": self._id, "proof": finish_proof(self.key, **named, **nonces), **named, **nonces}
        status, joined = self._lines.open().ask("POST", "/v1/join/finish", body)
        if status == 200:
            self._file.write_text(f"{self._pair}{joined['certificate_pem']}")
        return status, joined

    def ask(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return self._lines.open(certificate=str(self._file)).ask("POST", path, body)


@pytest.fixture
def worker(launcher: FleetClient, lines: Lines, tmp_path: Path) -> Worker:
    return planned(launcher, lines, tmp_path)


def planned(launcher: FleetClient, lines: Lines, folder: Path) -> Worker:
    epoch = launcher.watch_pools("w1", ["a100"], 600.0)["a100"]
    id = secrets.token_hex(3)
    key = launcher.plan_allocations("a100", epoch, [(id, ["resnet/1"])])[id]
    assert launcher.plan_allocations("a100", epoch, [(id, ["resnet/1"])]) == {id: key}
    return Worker(lines, id, key, folder)


def test_a_worker_that_has_left_leaves_no_telemetry(fleet: Fleet, launcher: FleetClient, worker: Worker):
    assert worker.join()[0] == 200
    assert worker.ask("/v1/hello", hello(worker.name))[0] == 200
    measured = {"worker": worker.name, "wall_s": CLOCK.wall_s(), "devices": [], "rows": [], "alerts": []}
    assert worker.ask(f"/v1/machines/{worker.name}/telemetry", measured)[0] == 200
    assert worker.name in fleet.keeping.telemetry.all_latest()
    goodbye = {"worker": worker.name, "incarnation": f"start-{worker.name}", "is_leaving": True}
    assert worker.ask("/v1/renewals", goodbye)[0] == 200
    assert state_of(launcher, worker) is AllocationState.ENDED
    wait_until(lambda: worker.name not in fleet.keeping.telemetry.all_latest())


def state_of(launcher: FleetClient, worker: Worker) -> AllocationState:
    return next(one.state for one in launcher.launch_view().allocations if one.machine == worker.name)


def end(launcher: FleetClient, worker: Worker) -> None:
    epoch = launcher.watch_pools("w1", ["a100"], 600.0)["a100"]
    move = AllocationMove(id=worker.name[-6:], state=AllocationState.ENDED, cause=AllocationCause.PREEMPTED)
    assert launcher.move_allocations("a100", epoch, [move]).changed == (move.id,)


def test_a_worker_joins_with_its_ticket_serves_and_is_refused_after_the_end(launcher: FleetClient, worker: Worker):
    now_s = launcher.launch_view().now_s
    status, joined = worker.join()
    assert status == 200, joined
    assert 3600 < joined["expires_s"] - now_s < 3600 + 600 + 60
    assert read_certificate(joined["certificate_pem"]).not_after_s == int(joined["expires_s"])
    assert worker.ask("/v1/hello", hello(worker.name))[0] == 200
    assert state_of(launcher, worker) is AllocationState.SERVING
    csr = make_csr(make_key(), worker.name)
    status, refused = worker.ask("/v1/certificates/renew", {"csr_pem": csr})
    assert (status, "not renewed" in refused["message"]) == (409, True)
    end(launcher, worker)
    assert worker.ask("/v1/hello", hello(worker.name))[0] == 403
    assert worker.name not in [one.name for one in launcher.certificates() if one.revoked_s is None]
    assert worker.name not in [one.name for one in launcher.machines()]


def test_a_ticket_is_for_its_own_name_only(worker: Worker):
    assert worker.join("a100-000000")[0] == 403


def test_of_two_workers_with_one_ticket_both_are_refused(
    launcher: FleetClient, worker: Worker, lines: Lines, tmp_path: Path
):
    thief = Worker(lines, worker.name[-6:], worker.key.hex(), tmp_path)
    assert worker.join()[0] == 200
    assert worker.ask("/v1/hello", hello(worker.name))[0] == 200
    status, refused = thief.join()
    assert (status, refused["data"]["reason"]) == (403, "used")
    assert worker.ask("/v1/hello", hello(worker.name))[0] == 403
    assert state_of(launcher, worker) is AllocationState.ENDED


def test_wrongkeys_do_not_close_a_ticket(worker: Worker, lines: Lines):
    body = {
        "id": worker.name[-6:].upper(), "name": worker.name, "proof": "0" * 64,
        "nonce": "1" * 32, "server_nonce": "2" * 32, "csr_pem": "x",
    }  # fmt: skip
    for _ in range(5):
        assert lines.open().ask("POST", "/v1/join/finish", body)[0] >= 400
    assert worker.join()[0] == 200


def test_thekey_of_a_ticket_is_in_no_event_and_no_list_of_invitations(fleet: Fleet, worker: Worker, lines: Lines):
    assert worker.key.hex() not in str(fleet.queue.reader.events())
    _, listed = lines.open(token=TOKEN).ask("GET", "/v1/invites")
    assert listed == {"invites": []}


def test_the_role_launch_may_not_submit_stop_or_invite(launcher: FleetClient, fleet: Fleet):
    for refused in (
        lambda: launcher.stop_allocations("a100"),
        lambda: launcher.resume_pool("a100"),
        launcher.reload,
        lambda: launcher.make_token(TokenRequest(name="x", role=Role.READ)),
        lambda: launcher.cancel_jobs(["0" * 64]),
    ):
        with pytest.raises(Forbidden):
            refused()
    launcher.pause_pool("a100", "3 allocations never joined")
    assert launcher.launch_view().pools[0].paused == "3 allocations never joined"
    assert fleet.client().resume_pool("a100").changed == ("a100",)


def test_a_reader_sees_pools_and_changes_nothing(fleet: Fleet):
    made = fleet.client().make_token(TokenRequest(name="wall", role=Role.READ))
    reader = fleet.client(token=made.token)
    view = reader.launch_view()
    assert len(view.fleet) == 8
    assert changed(view.pools[0].pool, found=None) == POOL
    with pytest.raises(Forbidden):
        reader.watch_pools("w9", ["a100"], 60.0)
    with pytest.raises(Forbidden):
        reader.pause_pool("a100")


def test_a_launcher_that_lost_its_pool_gets_stale_lease(fleet: Fleet, launcher: FleetClient):
    epoch = launcher.watch_pools("w1", ["a100"], 600.0)["a100"]
    launcher.watch_pools("w1", ["a100"], 0.0)
    assert fleet.client().watch_pools("w2", ["a100"], 60.0) == {"a100": epoch + 1}
    with pytest.raises(StaleLease):
        launcher.plan_allocations("a100", epoch, [("abcdef", ())])
    assert fleet.client().stop_allocations("a100").data == {}
    fleet.client().watch_pools("w2", ["a100"], 0.0)


@pytest.mark.parametrize("what", ["jobs", "machines"])
def test_a_launcher_that_waits_is_woken_by_a_submission_or_a_request(fleet: Fleet, launcher: FleetClient, what: str):
    with ThreadPoolExecutor(1) as threads:
        # After this the last submission is no longer recent.
        CLOCK.sleep(1.1)
        begun_s = CLOCK.monotonic_s()
        waiting = threads.submit(launcher.launch_view, 20.0)
        CLOCK.sleep(0.3)
        assert not waiting.done()
        if what == "jobs":
            fleet.client().submit(Submission(jobs=(order("woken"),)))
            (woken,) = waiting.result().demand
            assert woken.names == ("woken",)
        else:
            fleet.client().request_machines("a100", "01234567", 1)
            assert [one.count for one in waiting.result().requests] == [1]
    assert CLOCK.monotonic_s() - begun_s < 15
    # One that had no time to wait finds it at once.
    launcher.launch_view(20.0)
    assert CLOCK.monotonic_s() - begun_s < 15
