"""Commands in this process, against a real coordinator; the test itself is the worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stoker.__main__ import run_command_line
from stoker.api.app_parts import AppSettings
from stoker.app import App
from stoker.protocol.job_messages import Submission
from tests.contract.queue_driving import order
from tests.servers.coordinator import Fleet, coordinator


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Stoker = Callable[..., Ran]


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stoker(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Stoker:
    """Run a command; `at` is the coordinator that the environment names, `token` the operator's token there."""

    def run(*words: object, at: Fleet | str | None = None, token: str = "") -> Ran:
        environment = {"PATH": "/usr/bin:/bin", "STOKER_HOME": str(home)}
        if at is not None:
            url = at if isinstance(at, str) else at.url
            environment |= {"STOKER_COORDINATOR": url, **({"STOKER_OPERATOR_TOKEN": token} if token else {})}
        settings = AppSettings(home=str(home), folder=str(tmp_path), environment=environment)
        capfd.readouterr()
        code = run_command_line([str(word) for word in words], build=lambda: App(settings))
        said = capfd.readouterr()
        return Ran(code, said.out, said.err)

    return run


@pytest.fixture
def submit(fleet: Fleet) -> Callable[..., list[str]]:
    """Submit jobs by name; `resnet/2` is a point of a sweep. Gives their ids."""

    def send(*names: str) -> list[str]:
        orders = []
        for name in names:
            base, _, number = name.partition("/")
            label = f"lr={number}" if number else ""
            orders.append(order(base, int(number or 0), recipe="command", label=label))
        fleet.client().submit(Submission(jobs=tuple(orders), submitter="ann@laptop"))
        return [one.id for one in orders]

    return send
