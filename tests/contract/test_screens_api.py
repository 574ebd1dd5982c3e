"""What screens read of a coordinator: the overview, and rows as they change, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, insert

from stoker.api.fleet_monitor import FleetMonitor
from stoker.api.monitor import JobQuery
from stoker.coordinator.database.tables import EVENTS
from stoker.coordinator.http import change_feed
from stoker.coordinator.queue import read_screens
from stoker.core.errors import RateLimited, Refused
from stoker.core.leases import Role
from stoker.protocol.client import FleetClient
from stoker.protocol.enrolment_messages import TokenRequest
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Fail, LeaseReport, Renewal, Start
from stoker.protocol.screen_messages import ChangedRows
from stoker.protocol.transport import FleetEvent
from stoker.protocol.view_messages import MachineList
from tests.contract.queue_driving import order
from tests.contract.test_fleet_api import INCARNATION, claim, hello, said
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.unix_http import UnixConnection


@pytest.fixture
def fleet(queue_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with coordinator(queue_url, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def small(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    """A coordinator where the database does not matter."""
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


def rows(event: FleetEvent) -> ChangedRows:
    return ChangedRows.model_validate(event.data)


def frames(client: FleetClient, after: int | None = None) -> Iterator[FleetEvent]:
    # Bounded: a row that never comes fails a test, and does not hang it.
    return (event for event in islice(client.stream(after), 500) if event is not None)


def test_an_overview_says_what_runs_what_waits_and_why_and_what_failed(fleet: Fleet):
    client = fleet.client()
    large = order("large", requirements={"ram_bytes": 1 << 40})
    client.submit(Submission(jobs=(order("bad"), order("good"))))
    client.hello(hello())
    bad, good = client.claim(claim(most=2)).grants
    client.write(bad.job, Start(**said(bad)))
    client.write(bad.job, Fail(**said(bad), cause="user", message="ValueError: nan"))
    client.write(good.job, Start(**said(good)))
    client.submit(Submission(jobs=(large, order("next"), order("after", after=("good",)))))
    seen = client.overview()
    assert (seen.is_fleet, seen.role, seen.version) == (True, "admin", "test")
    assert {state: count for state, count in seen.jobs.items() if count} == {"running": 1, "pending": 3, "failed": 1}
    assert [job.name for job in seen.running] == ["good"]
    assert [(job.name, job.why) for job in seen.failed] == [("bad", "ValueError: nan")]
    assert seen.failed_count == 1
    reasons = {one.reason: one.jobs for one in seen.pending}
    assert reasons.pop("waits for 1 job to complete first") == ("after",)
    assert reasons.pop("waits for a machine") == ("next",)
    ((why, names),) = reasons.items()
    assert why.startswith("no machine of the fleet fits: ")
    assert names == ("large",)
    rows = {one.name: one.why for one in client.jobs(state="pending").jobs}
    assert (rows["large"], rows["next"], client.job("large").job.why) == (why, "waits for a machine", why)
    fleet.queue.reader.note_never({}, 0.0)
    assert client.job("large").job.why == "waits for a machine", "a forecast that is too old is not shown"
    assert seen.machines == {"ready": 1}
    assert seen.seq == fleet.queue.reader.newest_event()


def test_pending_jobs_behind_the_sample_are_counted_and_said(small: Fleet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_screens, "SAMPLE", 3)
    client = small.client()
    client.submit(Submission(jobs=tuple(order("sweep", number) for number in range(1, 8))))
    pending = client.overview().pending
    assert [(one.reason, one.count) for one in pending] == [
        ("no machine of the fleet fits: there are no machines", 3),
        ("not looked at: behind the first 3", 4),
    ]
    assert pending[0].jobs == ("sweep/1", "sweep/2", "sweep/3")


def test_screens_that_accept_an_older_overview_share_one_and_others_get_their_own(small: Fleet):
    client = small.client()
    made = client.make_token(TokenRequest(name="screen", role=Role.READ))
    first = client.overview(max_age_s=10)
    client.submit(Submission(jobs=(order("one"),)))
    shared = small.client(token=made.token).overview(max_age_s=10)
    assert (shared.seq, shared.jobs["pending"]) == (first.seq, 0)
    assert [(one.user, one.role) for one in (first, shared)] == [(first.user, "admin"), ("screen", "read")]
    assert client.overview().jobs["pending"] == 1


def test_changed_rows_come_as_they_happen_and_are_resumed_by_their_id(fleet: Fleet):
    client = fleet.client()
    client.submit(Submission(jobs=(order("one"),)))
    before = client.overview().seq
    heard = frames(client, before)
    first = next(heard)
    assert (first.kind, first.id, first.data["version"], first.data["build"]) == ("hello", before, "test", "test")
    client.submit(Submission(jobs=(order("two"),)))
    found = next(heard)
    assert found.kind == "rows"
    assert [(job.name, job.state) for job in rows(found).jobs] == [("two", "pending")]
    assert rows(found).counts["pending"] == 2
    assert found.id == rows(found).seq == fleet.queue.reader.newest_event()
    resumed = frames(fleet.client(), before)
    assert next(resumed).kind == "hello"
    assert [job.name for job in rows(next(resumed)).jobs] == ["two"]


def test_progress_and_machines_are_rows_too(small: Fleet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(change_feed, "LOOK_S", 0.02)
    monkeypatch.setattr(change_feed, "EVERY_S", 0.01)
    client = small.client()
    heard = frames(small.client())
    next(heard)
    client.submit(Submission(jobs=(order("train"),)))
    client.hello(hello())
    (grant,) = client.claim(claim()).grants
    client.write(grant.job, Start(**said(grant)))
    machine = next(one for event in heard for one in rows(event).machines if one.held)
    assert (machine.name, machine.jobs, machine.capability) == ("desk", ("train",), {})
    for step in (3, 4):
        report = LeaseReport(job=grant.job, **said(grant), step=step, of=10)
        client.renew(Renewal(worker="desk", incarnation=INCARNATION, leases=(report,)))
        assert next(job for event in heard for job in rows(event).jobs if job.step == step).of == 10


def add_events(fleet: Fleet, count: int) -> None:
    engine = create_engine(fleet.queue.reader.database.readers.url, poolclass=NullPool)
    with engine.begin() as connection:
        row: dict[str, Any] = {"at_s": 1.0, "kind": "invited", "generation": 1}
        connection.execute(insert(EVENTS), [row] * count)


def test_a_client_that_is_far_behind_reads_everything_again(small: Fleet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_screens, "MOST_BEHIND", 50)
    client = small.client()
    add_events(small, 60)
    found = frames(client, 1)
    assert [next(found).kind, next(found).kind] == ["hello", "resync"]
    assert client.changes(1).resync
    newest = small.queue.reader.newest_event()
    assert not client.changes(newest).resync
    assert client.changes(newest + 1).resync, "the database was restored from a backup"


def test_one_answer_at_a_time_waits_for_a_change(small: Fleet):
    client = small.client()
    place = client.overview().seq
    assert client.changes(place).jobs == ()
    client.submit(Submission(jobs=(order("one"),)))
    found = client.changes(place, wait_s=30.0)
    assert [job.name for job in found.jobs] == ["one"]
    # Frames that were made before are returned, too.
    assert [job.name for job in client.changes(place, wait_s=30.0).jobs] == ["one"]
    assert client.change_job("one", "priority", priority=5).changed
    assert [job.priority for job in client.changes(found.seq, wait_s=30.0).jobs] == [5]
    assert client.change_job("one", "cancel").changed


def test_listeners_are_bounded_and_end_with_their_access(small: Fleet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(change_feed, "MOST_LISTENERS", 1)
    admin = small.client()
    made = admin.make_token(TokenRequest(name="screen", role=Role.READ))
    reader = small.client(token=made.token).more_patient(0.0)
    stream = reader.stream()
    assert next(event for event in stream if event is not None).kind == "hello"
    with pytest.raises(RateLimited, match="1 screens listen"):
        next(frames(admin.more_patient(0.0)))
    admin.revoke_token(made.view.id)
    admin.submit(Submission(jobs=(order("one"),)))
    with pytest.raises(Exception, match="not valid"):
        list(stream)


def test_a_stream_is_not_buffered_by_proxies(small: Fleet):
    with closing(UnixConnection(small.socket)) as connection:
        connection.request("GET", "/v1/stream", headers={"Host": "localhost", "Accept-Encoding": "gzip"})
        reply = connection.getresponse()
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        assert reply.headers["X-Accel-Buffering"] == "no"
        assert reply.headers["Content-Encoding"] is None


def test_a_monitor_of_a_fleet_shows_and_changes_jobs_and_machines(small: Fleet):
    client = small.client()
    client.submit(Submission(jobs=(order("net", 1), order("net", 2), order("other"))))
    client.hello(hello())
    monitor = FleetMonitor(client, by="anna")
    place = monitor.overview().seq
    assert [job.name for job in monitor.jobs(JobQuery(name="NET", sort="name")).jobs] == ["net/1", "net/2"]
    assert [job.name for job in monitor.jobs(JobQuery(sweep="net", state="pending", limit=1)).jobs] == ["net/2"]
    assert monitor.job("other").job.name == "other"
    assert monitor.explain("other").job.state == "pending"
    assert monitor.set_priority("net/2", 3).changed
    assert monitor.cancel("net").changed
    assert monitor.requeue("net/1").changed
    assert monitor.set_machine("desk", "cordon", why="noisy").changed
    assert [(one.name, one.state, one.why) for one in monitor.machines()] == [("desk", "cordoned", "noisy")]
    found = monitor.changes(place, 5.0)
    assert {job.name: (job.state, job.priority) for job in found.jobs} == {
        "net/1": ("pending", 0),
        "net/2": ("cancelled", 3),
    }
    with pytest.raises(Refused):
        monitor.set_machine("desk", "forget")


def test_machines_are_listed_page_by_page_and_in_brief(fleet: Fleet):
    client = fleet.client()
    for name in ("a", "b", "c"):
        client.hello(hello(name))
    first = client._get("/v1/machines", MachineList, {"limit": 2, "brief": "true"})
    assert ([one.name for one in first.machines], first.next) == (["a", "b"], "b")
    assert first.machines[0].capability == {}
    rest = client._get("/v1/machines", MachineList, {"limit": 2, "after": first.next})
    assert ([one.name for one in rest.machines], rest.next) == (["c"], "")
    assert rest.machines[0].capability
    assert [one.name for one in client.machines()] == ["a", "b", "c"]
