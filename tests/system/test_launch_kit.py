"""A worker on an SSH host without Stoker: it is brought along, the worker joins from it, and it stays there."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stoker.core.clock import SystemClock
from tests.servers.sshd import sshd, why_no_sshd

CLOCK = SystemClock()
POOL = """\
pools:
  - {{ name: far, backend: ssh, via: far, python: kit, folder: {folder}, wall: 10m, idle: 2s }}
"""


@pytest.fixture
def far_host(tmp_path: Path) -> Iterator[Path]:
    """An SSH host that is known as `far`; returns a folder with an `ssh` that reaches it."""
    if why := why_no_sshd():
        pytest.skip(why)
    with sshd(tmp_path / "sshd") as words:
        bin_folder = tmp_path / "bin"
        bin_folder.mkdir()
        # The last word is the host; OpenSSH reads no configuration from another HOME.
        options = shlex.join([*words[1:-1], "-o", f"HostName={words[-1]}"])
        (bin_folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh {options} "$@"\n')
        (bin_folder / "ssh").chmod(0o755)
        yield bin_folder


class Desk:
    """A machine with a coordinator."""

    def __init__(self, folder: Path, bin_folder: Path, runtime: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STOKER")}
        self.environment = {
            **kept,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "STOKER_HOME": str(folder / "home"),
            "XDG_RUNTIME_DIR": runtime,
        }

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "stoker", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def desk(tmp_path: Path, far_host: Path) -> Iterator[Desk]:
    (tmp_path / "cluster.yaml").write_text(POOL.format(folder=tmp_path / "far"))
    with TemporaryDirectory(prefix="stoker-") as runtime, open(tmp_path / "serve.log", "wb") as log:
        made = Desk(tmp_path, far_host, runtime)
        words = [sys.executable, "-m", "stoker", "serve", "--listen", "0.0.0.0:0", "--cluster", "cluster.yaml"]
        server = subprocess.Popen(words, cwd=tmp_path, env=made.environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline_s = CLOCK.monotonic_s() + 60
            while "operator's token" not in (tmp_path / "serve.log").read_text():
                assert CLOCK.monotonic_s() < deadline_s, (tmp_path / "serve.log").read_text()
                CLOCK.sleep(0.2)
            yield made
        finally:
            server.terminate()
            server.wait(30)


@pytest.mark.slow
def test_a_worker_joins_from_a_kit_on_a_host_without_stoker(desk: Desk) -> None:
    kits = desk.folder / "far/kits"
    assert "to install (sent compressed)" in desk.run("pools", "check", "far")
    dry = desk.run("launch", "far", "--count", "1", "--dry-run")
    assert f"exec {kits}/" in dry
    assert not kits.exists()
    desk.run("submit", "--yes", "--name", "hello", "--", "python3", "-c", "print('loss=1')")
    assert "sends Stoker" in desk.run("launch", "far")
    desk.run("jobs", "wait", "hello")
    (kit,) = [one for one in kits.iterdir() if len(one.name) == 64]
    assert f"exec {kit}/bin/python -m stoker work" in dry
    assert "is installed" in desk.run("pools", "check", "far")
    desk.run("pools", "stop", "far")
    assert kit.exists(), "it is a cache"
