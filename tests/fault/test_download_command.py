"""The faults as a user meets them: the real command, its exit code, one line of error, and the next run that finishes.

Every kind of end is tried here once; what leads to each is tried case by case in the other modules of its name:

    ranges      F01 to F16            transport   F37 to F45        side_files  F66, F67, F70, F72
    versions    F17 to F25            statuses    F46 to F53        locks       F68, F69
    bodies      F27 to F37            redirects   F54 to F58        signals     F65
    kills       F64                   names       F59 to F61        disks       F62, F63, F71

F26 (a branch that moves) is a test of the hub, in tests/unit/transfer/test_hub_repository.py; F73 to F79 are tests of
the store.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fault.download_lab import HALF, ONE, SIZE, TWO
from tests.servers import habits as bad
from tests.servers.faulty import FaultyServer, Habit, Line, well
from tests.system.fetching import fetching_shell, sha256_of
from tests.system.shell import Shell, finish
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import wait_until

DIGEST = sha256_of(ONE.data)


@pytest.fixture
def shell(tmp_path):
    return fetching_shell(tmp_path)


@pytest.fixture
def server():
    with FaultyServer(ONE) as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A habit, and the exit code that it leads to."""

    id: str
    habit: Habit
    code: int
    words: tuple[str, ...] = ()


ENDINGS = [
    Ending(id="F02-starts-early", habit=bad.at_first(1, bad.cut(HALF), bad.to_resumes(bad.shifted(-1000))), code=0),
    Ending(id="F37-reset", habit=bad.at_first(1, bad.cut(HALF, Line.reset)), code=0),
    Ending(id="F32-flipped-bit", habit=bad.flipped(HALF), code=13, words=("--sha256", DIGEST)),
    Ending(id="F34-login-page", habit=bad.page(b"<html>log in</html>"), code=13, words=("--sha256", DIGEST)),
    Ending(id="F31-gzip", habit=bad.encoded("gzip"), code=14, words=("--retries", "1")),
    Ending(id="F46-429", habit=bad.status(429, Retry_After="1"), code=12, words=("--retries", "2")),
    Ending(id="F51-401", habit=bad.status(401), code=11),
    Ending(id="F53-404", habit=bad.status(404), code=14),
    Ending(id="F57-circle", habit=bad.redirected("/file"), code=14),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.id)
def test_every_end_has_its_exit_code_and_the_next_run_finishes(shell, server, ending):
    path = shell.folder / "file"
    server.become(ending.habit)
    done = shell.stoker("fetch", server.url, *ending.words)
    assert done.code == ending.code, done.err
    assert path.exists() is (ending.code == 0)
    if ending.code:
        assert [line[:8] for line in done.err.splitlines()][:1] == ["stoker: "]
        assert all(line.startswith("hint: ") for line in done.err.splitlines()[1:])
    server.become(well)
    assert shell.stoker("fetch", server.url, *ending.words).code == 0
    assert path.read_bytes() == ONE.data
    assert [name.name for name in shell.folder.iterdir()] == ["file"]


def test_f18_a_new_version_during_a_resume_is_fetched_whole(shell, server):
    server.become(bad.breaking_off(HALF))
    assert shell.stoker("fetch", server.url, "--retries", "1").code == 14
    server.become(well, TWO)
    assert shell.stoker("fetch", server.url).code == 0
    assert (shell.folder / "file").read_bytes() == TWO.data


@pytest.mark.parametrize("text", ["z" * 64, DIGEST[:-1], "../" + DIGEST[3:]])
def test_f61_a_digest_that_is_none_is_refused_before_anything_is_asked(shell, server, text):
    done = shell.stoker("fetch", server.url, "--sha256", text)
    assert done.code == 2
    assert server.asked == []
    assert list(shell.folder.iterdir()) == []


def test_f62_a_full_disk_has_its_exit_code(shell, server, tmp_path):
    with small_disk(tmp_path / "disk", "size=40m") as disk:
        done = shell.stoker("fetch", server.url, "--out", disk / "out")
        assert done.code == 10
        subprocess.run(["mount", "-o", "remount,size=80m", str(disk)], check=True)
        assert shell.stoker("fetch", server.url, "--out", disk / "out").code == 0
        assert (disk / "out" / "file").read_bytes() == ONE.data


def test_f63_a_folder_of_somebody_else_has_its_exit_code(server, open_path):
    if os.getuid() != 0:
        pytest.skip("becoming another user is not permitted here")
    shell = fetching_shell(open_path)
    (open_path / "out").mkdir(mode=0o755)
    for folder in (shell.home, open_path / "hf"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            *_command("fetch", server.url, "--out", open_path / "out"),
        ],
        cwd=open_path,
        env=shell.env,
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named" in done.stderr:
        pytest.skip("another user can't read this checkout")
    assert done.returncode == 16, done.stderr
    assert list((open_path / "out").iterdir()) == []


def _command(*words: object) -> list[str]:
    return [sys.executable, "-P", "-m", "stoker", *map(str, words)]


@pytest.mark.parametrize("place", [1, SIZE // 3, SIZE - 1])
def test_f64_a_killed_command_goes_on_where_it_was(shell: Shell, server: FaultyServer, place: int):
    reached = threading.Event()
    server.become(bad.stalling(place, reached))
    process = shell.start("fetch", server.url)
    assert reached.wait(20)
    partial = Path(shell.folder / "file.part")
    wait_until(lambda: partial.exists() and partial.stat().st_size == place)
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    server.become(well)
    assert shell.stoker("fetch", server.url).code == 0
    assert [asked.first_byte for asked in server.gets()] == [place]
    assert (shell.folder / "file").read_bytes() == ONE.data


def test_f65_a_second_interrupt_ends_a_command_that_is_slow_to_stop(shell: Shell, server: FaultyServer):
    reached = threading.Event()
    server.become(bad.stalling(HALF, reached))
    process = shell.start("fetch", server.url)
    assert reached.wait(20)
    process.send_signal(signal.SIGINT)
    # A second one that comes before the first is heard is the same one.
    assert process.stderr is not None
    assert any("Ctrl-C again" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert not (shell.folder / "file").exists()
    server.become(well)
    assert shell.stoker("fetch", server.url).code == 0
    assert (shell.folder / "file").read_bytes() == ONE.data
