"""A real Ray head with its dashboard, in a network and process numbers of its own. It takes 1.5 GiB and half a minute.

It needs `ray[default]`, which is no requirement of Stoker: STOKER_TEST_RAY names the program `ray`.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

URL = "http://127.0.0.1:8299"
PORT = 6399
_SOURCE = Path(__file__).parents[2] / "src"
_CLONE_NEWNET = 0x40000000
_SECONDS = 120.0


def why_no_ray() -> str:
    """Return why no Ray can be started here, or nothing."""
    if program() is None:
        return "no ray: pip install 'ray[default]' elsewhere, STOKER_TEST_RAY=/path/to/bin/ray"
    return "" if os.geteuid() == 0 and shutil.which("unshare") else "namespaces of their own need root"


def program() -> str | None:
    return os.environ.get("STOKER_TEST_RAY") or shutil.which("ray")


@contextmanager
def ray_head(folder: Path) -> Iterator[str]:
    """Run a head with two cores; yield its token. This thread's connections go to it meanwhile."""
    token = secrets.token_hex(32)
    options = ("--num-cpus=2", "--include-dashboard=true", "--dashboard-host=127.0.0.1", "--dashboard-port=8299")
    with _head(folder, token, *options) as process, _network(_child(process.pid)):
        yield token


@contextmanager
def ray_without_dashboard(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a head with many cores; yield its token, and a Python that has Ray and Stoker, and runs beside the head."""
    token = secrets.token_hex(32)
    with _head(folder, token, "--num-cpus=64", "--include-dashboard=false") as process:
        python = folder / "python"
        enter = f"nsenter --target {_child(process.pid)} --net --pid --mount"
        with_ray = Path(f"{program()}").parent / "python"
        python.write_text(f'#!/bin/sh\nexec {enter} env PYTHONPATH={_SOURCE} {with_ray} "$@"\n')
        python.chmod(0o755)
        yield token, str(python)


@contextmanager
def _head(folder: Path, token: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [
        *(f"{program()}", "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={PORT}", *options),
        *("--min-worker-port=20000", "--max-worker-port=20200", "--object-store-memory=100000000"),
        *(f"--temp-dir={folder}/r", "--disable-usage-stats"),
    ]
    variables = {"HOME": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    wrapped = ["unshare", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    script = 'ip link set lo up && exec "$@"'
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(
            [*wrapped, "sh", "-c", script, "sh", *words], env={**os.environ, **variables}, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        # All of it ends with its first process.
        process.kill()
        process.wait()


def _child(pid: int) -> int:
    deadline_s = time.monotonic() + _SECONDS
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return int(found[0])


@contextmanager
def _network(pid: int) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{pid}/ns/net") as theirs:
        assert libc.setns(theirs.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(ours.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
