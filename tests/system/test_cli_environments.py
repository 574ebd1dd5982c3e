"""Python environments as a person meets them: named at submit, told machine by machine, explained."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.capability import Capability
from stoker.core.jsontext import loads
from stoker.jobs.pack.environment_files import gather
from stoker.protocol.lease_messages import Claim, Hello, MachineInventory
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import Shell, finish, wait_until
from tests.unit.worker.tiny_wheels import locked_project, wheel

GIB = 1 << 30
NO_WHEEL = "no wheel of torch for aarch64 cp310"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Iterator[tuple[Shell, FleetDesk]]:
    """A coordinator that two machines have joined, and a project with a lock."""
    shell = Shell(tmp_path_factory.mktemp("envs"), index=index)
    wheels = [wheel(str(shell.folder / "wheels"), "torch", tag="cp312-cp312-manylinux_2_28_x86_64")]
    locked_project(str(shell.folder), wheels)
    (shell.folder / "train.py").write_text("print(1)\n")
    digest = gather(str(shell.folder), "uv.lock").digest
    serve = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    try:
        assert serve.stdout is not None
        url = loads(serve.stdout.readline())["url"]
        wait_until((shell.home / "state" / "serve.json").exists)
        with FleetDesk(url, shell.home) as desk:
            join(desk, "desk", platform="linux-x86_64", pythons=("3.12.3",), environments=(digest,))
            join(desk, "lab1", platform="linux-x86_64", pythons=("3.12.3",))
            join(desk, "jetson", platform="linux-aarch64", pythons=("3.10.12",))
            yield shell, desk
    finally:
        serve.send_signal(signal.SIGTERM)
        finish(serve)


def join(desk: FleetDesk, name: str, **held: object) -> None:
    found = Capability(hostname=name, os="linux", arch="x86_64", cpu_cores=8, ram_total_bytes=64 * GIB)
    desk.client.hello(
        Hello(
            worker=name,
            incarnation=f"incarnation-{name}",
            capability=found.to_dict(),
            capability_digest=str(found.digest),
            holdings=MachineInventory.model_validate(held),
        )
    )


def granted(desk: FleetDesk, name: str) -> list[str]:
    claim = Claim(request_id=f"request-{name}", worker=name, incarnation=f"incarnation-{name}", most=4)
    return [grant.spec.name for grant in desk.client.claim(claim).grants]


def test_submitting_tells_who_has_the_environment_who_builds_it_and_who_can_not(
    served: tuple[Shell, FleetDesk],
) -> None:
    shell, desk = served
    words = ("submit", "--env", "uv.lock", "--name", "study", "--", "python", "train.py")
    dry = shell.stoker(*words[:1], "--dry-run", *words[1:])
    assert dry.code == 0, dry.err
    assert f"env uv.lock: desk ready, jetson: {NO_WHEEL}, lab1 builds\n" in dry.out
    done = shell.stoker(*words[:1], "-y", *words[1:])
    assert done.code == 0, done.err
    told = shell.stoker("explain", "study")
    assert NO_WHEEL in told.out
    assert granted(desk, "jetson") == []
    assert granted(desk, "desk") == ["study"]


def test_what_is_wrong_with_an_environment_is_told_at_its_key(served: tuple[Shell, FleetDesk]) -> None:
    shell, _ = served
    manifest = shell.folder / "m.toml"
    manifest.write_text(
        '[[jobs]]\nname = "a"\ncommand = "python train.py"\nenv = { linux-aarch64 = "gone.txt", mars = "uv.lock" }\n'
    )
    done = shell.stoker("submit", "m.toml", "--dry-run")
    assert done.code == 24
    assert "m.toml:4:37: jobs[0].env.mars: 'mars' is no platform" in done.err
    assert "m.toml:4:25: jobs[0].env.linux-aarch64: file not found: gone.txt" in done.err
    done = shell.stoker("submit", "--env", "gone.txt", "--dry-run", "--", "python", "train.py")
    assert done.code != 0
    assert "file not found: gone.txt" in done.err


@pytest.mark.slow
def test_a_program_runs_in_its_environment_beside_its_own_packages_and_tells_what_it_had(
    tmp_path: Path, index: Path
) -> None:
    shell = Shell(tmp_path, index=index)
    locked_project(str(shell.folder), [wheel(str(shell.folder / "wheels"), "alpha")])
    (shell.folder / "src/mine").mkdir(parents=True)
    (shell.folder / "src/mine/__init__.py").write_text("X = 7\n")
    (shell.folder / "train.py").write_text("import alpha, mine, sys\nprint('ran', alpha.VERSION, mine.X, sys.prefix)\n")
    shell.env |= {"UV_OFFLINE": "1"}
    serve = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serve.stdout is not None
    assert "url" in loads(serve.stdout.readline())
    work = shell.start("work", "--name", "desk", "--json")
    try:
        assert work.stdout is not None
        assert loads(work.stdout.readline())["kind"] == "joined"
        words = ("submit", "-y", "--env", "uv.lock", "--name", "study", "--", "python", "train.py")
        assert shell.stoker(*words).code == 0
        assert shell.stoker("jobs", "wait", "study", "--timeout", "90s").code == 0
        assert f"ran 1.0 7 {shell.home}/envs/" in shell.stoker("logs", "study").out
        shown = loads(shell.stoker("jobs", "show", "study", "--json").out)
        python = shown["attempts"][-1]["facts"]["python"]
        assert python["packages"] == {"alpha": "1.0"}
        assert python["environment"] == gather(str(shell.folder), "uv.lock").digest
        assert "alpha 1.0" in shell.stoker("jobs", "show", "study").out
    finally:
        for process in (work, serve):
            process.send_signal(signal.SIGTERM)
            finish(process)
