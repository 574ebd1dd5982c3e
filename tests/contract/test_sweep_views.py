"""What screens show of several jobs together, over the coordinator's routes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import NotFound
from stoker.engine.metrics.metrics_file import MetricRow, encode_frame
from stoker.protocol.job_messages import Submission
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.hand import Hand


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("sweeps")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder) as fleet:
        yield fleet


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
