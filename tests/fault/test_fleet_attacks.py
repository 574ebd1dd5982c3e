"""Strangers at every door of the fleet: workers, coordinators and jobs that say or leave what no honest one would."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from stoker.api.fleet_job import FleetJob
from stoker.cli.job_verbs import perform_get
from stoker.client import Client
from stoker.coordinator.database.database import snapshot
from stoker.coordinator.database.tables import LEASES
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import read_message
from stoker.coordinator.queue.commands import Write
from stoker.core.errors import BadAnswer, BadInput, InvalidInput, NotFound, StokerError
from stoker.core.events import Kinds
from stoker.core.jsontext import dumps
from stoker.protocol.codec import from_json
from stoker.protocol.lease_messages import Fail, Finish, Grant, Hello, LeaseReport, PointCheckpoint, Renewal, Start
from stoker.transfer.mirror import FollowedFile
from stoker.worker.actions import AttemptJournalTail
from tests.contract.queue_driving import Driven, order

_TOKEN: dict[str, Any] = {"attempt": 1, "epoch": 1, "generation": 1}
_SHA = "0" * 64
_HELLO: dict[str, Any] = {"worker": "w", "incarnation": "incarnation-1", "capability": {}, "capability_digest": "x"}
_FINISH: dict[str, Any] = {**_TOKEN, "tree": _SHA, "archive_sha256": _SHA, "size_bytes": 1}
_POINT: dict[str, Any] = {"scratch": _SHA, "tree": _SHA, "archive_sha256": _SHA, "size_bytes": 1}


@pytest.fixture
def fleet(database_url: str) -> Iterator[Driven]:
    driven = Driven(database_url)
    driven.join("m1")
    yield driven
    driven.close()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(Hello, {**_HELLO, "worker": "\x1b[2J"}, id="a name that a terminal obeys"),
        pytest.param(Hello, {**_HELLO, "worker": "a\nb"}, id="a name of two lines"),
        pytest.param(Hello, {**_HELLO, "worker": "../w"}, id="a name that leads elsewhere"),
        pytest.param(Hello, {**_HELLO, "version": "x" * 10_000}, id="a version as long as a book"),
        pytest.param(Start, {**_TOKEN, "attempt": 1 << 63}, id="an attempt of more than 64 bits"),
        pytest.param(Start, {**_TOKEN, "epoch": 1 << 80}, id="an epoch of more than 64 bits"),
        pytest.param(Finish, {**_FINISH, "seconds": float("inf")}, id="a job that took for ever"),
        pytest.param(Fail, {**_TOKEN, "cause": "\x1b[31m"}, id="a cause that a terminal obeys"),
        pytest.param(Fail, {**_TOKEN, "cause": "user", "exit_code": 1 << 40}, id="an exit code that none is"),
        pytest.param(PointCheckpoint, {**_TOKEN, "checkpoint": {**_POINT, "scratch": "../x"}}, id="a scratch outside"),
        pytest.param(PointCheckpoint, {**_TOKEN, "checkpoint": {**_POINT, "size_bytes": -1}}, id="a negative size"),
    ],
)
def test_what_no_honest_worker_says_is_refused_before_anybody_acts_on_it(kind: Any, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        read_message(kind, dumps(body).encode())


@pytest.mark.parametrize("more", [{"job": "../../x"}, {"attempt": 10**30}, {"epoch": -1}], ids=ascii)
def test_a_grant_of_what_is_no_job_is_no_answer(more: dict[str, Any]) -> None:
    grant = {**_TOKEN, "job": _SHA, "name": "x", "recipe": "command", "lease_s": 5.0, "start_s": 5.0, **more}
    with pytest.raises(ValueError, match=next(iter(more))):
        from_json(Grant, dumps(grant).encode())


def test_a_value_that_no_column_holds_is_the_askers_fault_and_the_queue_goes_on(fleet: Driven) -> None:
    fleet.submit(order("one"))
    (grant,) = fleet.claim()
    huge = Start.model_construct(attempt=1 << 70, epoch=grant.epoch, generation=grant.generation)
    for said in (Hello(**_HELLO).model_copy(update={"boot_id": "\ud800"}), Write(job=grant.job, said=huge)):
        with pytest.raises(StokerError) as caught:
            fleet.ask(said)
        assert caught.value.code in ("bad_input", "stale_lease")
    fleet.start(grant)
    assert fleet.reader.counts()["running"] == 1


@pytest.mark.parametrize("name", ["one/99999999999999999999", "o\0ne", "\0"], ids=ascii)
def test_a_name_that_no_column_holds_is_no_trouble_of_the_database(fleet: Driven, name: str) -> None:
    fleet.submit(order("one"))
    with pytest.raises((BadInput, NotFound)):
        fleet.reader.find(name)


def test_a_heartbeat_that_tells_a_book_is_kept_as_a_line(fleet: Driven) -> None:
    fleet.submit(order("one"))
    (grant,) = fleet.claim()
    fleet.start(grant)
    token = {name: getattr(grant, name) for name in ("job", "attempt", "epoch", "generation")}
    many = {f"m{number}": 1.0 for number in range(5_000)}
    report = LeaseReport(**token, says="x" * 1_000_000, stage="y" * 1_000_000, metrics=many)
    fleet.ask(Renewal(worker="m1", incarnation="incarnation-m1", leases=(report,)))
    # What heartbeats changed is written down at the latest when it ends.
    fleet.close()
    fleet.open()
    with snapshot(fleet.database) as connection:
        progress = connection.execute(select(LEASES.c.progress)).scalar_one()
    assert 0 < len(progress) < 20_000


def test_whoever_wants_the_whole_past_keeps_nobody_from_reading() -> None:
    is_over = threading.Event()

    def past(_after: int, _limit: int) -> tuple[dict[str, Any], ...]:
        is_over.wait(20)
        return ()

    async def ask() -> None:
        reader = SimpleNamespace(events=past)
        queue = SimpleNamespace(reader=reader, post=_deaf, on_change=_deaf, on_wish=_deaf, is_current=_deaf)
        keeping = SimpleNamespace(attempt_files=SimpleNamespace(on_growth=_deaf))
        office = ServiceContext(queue=queue, keeping=keeping, views=None, about=None, clock=None, reload=None)  # type: ignore[arg-type]
        listeners = [asyncio.ensure_future(office.feed.after(0, 0.01)) for _ in range(20)]
        try:
            assert await asyncio.wait_for(office.read(lambda: "well"), 10) == "well"
        finally:
            is_over.set()
            await asyncio.gather(*listeners)
            office.end()

    asyncio.run(ask())


def _deaf(_listener: object) -> None:
    pass


def test_a_folder_that_a_job_turned_into_a_link_leads_nowhere(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret")
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "key").write_text("mine")
    followed = FollowedFile(str(run), "logs/key")
    assert followed.read(100) == b"mine"
    followed.lies_there(4)
    os.rename(run / "logs", run / "before")
    os.symlink(private, run / "logs")
    assert followed.read(100) == b""
    followed.rest()
    assert followed.read(100) == b""
    assert FollowedFile(str(run), "logs/key").read(100) == b""


def test_a_metric_that_is_no_number_for_machines_does_not_silence_the_worker(tmp_path: Path) -> None:
    journal = tmp_path / "status.jsonl"
    measured = {"huge": 10**400, "loss": 0.5, "\x1b[31m\nred": 1.0}
    journal.write_text(dumps({"kind": str(Kinds.STAGE_STEP), "node": "run", "step": 1, "metrics": measured}) + "\n")
    hearing = AttemptJournalTail(str(journal))
    heard = hearing.look()
    hearing.close()
    assert heard.metrics["loss"] == 0.5
    assert "huge" not in heard.metrics
    assert all(name.isprintable() for name in heard.metrics)


def _point(label: str, name: str) -> Any:
    return SimpleNamespace(id="1" * 64, label=label, name=name, state="completed", recipe="command", machine="desk")


def _sweep_with(point: Any, ref: str) -> Any:
    """Return a job of the fleet whose only point says this of itself."""
    story: Any = SimpleNamespace(job=point, bundle={"tree": "1" * 64, "size_bytes": 1})
    parts: Any = SimpleNamespace(store=None, clock=None)
    client: Any = None
    job: Any = FleetJob(client, ref, story, parts)
    job.points = lambda: [point]
    return job


@pytest.mark.parametrize(
    ("ref", "label", "name"),
    [("s", "../../x", "s/1"), ("s", "/etc", "s/1"), ("s", "", "s/.."), ("../s", "fine", "../s/1")],
    ids=["up", "absolute", "number", "name"],
)
def test_a_coordinator_can_not_send_results_anywhere_but_below_the_folder(
    tmp_path: Path, ref: str, label: str, name: str
) -> None:
    job = _sweep_with(_point(label, name), ref)
    lookup = SimpleNamespace(fleet_job_if_meant=lambda *_: job)
    call: Any = SimpleNamespace(lookup=lookup, parts=SimpleNamespace(settings=SimpleNamespace(folder=str(tmp_path))))
    given = {"name": ref, "at": None, "stage": None, "metrics": None, "bundle": None, "dir": None, "force": False}
    with pytest.raises(BadAnswer, match="no folder can be called by"):
        perform_get(call, given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("label", ["../../x", "/etc"], ids=["up", "absolute"])
def test_nor_can_it_through_the_client_for_python(tmp_path: Path, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client.__new__(Client)
    monkeypatch.setattr(client, "_job", lambda _name: _sweep_with(_point(label, "s/1"), "s"))
    with pytest.raises(BadAnswer, match="no folder can be called by"):
        client.get("s", tmp_path)
    assert not list(tmp_path.iterdir())
