"""What screens show of several jobs together, over the coordinator's routes."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from http.client import HTTPConnection
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest

from stoker.coordinator.http import sweep_routes
from stoker.core.errors import NotFound
from stoker.core.frozen import changed
from stoker.core.job import job_id
from stoker.engine.metrics.metrics_file import MetricRow, encode_frame
from stoker.protocol.job_messages import Submission
from stoker.protocol.screen_messages import MachinesLike, SimulateRequest
from tests.contract.queue_driving import order
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.hand import Hand


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("sweeps")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder) as fleet:
        yield fleet


def id_of(args: Mapping[str, object]) -> str:
    return job_id(recipe="tabular/gbt", schema_version=1, args=args)


def frame(name: str, *values: float) -> bytes:
    return encode_frame([MetricRow(at, 10.0 + at, name, value) for at, value in enumerate(values)])


def test_a_sweep_is_ranked_by_the_best_steps_of_its_curves(fleet: Fleet):
    client = fleet.client()
    rates = (0.1, 0.01, 0.001)
    jobs = tuple(order("sweep", at, point={"lr": lr}, label=f"lr={lr}") for at, lr in enumerate(rates, 1))
    client.submit(Submission(jobs=jobs))
    hand = Hand(client)
    first, second = hand.start(), hand.start()
    client.put_file(first.token(), "metrics/1.skm", frame("val_loss", 3.0, 0.5, 2.0) + frame("acc", 1, 2), offset=0)
    client.put_file(second.token(), "metrics/1.skm", frame("val_loss", 3.0, 1.0, math.nan), offset=0)
    hand.finish(first, val_loss=2.0)
    view = client.sweep("sweep")
    assert (view.name, view.metric, view.total, view.importance_by) == ("sweep", "val_loss", 3, "")
    assert [(one.number, one.state, one.best_step, one.place) for one in view.trials] == [
        (1, "completed", 1, 1),
        (2, "running", 1, 2),
        (3, "pending", None, None),
    ]
    assert view.trials[0].metrics == {"val_loss": 0.5, "acc": 2.0}
    assert [one.parameters for one in view.trials] == [{"lr": 0.1}, {"lr": 0.01}, {"lr": 0.001}]
    (parameter,) = view.parameters
    assert (parameter.name, parameter.is_log, parameter.low, parameter.high) == ("lr", True, 0.001, 0.1)
    (listed,) = client.sweeps().sweeps
    assert (listed.name, listed.jobs) == ("sweep", {"completed": 1, "running": 1, "pending": 1})
    with pytest.raises(NotFound, match="no trial has a metric 'loss'"):
        client.sweep("sweep", "loss")
    with pytest.raises(NotFound, match="there is no job 'missing'"):
        client.sweep("missing")


def test_sweeps_are_listed_page_by_page_the_newest_first(fleet: Fleet):
    client = fleet.client()
    for name in ("first", "second", "third"):
        client.submit(Submission(jobs=(order(name, 1), order(name, 2))))
    every = client.sweeps()
    assert [one.name for one in every.sweeps][:3] == ["third", "second", "first"]
    assert (every.total, every.next) == (len(every.sweeps), "")
    newest = client.sweeps(limit=2)
    assert ([one.name for one in newest.sweeps], newest.total) == (["third", "second"], every.total)
    assert client.sweeps(newest.next).sweeps == every.sweeps[2:]


def test_jobs_are_compared_what_differs_first_and_a_pending_one_by_its_submission(fleet: Fleet):
    client = fleet.client()
    for name, lr in (("one", 0.1), ("two", 0.2), ("waits", 0.3)):
        args = {"lr": lr, "depth": 3}
        client.submit(Submission(jobs=(order(name, args=args, identity=args, id=id_of(args), priority=9),)))
    hand = Hand(client, "bench")
    for _ in range(2):
        grant = hand.start()
        hand.put_story(grant, "hello")
    view = client.compare(["one", "two", "waits"])
    assert [job.name for job in view.jobs] == ["one", "two", "waits"]
    assert view.facts[0].differs
    assert [fact.differs for fact in view.facts] == sorted((fact.differs for fact in view.facts), reverse=True)
    rates = [fact for fact in view.facts if fact.name == "lr"]
    assert [(fact.section, fact.values) for fact in rates] == [("config", ("", "", "0.3"))]
    with pytest.raises(NotFound, match="there is no job 'missing'"):
        client.compare(["one", "missing"])


def test_a_simulation_says_when_all_is_done_with_more_machines(fleet: Fleet):
    client = fleet.client()
    client.submit(Submission(jobs=tuple(order("long", n, expected_s=3600.0) for n in range(1, 21))))
    Hand(client, "desk")
    request = SimulateRequest(add=(MachinesLike(like="desk", count=2),))
    view = client.simulate(request)
    assert view.changed is not None
    assert view.now.done_s is not None
    assert view.changed.done_s is not None
    assert view.changed.done_s < view.now.done_s
    assert view.changed.machines == view.now.machines + 2
    assert view.added == ("added-desk-1", "added-desk-2")
    assert {"desk", "a100-eight"} <= set(view.kinds)
    assert view.now.waits[-1].jobs >= 20
    assert any(one.job.startswith("long/") for one in view.jobs)
    assert client.simulate(SimulateRequest()).changed is None
    assert (len(view.now.waiting), view.now.waiting[-1]) == (121, 0)
    failing = client.simulate(SimulateRequest(fail=0.5)).changed
    assert failing is not None
    assert failing.failures > 0
    later = client.simulate(SimulateRequest(remove=("desk", "bench"), remove_after_s=1e6)).changed
    assert later is not None
    assert later.unfinished == 0
    fewer = client.simulate(SimulateRequest(remove=("desk", "bench")))
    assert fewer.changed is not None
    assert fewer.changed.unfinished >= 20
    assert fewer.changed.done_s is None
    for wrong in (SimulateRequest(remove=("dsk",)), SimulateRequest(add=(MachinesLike(like="dsk"),))):
        with pytest.raises(NotFound) as caught:
            client.simulate(wrong)
        assert caught.value.hint == "did you mean 'desk'?"


def test_simulations_are_few_and_keep_nobody_else_waiting(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    begun, go = threading.Event(), threading.Event()

    def slow(*_: object) -> NoReturn:
        begun.set()
        go.wait(60.0)
        raise NotFound("done")

    monkeypatch.setattr(sweep_routes, "simulate_change", slow)
    client = fleet.client()
    client.submit(Submission(jobs=(order("asked", priority=5),)))
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(_simulated, fleet) for _ in range(3)]
        try:
            assert begun.wait(30.0)
            assert client.explain("asked").verdict, "a forecast of others is made meanwhile"
            assert client.overview().jobs
            (refused,) = wait(asked, 30.0, FIRST_COMPLETED).done
            assert refused.result() == (429, "5")
        finally:
            go.set()
        assert sorted(one.result()[0] for one in asked) == [404, 404, 429]


def _simulated(fleet: Fleet) -> tuple[int, str | None]:
    """Ask for a simulation once: our own client sends a refused request again. Return the status, and when to retry."""
    parts = urlsplit(fleet.url)
    link = HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    link.request("POST", "/v1/simulate", "{}", {"X-Operator-Token": TOKEN, "Content-Type": "application/json"})
    reply = link.getresponse()
    link.close()
    return reply.status, reply.getheader("Retry-After")


def test_results_are_listed_with_what_they_are_made_from(fleet: Fleet):
    client = fleet.client()
    args, digest = {"data": "/data/rows.csv"}, "sha256:" + "a" * 64
    identity = {"data": {"content": digest}}
    made = order(
        "model", args=args, identity=identity, id=id_of(identity), priority=20, commit="c" * 40, code={"a.py": "b"}
    )
    client.submit(Submission(jobs=(order("before", priority=20),)))
    client.submit(Submission(jobs=(changed(made, after=("before",)),)))
    hand = Hand(client, "maker")
    for metrics in ({}, {"loss": 0.25}):
        hand.finish(hand.start(), **metrics)
    page = client.models(limit=1)
    (model,) = page.models
    assert (model.name, model.machine, model.metrics, model.commit) == ("model", "maker", {"loss": 0.25}, "c" * 40)
    assert [(one.name, one.digest) for one in model.data] == [("rows.csv", digest)]
    assert [(one.name, one.digest) for one in model.code] == [("a.py", "b")]
    assert [(one.name, one.digest) for one in model.parents] == [("before", model.digest)]
    assert client.models(page.next, limit=1).models[0].name == "before"


def test_adapters_rank_by_loss_among_those_of_one_base_and_the_same_data(fleet: Fleet):
    client = fleet.client()
    hand = Hand(client, "trainer")
    for number, (base, rank, loss) in enumerate((("tiny", 8, 0.5), ("tiny", 16, 0.4), ("other", 8, 0.1)), 1):
        args = {"base": base, "data": "sums", "rank": rank, "alpha": 2.0 * rank, "lr": 0.1 * number}
        id = job_id(recipe="language/lora", schema_version=1, args=args)
        spec = order("lora", number, recipe="language/lora", args=args, identity=args, id=id, priority=50)
        client.submit(Submission(jobs=(spec,)))
        hand.finish(hand.start(), eval_loss=loss, loss=loss / 2)
    tiny, other = client.adapters().bases
    assert (tiny.base, other.base, tiny.total) == ("tiny", "other", 2)
    assert [(one.job, one.place, one.rank, one.alpha, one.val_loss, one.train_loss) for one in tiny.adapters] == [
        ("lora/2", 1, 16, 32.0, 0.4, 0.2),
        ("lora/1", 2, 8, 16.0, 0.5, 0.25),
    ]
    assert tiny.adapters[0].parameters == {"lr": 0.2}
