"""Workers as processes of a host: what is rendered, and who is signalled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import LaunchRefused
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.host.command_runner import SubprocessRunner
from stoker.host.identity import read_row
from stoker.launch.commands import HostCommands
from stoker.launch.hosts import HostLauncher
from tests.unit.launch.golden_scripts import same_as_golden

POOL = Pool(name="desk", backend=PoolBackend.LOCAL, wall_s=60, drain_s=1)
ONE = Allocation(id="7f3a2c", pool="desk", backend_id="7f3a2c")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[HostLauncher]:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n[ -e {tmp_path}/stubborn ] && trap '' TERM\nwhile :; do sleep 1; done\n")
    python.chmod(0o755)
    commands = HostCommands(SubprocessRunner(os.environ), control_folder=str(tmp_path / "c"))
    made = HostLauncher(commands, folder=str(tmp_path / "workers"), python=str(python))
    yield made
    made.cancel(POOL, [ONE.id])
    wait_for(made, AllocationState.ENDED)


def start(launcher: HostLauncher) -> None:
    launcher.submit(launcher.render(POOL, [ONE], fleet="f"), {ONE.id: "ticket\n"})
    wait_for(launcher, AllocationState.STARTED)


def wait_for(launcher: HostLauncher, state: AllocationState) -> AllocationCause | None:
    deadline_s = time.monotonic() + 30
    while True:
        (seen,) = launcher.look(POOL, fleet="f", known=[ONE])
        if seen.state is state:
            return seen.cause
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.05)


def identity_file(tmp_path: Path) -> Path:
    return tmp_path / "workers/f/desk-7f3a2c/identity"


def test_the_script_is_the_golden_one() -> None:
    commands = HostCommands(SubprocessRunner({}), control_folder="/none")
    pool = Pool(
        name="desk",
        backend=PoolBackend.SSH,
        via="me@desk.local",
        each=PoolShape(cpu_cores=4, ram_mb=8192, gpus=(PoolGpu(type="rtx", vram_mb=1),)),
        setup=(". ~/.profile", "echo 'SETUP COMMAND'", "END"),
        python="/opt/venv/bin/python",
    )
    several = [ONE, Allocation(id="000001", pool="desk")]
    rendered = HostLauncher(commands, folder="/none", python="").render(pool, several, fleet="4c1d")
    assert (rendered.where, rendered.argv, dict(rendered.files)) == ("me@desk.local", ("sh", "-s"), {})
    same_as_golden("hosts.sh", rendered.stdin)


def test_the_same_request_again_starts_nothing(launcher: HostLauncher, tmp_path: Path) -> None:
    start(launcher)
    first = identity_file(tmp_path).read_text()
    launcher.submit(launcher.render(POOL, [ONE], fleet="f"), {ONE.id: "ticket\n"})
    assert identity_file(tmp_path).read_text() == first


def test_files_of_a_worker_are_its_owners_alone(launcher: HostLauncher, tmp_path: Path) -> None:
    start(launcher)
    folder = identity_file(tmp_path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "ticket").stat().st_mode & 0o777 == 0o600


def test_a_worker_that_ignores_term_is_killed_after_its_margin(launcher: HostLauncher, tmp_path: Path) -> None:
    (tmp_path / "stubborn").touch()
    start(launcher)
    time.sleep(0.3)
    launcher.cancel(POOL, [ONE.id])
    assert wait_for(launcher, AllocationState.ENDED) is AllocationCause.FAILED


def test_what_is_left_of_a_killed_leader_still_counts_and_can_be_cancelled(
    launcher: HostLauncher, tmp_path: Path
) -> None:
    start(launcher)
    leader = int(identity_file(tmp_path).read_text().split()[0])
    os.kill(leader, signal.SIGKILL)
    while read_row(leader) is not None:
        time.sleep(0.05)
    wait_for(launcher, AllocationState.STARTED)
    launcher.cancel(POOL, [ONE.id])
    assert wait_for(launcher, AllocationState.ENDED) is AllocationCause.FAILED


@pytest.mark.parametrize(
    ("field", "state", "cause"),
    [
        (1, AllocationState.ENDED, AllocationCause.FAILED),
        (2, AllocationState.ENDED, AllocationCause.PREEMPTED),
        (4, AllocationState.STARTED, None),
    ],
)
def test_another_process_boot_or_host_is_never_signalled(
    launcher: HostLauncher, tmp_path: Path, field: int, state: AllocationState, cause: AllocationCause | None
) -> None:
    start(launcher)
    path = identity_file(tmp_path)
    text = path.read_text()
    words = text.split()
    words[field] = "1"
    path.write_text(" ".join(words) + "\n")
    (seen,) = launcher.look(POOL, fleet="f")
    assert (seen.state, seen.cause) == (state, cause)
    launcher.cancel(POOL, [ONE.id])
    path.write_text(text)
    (seen,) = launcher.look(POOL, fleet="f")
    assert seen.state is AllocationState.STARTED


def test_a_folder_that_can_not_be_made_refuses_the_launch(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    commands = HostCommands(SubprocessRunner(os.environ), control_folder=str(tmp_path / "c"))
    launcher = HostLauncher(commands, folder=str(tmp_path / "file"), python="/none")
    with pytest.raises(LaunchRefused, match=r"File exists|Not a directory"):
        launcher.submit(launcher.render(POOL, [ONE], fleet="f"), {ONE.id: "ticket\n"})
