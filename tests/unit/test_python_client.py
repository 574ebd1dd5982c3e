"""`from stoker import Client`: the fleet from Python, against a real coordinator whose worker is the test."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker import Client
from stoker.api.pools import FleetPools
from stoker.app import App
from stoker.coordinator.queue.commands import Declare
from stoker.core.clock import SystemClock
from stoker.core.errors import (
    BadInput,
    Forbidden,
    InvalidManifest,
    InvalidTransition,
    LaunchDoubtful,
    LaunchRefused,
    NoBackend,
    NoCoordinator,
    NotFound,
    Usage,
)
from stoker.core.frozen import changed
from stoker.core.machine import Cluster
from stoker.core.pool import AllocationState, LaunchRequest, Pool, PoolBackend, PoolShape
from stoker.devices.checkup import CheckStatus
from stoker.protocol.enrolment_messages import read_ticket
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import CancelConfirmed, Grant, Release, Start
from stoker.views.pool_lines import check_pool, open_request_lines, request_lines
from tests.contract.queue_driving import order
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.hand import Hand, said
from tests.unit.launch.fake_cluster import FakeBackend


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STOKER_COORDINATOR", raising=False)
    monkeypatch.delenv("STOKER_OPERATOR_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with Client(fleet.url, token=TOKEN) as client:
        yield client


def test_whoever_imports_stoker_does_not_pay_for_it():
    code = "import sys, stoker; sys.exit('pydantic' in sys.modules or 'stoker.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_coordinator_it_says_how_to_get_one():
    with pytest.raises(NoCoordinator) as caught:
        Client()
    assert "stoker serve" in caught.value.hint


def test_the_environment_names_the_coordinator_and_the_token(fleet: Fleet, monkeypatch):
    monkeypatch.setenv("STOKER_COORDINATOR", fleet.url)
    monkeypatch.setenv("STOKER_OPERATOR_TOKEN", "a token of nobody")
    with Client() as stranger, pytest.raises(Forbidden):
        stranger.submit([order("gbt")])
    monkeypatch.setenv("STOKER_OPERATOR_TOKEN", TOKEN)
    with Client() as writer:
        assert writer.submit([order("gbt")]).counts == {"new": 1}
    monkeypatch.delenv("STOKER_OPERATOR_TOKEN")
    with Client() as own:
        assert own.submit([order("knn")]).counts == {"new": 1}, "its own user needs no token on its machine"


def test_a_manifest_is_checked_whole_and_submitted_once(client: Client, tmp_path: Path):
    # Of its own: the coordinator's files are no code of anybody's.
    manifest = tmp_path / "project" / "manifest.toml"
    manifest.parent.mkdir()
    manifest.write_text('[[jobs]]\nname = "a"\ncommnad = "true"\n[[jobs]]\nname = "b"\n')
    with pytest.raises(InvalidManifest) as caught:
        client.submit("project/manifest.toml")
    assert len(caught.value.faults) >= 2
    manifest.write_text('[[jobs]]\nname = "a"\ncommand = "true"\nafter = ["nope"]\n')
    with pytest.raises(InvalidManifest, match="nope"):
        client.submit(manifest, dry_run=True)
    assert list(client.jobs()) == []
    manifest.write_text('[[jobs]]\nname = "echo"\ncommand = "echo {x}"\nsweep = { x = [1, 2] }\n')
    assert client.submit(manifest, dry_run=True).counts == {"new": 2}
    assert client.submit(manifest).counts == {"new": 2}
    assert client.submit(manifest).counts == {"known": 2}
    assert [job.name for job in client.jobs()] == ["echo/2", "echo/1"]


def test_jobs_are_fetched_as_they_are_taken(client: Client, monkeypatch):
    monkeypatch.setattr("stoker.client._PAGE", 7)
    client.submit(Submission(jobs=tuple(order("sweep", number) for number in range(1, 21))))
    assert [job.name for job in client.jobs()] == [f"sweep/{number}" for number in range(20, 0, -1)]
    assert len(list(client.jobs(limit=10))) == 10
    assert list(client.jobs(state="running")) == []


def test_waiting_gives_how_jobs_ended_and_a_time_limit_holds(client: Client, fleet: Fleet):
    client.submit([order("sweep", 1), order("sweep", 2)])
    hand = Hand(fleet.client())
    with pytest.raises(TimeoutError, match="2 of 2"):
        client.wait("sweep", timeout_s=0.05)
    grants = hand.take(2)
    thread = threading.Thread(target=lambda: [_complete(hand, grant) for grant in grants])
    thread.start()
    ended = client.wait("sweep", timeout_s=60)
    thread.join()
    assert [(job.name, job.state) for job in ended] == [("sweep/1", "completed"), ("sweep/2", "completed")]
    assert client.leaderboard("loss").rows[0].value == 0.5


def _complete(hand: Hand, grant: Grant) -> None:
    hand.client.write(grant.job, Start(**said(grant)))
    hand.finish(grant, loss=0.5)


def test_logs_are_lines_and_following_ends_with_the_job(client: Client, fleet: Fleet):
    client.submit([order("gbt")])
    hand = Hand(fleet.client())
    with pytest.raises(NotFound, match="nothing has run"):
        list(client.logs("gbt"))
    grant = hand.start()
    hand.put_story(grant, "one", "two")
    assert list(client.logs("gbt")) == ["one", "two"]
    lines = client.logs("gbt", follow=True)
    assert list(islice(lines, 2)) == ["one", "two"]
    hand.client.write(grant.job, Release(**said(grant)))
    second = hand.start()
    hand.put_story(second, "three")
    hand.finish(second)
    assert list(lines) == ["three"]
    assert list(client.logs("gbt", attempt=1)) == ["one", "two"]


def test_cancel_is_confirmed_where_that_is_waited_for(client: Client, fleet: Fleet):
    client.submit([order("gbt"), order("knn")])
    hand = Hand(fleet.client())
    grant = hand.start()
    (asked,) = client.cancel(grant.spec.name)
    assert (asked.state, asked.is_cancelling) == ("running", True)
    confirm = threading.Timer(1.0, lambda: hand.client.write(grant.job, CancelConfirmed(**said(grant))))
    confirm.start()
    (ended,) = client.cancel(grant.spec.name, wait=True)
    confirm.join()
    assert ended.state == "cancelled"
    with pytest.raises(InvalidTransition, match="is not running: cancelled"):
        client.cancel(grant.spec.name)
    with pytest.raises(InvalidTransition, match="is cancelled: not in the queue"):
        client.priority(grant.spec.name, 5)
    assert client.requeue(grant.spec.name).changed
    with pytest.raises(InvalidTransition, match="can't be requeued: pending"):
        client.requeue(grant.spec.name)
    client.priority(grant.spec.name, 5)
    assert client.job(grant.spec.name).job.priority == 5
    assert client.explain(grant.spec.name).job.state == "pending"


def test_events_begin_where_they_are_asked_to(client: Client, fleet: Fleet):
    client.submit([order("gbt")])
    Hand(fleet.client())
    events = list(islice(client.events(0), 3))
    assert [event.kind for event in events][1:] == ["job_submitted", "machine_joined"]
    assert next(client.events(events[0].id)) == events[1]
    assert {machine.name: machine.state for machine in client.machines()} == {"desk": "ready"}
    assert client.status().jobs["pending"] == 1


@pytest.fixture
def backend(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """A coordinator with two pools, and a batch system in memory behind them."""
    pools = (
        Pool(name="a100", backend=PoolBackend.SLURM, each=PoolShape(cpu_cores=8), max=4, backlog=4),
        Pool(name="tiny", backend=PoolBackend.SLURM, each=PoolShape(cpu_cores=1), wall_s=60.0),
    )
    fleet.queue.ask(Declare(cluster=Cluster(nodes=(), pools=pools)))
    made = FakeBackend(SystemClock().wall_s)
    monkeypatch.setattr(App, "launcher", lambda _app, _backend: made)
    return made


def test_pools_are_listed_paused_and_resumed(client: Client, backend: FakeBackend):
    assert [(pool.name, pool.serving, pool.requested, pool.state.paused) for pool in client.pools()] == [
        ("a100", 0, 0, ""),
        ("tiny", 0, 0, ""),
    ]
    with pytest.raises(NotFound, match="no pool 'a10'") as caught:
        client.pool("a10")
    assert "a100" in caught.value.hint
    client.submit([order("gbt")])
    assert client.explain("gbt").pools["a100"].startswith("the coordinator serves only its own machine: stoker serve")
    client.pause_pool("a100", "maintenance")
    assert client.pool("a100").state.paused == "maintenance"
    assert client.explain("gbt").pools["a100"] == "paused: maintenance"
    plan = client.plan_launch("a100")
    assert [(hold.pool, hold.jobs, hold.why) for hold in plan.decision.holds] == [
        ("a100", ("gbt",), "paused: maintenance")
    ]
    client.resume_pool("a100")
    assert client.pool("a100").state.paused == ""
    assert client.resume_pool("a100").notes == ("pool a100 is not paused",)


def test_a_pool_that_starts_nothing_is_a_warning_of_doctor(client: Client, fleet: Fleet, backend: FakeBackend):
    assert check_pool(client.pool("a100")).verdict is CheckStatus.WARN
    fleet.client().watch_pools("w", ("a100",), for_s=60.0)
    checked = check_pool(client.pool("a100"))
    assert (checked.verdict, checked.message) == (CheckStatus.OK, "watched; 0 serving, 0 requested, of 4")
    client.pause_pool("a100", "maintenance")
    checked = check_pool(client.pool("a100"))
    assert (checked.verdict, checked.message) == (CheckStatus.WARN, "paused: maintenance")
    assert checked.hint == "stoker pools resume a100"


def test_a_pool_that_can_help_no_waiting_job_refuses_with_the_reason(client: Client, backend: FakeBackend, monkeypatch):
    monkeypatch.setattr("stoker.api.pools.reachable", lambda _urls: "https://desk:7717")
    assert client.launch("tiny") == (), "no job waits"
    client.submit([order("long", expected_s=3600.0)])
    with pytest.raises(
        LaunchRefused, match=r"tiny: no allocation for long: needs .*; its time limit leaves 45s"
    ) as caught:
        client.launch("tiny")
    assert (caught.value.exit_code, backend.submits) == (60, 0)


def test_an_explanation_names_the_pool_that_helps_soonest(client: Client, fleet: Fleet):
    by_hand = Pool(name="by-hand", backend=PoolBackend.LOCAL, is_automatic=False)
    pools = (by_hand, Pool(name="small", backend=PoolBackend.LOCAL), changed(by_hand, name="short", wall_s=60.0))
    fleet.queue.ask(Declare(cluster=Cluster(nodes=(), pools=pools)))
    fleet.client().watch_pools("w", ("small",), for_s=60.0)
    client.submit([order("long", expected_s=7200.0)])
    explained = client.explain("long")
    assert explained.verdict == (
        "pending: no machine of the fleet fits; small: a machine of it is about to be requested"
    )
    assert explained.changes == (), "no worker needs to join by hand"
    assert explained.pools["by-hand"] == "starts only by hand: stoker launch by-hand"
    assert explained.pools["short"] == "needs 2h00m; its time limit leaves 45s", "as stated, not rounded"


def test_without_tls_workers_of_this_machine_join_by_the_coordinators_socket(
    client: Client, fleet: Fleet, backend: FakeBackend
):
    pools = (Pool(name="here", backend=PoolBackend.LOCAL), Pool(name="a100", backend=PoolBackend.SLURM))
    fleet.queue.ask(Declare(cluster=Cluster(nodes=(), pools=pools)))
    assert len(client.launch("here", count=1)) == 1
    with pytest.raises(BadInput, match="serves only its own machine"):
        client.launch("a100", count=1)
    texts = {pool.name: pool.row()[-1] for pool in client.pools()}
    assert texts["a100"].startswith("the coordinator serves only its own machine: ")
    assert texts["here"] == "not watched: stoker launch watch"
    assert check_pool(client.pool("a100")).hint == "stoker serve --listen 0.0.0.0"
    checked = {
        state.pool.name: [one.name for one in checks if one.verdict is CheckStatus.BAD]
        for state, checks in FleetPools(
            fleet.client(), cast("Any", SimpleNamespace(launcher=lambda _: backend))
        ).check()
    }
    assert checked == {"here": [], "a100": ["coordinator"]}
    (text,) = backend.tickets
    ticket = read_ticket(text.encode())
    assert (ticket.url, Path(ticket.socket).is_socket()) == (fleet.url, True)


def test_workers_are_launched_for_waiting_jobs_and_stopped(client: Client, backend: FakeBackend, monkeypatch):
    client.submit([order("sweep", number) for number in (1, 2)])
    plan = client.plan_launch("a100")
    assert [(start.pool, start.count, start.jobs) for start in plan.decision.starts] == [("a100", 2, 2)]
    with pytest.raises(BadInput, match="serves only its own machine"):
        client.launch("a100")
    monkeypatch.setattr("stoker.api.pools.reachable", lambda _urls: "https://desk:7717")
    made = client.launch("a100")
    assert [one.state for one in made] == [AllocationState.SUBMITTED] * 2
    assert backend.submits == 1
    assert {one.id for one in client.pool("a100").allocations} == {one.id for one in made}
    assert client.launch("a100") == (), "machines for all jobs are on their way"
    assert [one.state for one in client.launch("a100", count=1)] == [AllocationState.SUBMITTED]
    with pytest.raises(Usage, match="not an allocation's id"):
        client.stop_pool("a100", "everything")
    assert client.stop_pool("a100", made[0].id).changed == (made[0].id,)
    assert backend.cancels == [(made[0].backend_id, True)], "nobody watches the pool: it is done here"
    assert len(client.stop_pool("a100").changed) == 2
    assert {one.state for one in client.pool("a100").allocations} == {AllocationState.ENDED}
    assert client.stop_pool("a100").changed == ()


def test_a_stop_that_reaches_no_backend_is_an_error(client: Client, fleet: Fleet, backend: FakeBackend, monkeypatch):
    monkeypatch.setattr("stoker.api.pools.reachable", lambda _urls: "https://desk:7717")
    backend.faults = ["drop"]
    with pytest.raises(LaunchDoubtful, match="a100: Socket timed out"):
        client.launch("a100", count=1)
    (row,) = client.pool("a100").allocations
    assert (row.state, row.message) == (AllocationState.DOUBTFUL, "Socket timed out")

    def unreachable(*_args: object, **_fields: object) -> None:
        raise NoBackend("No route to host")

    monkeypatch.setattr(backend, "look", unreachable)
    with pytest.raises(NoBackend, match=r"a100: the stop is stored, .*No route to host") as caught:
        client.stop_pool("a100")
    assert caught.value.hint.endswith("stoker launch watch a100")
    pool = client.pool("a100")
    assert (pool.serving, pool.requested) == (0, 0), "it never served"


def test_the_problem_of_a_watcher_is_shown(client: Client, fleet: Fleet, backend: FakeBackend):
    wire = fleet.client()
    wire.watch_pools("w", ("a100",), for_s=60.0, problem="far not reachable")
    assert client.pool("a100").row()[-1] == "problem: far not reachable"
    checked = check_pool(client.pool("a100"))
    assert (checked.verdict, checked.message) == (CheckStatus.WARN, "watched; problem: far not reachable")
    wire.watch_pools("w", ("a100",), for_s=0.0)
    assert client.pool("a100").state.problem == ""


def test_a_refused_launch_has_the_words_of_the_backend(client: Client, fleet: Fleet, backend: FakeBackend, monkeypatch):
    monkeypatch.setattr("stoker.api.pools.reachable", lambda _urls: "https://desk:7717")
    backend.faults = ["refuse"]
    with pytest.raises(LaunchRefused, match="a100: Invalid account"):
        client.launch("a100", count=2)
    made = client.pool("a100").allocations
    assert {one.state for one in made} == {AllocationState.REFUSED}
    lines = request_lines(LaunchRequest(id="r", pool="a100", count=2), made)
    assert lines[1:] == [f"  a100-{one.id} refused" for one in made], "the error has the reason, once"
    other = changed(made[1], message="no such partition")
    assert request_lines(LaunchRequest(id="r", pool="a100"), (made[0], other))[2].endswith("refused: no such partition")


def test_a_launch_waits_for_the_watcher_of_the_pool_and_withdraws_its_request_on_ctrl_c(
    client: Client, fleet: Fleet, backend: FakeBackend, monkeypatch
):
    wire = fleet.client()
    epoch = wire.watch_pools("another", ("tiny",), for_s=60.0)["tiny"]
    slept: list[float] = []

    def answer(_clock: SystemClock, seconds: float) -> None:
        slept.append(seconds)
        (request,) = [one for one in wire.launch_view().requests if one.is_open]
        (line,) = open_request_lines(client.pool("tiny"))
        assert line.startswith(f"request {request.id}: ")
        assert ("1 allocation, by " if request.count else "as many as waiting jobs need, by ") in line
        wire.close_request("tiny", request.id, "squeue: no such command", epoch=epoch, code="no_backend")

    monkeypatch.setattr(SystemClock, "sleep", answer)
    with pytest.raises(NoBackend, match="tiny: squeue: no such command"):
        client.launch("tiny", count=1)
    with pytest.raises(NoBackend, match="tiny: squeue: no such command"):
        client.launch("tiny")
    assert (len(slept), backend.submits) == (2, 0)

    def interrupt(_clock: SystemClock, _seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.launch("tiny")
    assert client.pool("tiny").requests[-1].message.startswith("withdrawn by ")
