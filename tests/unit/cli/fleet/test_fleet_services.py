"""A coordinator and the worker beside it as services: what is typed again keeps what stands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cli.serve import GRAMMAR as SERVE
from stoker.cli.services import install_work, serve_words, worker_beside
from stoker.cli.work import GRAMMAR
from stoker.core.clock import FakeClock
from stoker.launch.installer import Installer, SystemdSupervisor
from stoker.launch.service import ServiceKind, SupervisedService, make_service
from tests.unit.launch.test_launch_installing import Systemctl


class Desk:
    """A machine with a supervisor that runs nothing."""

    def __init__(self, folder: Path) -> None:
        self.units = folder / "units"
        self._home = str(folder)
        self._installer = Installer(SystemdSupervisor(str(self.units)), Systemctl(), FakeClock())
        out = SimpleNamespace(object=self._hear, line=self._hear, note=self._hear, is_terminal=False)
        parts = SimpleNamespace(
            service=self._service,
            installer=lambda: self._installer,
            boot_trouble=lambda: "",
            settings=SimpleNamespace(environment={}),
        )
        self.call: Any = SimpleNamespace(out=out, parts=parts)

    def serve(self) -> SupervisedService:
        """Install as `stoker serve --install` does; gives the worker's service."""
        serve = self._service(ServiceKind.SERVE, ())
        work = worker_beside(self.call, serve.label)
        self._installer.install(serve)
        self._installer.install(work)
        return work

    def work(self, *words: str) -> str:
        """Type `stoker work WORDS --install`; gives its unit."""
        assert install_work(self.call, GRAMMAR.parse([*words, "--install", "--yes"])) == 0
        return self.unit()

    def unit(self) -> str:
        return (self.units / "stoker-work.service").read_text()

    def _service(self, kind: ServiceKind, words: tuple[str, ...], **more: Any) -> SupervisedService:
        home = self._home
        return make_service(kind, words, python="/py", home=home, usual_home=home, environment={}, **more)

    def _hear(self, *_told: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_worker_that_is_given_options_still_starts_after_its_coordinator(desk: Desk):
    desk.serve()
    unit = desk.work("--slots", "2")
    assert '"--slots" "2"' in unit
    assert "After=stoker-serve.service" in unit
    assert "After=" not in desk.work("--join", "https://elsewhere:7717")


def test_a_coordinator_that_is_installed_again_leaves_its_worker_the_options_it_has(desk: Desk):
    desk.serve()
    before = desk.work("--slots", "2", "--grace", "1m")
    again = desk.serve()
    assert again.argv[-4:] == ("--slots", "2", "--grace", "60s")
    assert desk.unit() == before


def test_a_worker_without_a_coordinator_here_waits_for_none(desk: Desk):
    assert "After=" not in desk.work("--slots", "2")


def test_a_worker_of_another_fleet_stays_one(desk: Desk):
    desk.work("--join", "https://elsewhere:7717")
    assert desk.serve().after == ""
    assert '"--join" "https://elsewhere:7717"' in desk.unit()


def test_a_coordinator_that_serves_system_a_is_installed_so() -> None:
    given: dict[str, Any] = dict.fromkeys(option.key for option in SERVE.options)
    given["system_a"] = True
    call: Any = SimpleNamespace()
    assert serve_words(call, given)[-1] == "--system-a"
    assert "--system-a" not in serve_words(call, {**given, "system_a": False})
