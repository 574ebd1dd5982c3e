from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import SystemClock
from stoker.engine.catalogue import Catalogue, CookbookSource
from stoker.jobs.builder import JobBuild, JobBuilder
from stoker.jobs.execution import Execution, ExecutionTools, JobResult
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.request import JobRequest
from tests.unit.engine.lab import Lab


class Office:
    """A builder of jobs, and an engine that runs them, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lab = Lab(folder / "lab")
        self.runs = str(folder / "runs")
        self.catalogue = Catalogue(
            str(folder / "state" / "index.json"),
            [
                CookbookSource(name="test", value="tests.unit.jobs.cookbook:COOKBOOK"),
                CookbookSource(name="command", value="stoker.cookbooks.command:COOKBOOK"),
            ],
        )
        self._entropy = itertools.count(1)

    @property
    def builder(self) -> JobBuilder:
        return JobBuilder(
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
    def tools(self) -> ExecutionTools:
        lab = self.lab
        scratch = str(self.folder / "scratch")
        return ExecutionTools(engine=lab.engine, store=lab.store, clock=lab.clock, runs=self.runs, scratch=scratch)

    def order(self, target: str, *, name: str = "", **texts: str) -> JobBuild:
        words = tuple(f"{key}={text}" for key, text in texts.items())
        return self.builder.build(JobRequest(target=target, overrides=words, name=name))

    def execution(self, order: JobBuild, **more: Any) -> Execution:
        more.setdefault("out", str(self.folder / "stoker-out" / order.spec.name))
        attempt = self.builder.new_attempt(order.spec, {})
        return Execution(build=order, attempt=attempt, tools=self.tools, **more)

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
