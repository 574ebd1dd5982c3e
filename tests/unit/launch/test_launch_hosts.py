"""Workers as processes of a host: what is rendered, and who is signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import LaunchRefused, NoBackend
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.devices.checkup import CheckStatus
from stoker.host.command_runner import ProbeOutput, Reply, SubprocessRunner
from stoker.host.identity import read_row
from stoker.launch.commands import HostCommands
from stoker.launch.hosts import OWN_FOLDER, HostLauncher
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


def test_a_folder_that_others_may_replace_refuses_the_launch_and_the_check(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    commands = HostCommands(SubprocessRunner(os.environ), control_folder=str(tmp_path / "c"))
    launcher = HostLauncher(commands, folder=str(above / "workers"), python="/none")
    with pytest.raises(LaunchRefused, match=rf"others may write in {above} \(mode 777\)"):
        launcher.submit(launcher.render(POOL, [ONE], fleet="f"), {ONE.id: "ticket\n"})
    assert list((above / "workers/f").iterdir()) == []
    *_, folder = launcher.check(POOL)
    assert (folder.name, folder.verdict) == ("folder", CheckStatus.BAD)
    assert folder.message == f"others may write in {above} (mode 777)"
    above.chmod(0o1777)
    *_, folder = launcher.check(POOL)
    assert (folder.name, folder.verdict is not CheckStatus.BAD) == ("folder", True)
    assert [one.name for one in (above / "workers").iterdir()] == ["f"], "the check leaves nothing"


def own_folder(folder: Path, path: str = "/usr/bin:/bin") -> str:
    """Run the check in a folder; return the reason of a refusal."""
    script = f'{OWN_FOLDER}cd "{folder}" && own_folder'
    done = subprocess.run(["sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr.strip()


def made_folder(folder: Path) -> Path:
    folder.parent.mkdir(mode=0o700)
    folder.mkdir(mode=0o700)
    return folder


def test_a_ticket_folder_and_all_above_it_are_closed_to_others(tmp_path: Path) -> None:
    inner = made_folder(tmp_path / "lab/me")
    links = tmp_path / "links"
    links.mkdir(mode=0o700)
    (links / "me").symlink_to(inner)
    assert own_folder(inner) == own_folder(links / "me") == ""
    links.chmod(0o757)
    assert own_folder(links / "me") == f"others may write in {links} (mode 757)"
    inner.parent.chmod(0o757)
    links.chmod(0o755)
    assert own_folder(links / "me") == f"others may write in {inner.parent} (mode 757)"
    inner.parent.chmod(0o755)
    inner.chmod(0o1777)
    assert own_folder(inner) == f"others may write in {inner} (mode 1777)", "they could make tickets there"


def test_members_of_a_group_may_not_replace_tickets_unless_the_group_is_the_users_own(tmp_path: Path) -> None:
    inner = made_folder(tmp_path / "lab/me")
    inner.parent.chmod(0o775)
    os.chown(inner.parent, -1, os.getgid())
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "id").write_text('#!/bin/sh\ncase $1 in -un | -gn) echo me ;; *) exec /usr/bin/id "$@" ;; esac\n')
    (tools / "getent").write_text(f'#!/bin/sh\ncat "{tools}/group"\n')
    (tools / "id").chmod(0o755)
    (tools / "getent").chmod(0o755)
    refusal = f"others may write in {inner.parent} (mode 775)"
    for members, reason in (("", ""), ("me", ""), ("mallory", refusal), ("me,mallory", refusal), ("not-me", refusal)):
        (tools / "group").write_text(f"me:x:{os.getgid()}:{members}\n")
        assert own_folder(inner, f"{tools}:/usr/bin:/bin") == reason, members


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_ticket_folder_below_one_of_another_user_is_refused(tmp_path: Path) -> None:
    inner = made_folder(tmp_path / "lab/me")
    os.chown(inner.parent, 65534, 65534)
    assert own_folder(inner) == f"{inner.parent} belongs to another user (65534)"
    os.chown(inner.parent, 0, 0)
    os.chown(inner, 65534, 65534)
    assert own_folder(inner) == f"{inner} belongs to another user"


@pytest.mark.parametrize("said", ["exited 1 x y", "running ²", "exited 1 2 3 four", "running 99999999999999999999"])
def test_a_line_that_is_no_state_is_left_out(tmp_path: Path, said: str) -> None:
    class Lying(HostCommands):
        def run(self, where: str, argv: Any, **options: Any) -> Reply:
            return ProbeOutput(out=f"stoker:look\n{POOL.name}-aaaaaa {said}\n")

    lying = Lying(SubprocessRunner({}), control_folder=str(tmp_path))
    known = Allocation(id="aaaaaa", pool=POOL.name, backend_id="aaaaaa")
    made = HostLauncher(lying, folder=str(tmp_path), python="/p")
    assert [one.is_lost for one in made.look(POOL, fleet="4c1d", known=[known])] == [True]


def test_what_is_no_answer_of_the_script_ends_nothing(tmp_path: Path) -> None:
    class Greeting(HostCommands):
        def run(self, where: str, argv: Any, **options: Any) -> Reply:
            return ProbeOutput(out="This account is closed.\n")

    made = HostLauncher(Greeting(SubprocessRunner({}), control_folder=str(tmp_path)), folder="/f", python="/p")
    with pytest.raises(NoBackend, match="This account is closed"):
        made.look(POOL, fleet="4c1d")
