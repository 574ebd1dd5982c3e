"""Ray without a dashboard: what is sent, the actor and its worker, and the program that would import Ray."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.core.errors import LaunchDoubtful, NoBackend
from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolBackend, PoolShape, require_valid
from stoker.devices.checkup import CheckStatus
from stoker.host.command_runner import ProbeFailure, Reply, SubprocessRunner
from stoker.launch.commands import HostCommands, public_environment
from stoker.launch.launchers import NEXT
from stoker.launch.ray import RayLauncher
from stoker.launch.ray_actors import _LEADER, RayActors, StokerWorker, _answer
from tests.contract.launcher_cases import SECRET, make_stand_in, tickets

POOL = Pool(
    name="gpu",
    backend=PoolBackend.RAY,
    each=PoolShape(cpu_cores=2, ram_mb=1024),
    setup=("echo set up",),
    options={"address": "ray://head.example.org:10001", "resources": "big=1"},
    python="/opt/python",
)
ONE = Allocation(id="12e456", pool="gpu")

NEVER_S = 1e6
"""An actor ends its process so long after its worker, and here its process is that of all tests."""


class FakeRay:
    """A cluster whose actors are objects of this process. One that `waits` has no resources yet."""

    __version__ = "2.60.0"
    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.actors: dict[tuple[str, str], Any] = {}
        self.killed: list[str] = []
        self.waits: set[str] = set()
        self.util = SimpleNamespace(list_named_actors=self._listed)

    def _listed(self, *, all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces
        return [{"name": name, "namespace": namespace} for namespace, name in self.actors]

    def remote(self, kind: Callable[..., Any]) -> Any:
        def options(*, name: str, namespace: str, **_kept: Any) -> Any:
            def make(*given: Any) -> None:
                body, leader, _ = given
                if (namespace, name) not in self.actors:
                    self.actors[namespace, name] = name if name in self.waits else kind(body, leader, NEVER_S)

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str, *, namespace: str) -> Any:
        actor = self.actors[namespace, name]

        class Handle:
            def __getattr__(self, method: str) -> Any:
                return SimpleNamespace(
                    remote=lambda *given: None if isinstance(actor, str) else ("done", getattr(actor, method)(*given))
                )

        return Handle()

    def wait(self, calls: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [one for one in calls if one is not None], []

    def get(self, call: Any) -> Any:
        return call[1]

    def kill(self, _actor: Any) -> None:
        self.killed.append("one")


class InProcess(HostCommands):
    """Runs the program's verbs here, with a fake Ray."""

    def __init__(self, ray: FakeRay, *, is_lost: bool = False) -> None:
        self._ray = ray
        self._is_lost = is_lost
        self.sent: list[tuple[tuple[str, ...], str]] = []

    def run(self, where: str, argv: Any, *, stdin: str = "", stdin_path: str = "", limit_s: float = 0.0) -> Reply:
        self.sent.append((tuple(argv), stdin))
        token, _, text = stdin.partition("\n")
        assert token == "cluster token"
        answer = _answer(self._ray, argv[3], text)
        if self._is_lost:
            return ProbeFailure(why="timed out after 60 s", code="probe_timeout")
        return SubprocessRunner({}).ask(["printf", "%s", json.dumps({"answer": answer})])


def launcher(commands: HostCommands, python: str = "/ray/python") -> RayLauncher:
    def token() -> str:
        return "cluster token"

    return RayLauncher(None, token, RayActors(commands, token, python=python))  # type: ignore[arg-type]


