"""`stoker cancel` of one point of a sweep on the fleet, by its number or its label."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.api.fleet_job import FleetJob
from stoker.api.job_lookup import JobLookup, split_ref
from stoker.cli.job_verbs import request_cancel
from stoker.core.errors import NotFound


class Client:
    """Remembers which jobs were to be cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def job(self, ref: str) -> Any:
        return SimpleNamespace(job=next((one for one in POINTS if ref in (one.id, one.name)), POINTS[-1]))

    def cancel_jobs(self, ids: list[str], *, by: str) -> None:
        self.cancelled += ids


class Out:
    def object(self, fields: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def line(self, text: str) -> None: ...


POINTS = [
    SimpleNamespace(id=f"id-{n}", name=f"train/{n}", label=f"lr=0.{n}", state="pending", machine="") for n in (1, 2, 3)
]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr("stoker.api.fleet_job.points_of", lambda _client, _ref: POINTS)
    return Client()


def cancel(client: Client, target: str) -> int:
    settings = SimpleNamespace(environment={"USER": "ada"})
    parts: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_s=lambda: 0.0), settings=settings)
    found: Any = client
    job = JobLookup(parts, note=lambda _text: None)._ask(found, *split_ref(target))
    if isinstance(job, NotFound):
        raise job
    assert isinstance(job, FleetJob)
    call: Any = SimpleNamespace(out=Out(), parts=parts, flags=SimpleNamespace(json=False, quiet=False))
    return request_cancel(call, job)


@pytest.mark.parametrize(
    ("target", "cancelled"),
    [
        ("train", ["id-1", "id-2", "id-3"]),
        ("train/2", ["id-2"]),
        ("train/lr=0.2", ["id-2"]),
    ],
)
def test_a_name_means_all_points_and_a_number_or_label_one(client: Client, target: str, cancelled: list[str]):
    assert cancel(client, target) == 0
    assert client.cancelled == cancelled


def test_a_label_that_no_point_has_cancels_nothing(client: Client):
    with pytest.raises(NotFound, match="has no trial 'lr=9'"):
        cancel(client, "train/lr=9")
    assert client.cancelled == []
