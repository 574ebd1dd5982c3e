from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.model.clock import SystemClock
from stoker.plan.catalogue import Catalogue, Source
from stoker.worker.execution import Execution, JobResult, Tools
from stoker.worker.job_folder import JobFolder
from stoker.worker.ordering import Desk, Order, Wanted
from tests.unit.plan.lab import Lab


class Office:
    """A desk that takes orders, and an engine that runs them, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lab = Lab(folder / "lab")
        self.runs = str(folder / "runs")
        self.catalogue = Catalogue(
            str(folder / "state" / "index.json"),
            [
                Source(name="test", value="tests.unit.worker.cookbook:COOKBOOK"),
                Source(name="command", value="stoker.cookbooks.command:COOKBOOK"),
            ],
        )
        self._entropy = itertools.count(1)

    @property
    def desk(self) -> Desk:
        return Desk(
            catalogue=self.catalogue,
            memo=self.lab.store.memo,
            clock=SystemClock(),
            folder=str(self.folder),
            version="1.2.3",
            entropy=next(self._entropy),
            environment={},
            capacity=self.lab.capacity,
        )

    @property
    def tools(self) -> Tools:
        lab = self.lab
        scratch = str(self.folder / "scratch")
        return Tools(engine=lab.engine, store=lab.store, clock=lab.clock, runs=self.runs, scratch=scratch)

    def order(self, target: str, *, name: str = "", **texts: str) -> Order:
        words = tuple(f"{key}={text}" for key, text in texts.items())
        return self.desk.order(Wanted(target=target, overrides=words, name=name))

    def execution(self, order: Order, **more: Any) -> Execution:
        more.setdefault("out", str(self.folder / "stoker-out" / order.spec.name))
        more.setdefault("papers", order.papers)
        return Execution(plan=order.plan, spec=order.spec, tools=self.tools, **more)

    def run(self, target: str, *, name: str = "", **texts: str) -> JobResult:
        return self.execution(self.order(target, name=name, **texts)).run()

    def only_job(self) -> JobFolder:
        (folder,) = Path(self.runs).iterdir()
        return JobFolder(str(folder))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.lab.close()