def until(found: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + 20
    while not (value := found()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return value


def living(group: int) -> list[str]:
    """Return the processes of a group, without those that are only not reaped yet."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state not in "ZX":
                found.append(str(path))
    return found


def test_addresses_without_a_scheme_or_with_rays_are_those_of_clusters_without_a_dashboard() -> None:
    for address in ("127.0.0.1:6379", "ray://head:10001", "[::1]:6379", "ray://[fe80::1]:10001"):
        require_valid(changed(POOL, options={"address": address}))


def test_what_is_sent_names_the_actor_the_command_and_what_it_takes() -> None:
    ray = FakeRay()
    ray.waits.add(ONE.name)
    commands = InProcess(ray)
    rendered = launcher(commands).render(POOL, [ONE], fleet="4c1d")
    assert rendered.argv == (
        *("/ray/python", "-m", "stoker.launch.ray_actors", "submit"),
        "ray://head.example.org:10001",
    )
    (body,) = (json.loads(one) for one in rendered.stdin.split(NEXT))
    assert body["resources"] == {"num_cpus": 2, "num_gpus": 0, "memory": 1 << 30, "resources": {"big": 1.0}}
    assert (body["name"], body["namespace"]) == (ONE.name, "stoker-4c1d")
    assert body["ticket"] == "{ticket:12e456}"
    assert launcher(commands).submit(rendered, tickets([ONE])) == {ONE.id: ONE.name}
    argv, stdin = commands.sent[-1]
    assert argv == rendered.argv
    ticket = json.dumps(tickets([ONE])[ONE.id])[1:-1]
    assert stdin == "cluster token\n" + rendered.stdin.replace("{ticket:12e456}", ticket)
    assert SECRET not in " ".join(argv)


def test_an_actor_waits_runs_its_worker_and_shows_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    ray = FakeRay()
    pool = changed(POOL, python=str(make_stand_in(tmp_path / "stand-in", "1")))
    ray.waits.add("stoker-gpu-000002")
    two = [ONE, Allocation(id="000002", pool="gpu")]
    made = launcher(InProcess(ray))
    rendered = made.render(pool, two, fleet="4c1d")
    for _ in range(2):
        made.submit(rendered, tickets(two))
    seen = {one.id: one for one in made.look(pool, fleet="4c1d")}
    assert [seen[one.id].state for one in two] == [AllocationState.STARTED, AllocationState.WAITING]
    assert made.look(pool, fleet="ffff") == ()
    until((tmp_path / "stand-in/arguments").exists)
    assert made.log(pool, ONE).startswith("set up")
    (environment,) = (tmp_path / "stand-in").glob("environment.*")
    assert SECRET not in environment.read_text()
    made.clean(pool, [ONE])
    assert ray.killed == [], "what runs is left alone"
    made.cancel(pool, [one.name for one in two])
    assert ray.killed == ["one"], "one that waits has nothing to save"
    ended = until(lambda: [one for one in made.look(pool, fleet="4c1d") if one.state is AllocationState.ENDED])
    assert (ended[0].id, ended[0].cause) == (ONE.id, AllocationCause.CANCELLED_THERE)
    made.clean(pool, [ONE])
    assert len(ray.killed) == 2
    assert list(tmp_path.glob("stoker-ray-*")) == []


def test_a_worker_ends_with_its_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    body = {"ticket": "t", "setup": ":", "command": "sleep 600", "margin_s": 0}
    actor = StokerWorker(body, _LEADER, NEVER_S)
    (folder,) = tmp_path.glob("stoker-ray-*")
    assert (folder / "ticket").stat().st_mode & 0o777 == 0o600
    process = actor._process
    assert process.stdin is not None
    process.stdin.close()
    status = until(lambda: actor.status() if actor.status()["code"] is not None else None)
    assert status["code"] in (143, -signal.SIGKILL)
    until(lambda: not living(process.pid))


def test_a_lost_answer_is_doubtful() -> None:
    ray = FakeRay()
    ray.waits.add(ONE.name)
    made = launcher(InProcess(ray, is_lost=True))
    with pytest.raises(LaunchDoubtful, match="timed out"):
        made.submit(made.render(POOL, [ONE], fleet="4c1d"), tickets([ONE]))
    assert [one.id for one in launcher(InProcess(ray)).look(POOL, fleet="4c1d")] == [ONE.id]


def test_without_ray_here_the_extra_is_named() -> None:
    commands = HostCommands(SubprocessRunner(public_environment(os.environ)), control_folder="/none")
    made = launcher(commands, sys.executable)
    with pytest.raises(NoBackend, match="Ray is not installed here") as caught:
        made.look(POOL, fleet="4c1d")
    assert "stoker[ray]" in caught.value.hint
    assert made.check(POOL)[0].verdict is CheckStatus.BAD
