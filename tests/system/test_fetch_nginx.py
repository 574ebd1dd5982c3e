"""`stoker fetch` from a real web server, with real resumes: what its own authors wrote of ranges, not what we think."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from tests.servers.nginx import PROGRAM, nginx
from tests.system.shell import Shell

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed")

MIB = 2**20


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    tmp_path.chmod(0o755)
    (folder / "model.bin").write_bytes(os.urandom(12 * MIB))
    return folder


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kill_half_way(shell: Shell, *words: str, part: Path) -> None:
    fetching = shell.start(*words)
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + 20
    while not part.exists() or part.stat().st_size < 3 * MIB:
        assert fetching.poll() is None, fetching.communicate()
        assert clock.monotonic_s() < deadline_s, "nothing arrived"
        clock.sleep(0.01)
    fetching.send_signal(signal.SIGKILL)
    fetching.communicate()


def test_a_fetch_that_was_killed_goes_on_where_it_stood(tmp_path, served):
    shell = Shell(tmp_path)
    target = shell.folder / "model.bin"
    with nginx(served, beside=tmp_path / "server", rate="8m") as address:
        kill_half_way(shell, "fetch", f"{address}/model.bin", part=shell.folder / "model.bin.part")
        done = shell.stoker("fetch", f"{address}/model.bin", "--json")
    assert done.code == 0, done.err
    assert sha256_of(target) == sha256_of(served / "model.bin")
    last = done.objects()[-1]
    assert last["bytes_resumed"] >= 3 * MIB
    assert last["bytes_from_network"] + last["bytes_resumed"] == 12 * MIB


def test_a_new_version_of_the_same_size_is_never_mixed_with_the_old_one(tmp_path, served):
    shell = Shell(tmp_path)
    target = shell.folder / "model.bin"
    with nginx(served, beside=tmp_path / "server", rate="8m") as address:
        kill_half_way(shell, "fetch", f"{address}/model.bin", part=shell.folder / "model.bin.part")
        (served / "model.bin").write_bytes(os.urandom(12 * MIB))
        os.utime(served / "model.bin", (1_800_000_000, 1_800_000_000))
        done = shell.stoker("fetch", f"{address}/model.bin")
    assert done.code == 0, done.err
    assert sha256_of(target) == sha256_of(served / "model.bin")


def test_the_wrong_digest_leaves_nothing(tmp_path, served):
    shell = Shell(tmp_path)
    with nginx(served, beside=tmp_path / "server") as address:
        done = shell.stoker("fetch", f"{address}/model.bin", "--sha256", "0" * 64)
    assert done.code == 13
    assert not (shell.folder / "model.bin").exists()
