"""Boxes for the tests of containment: real ones where this machine has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from stoker.core.errors import ContainmentUnavailable
from stoker.host.containment.box import MARK, ContainedGroup, ContainmentLimits
from stoker.host.containment.cgroups import Cgroup1
from stoker.host.identity import ProcessExit
from stoker.host.processes import Child, start

MIB = 2**20
CAP = ContainmentLimits(memory_bytes=64 * MIB)
PYTHON = [sys.executable, "-S", "-E", "-c"]
PATIENCE_S = 20.0

# Says the numbers of those it leaves behind, each in a session of its own, and ends.
LEAVE_STRAYS = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, b"%d" % os.getpid())
            os.close(1)
            while True: signal.pause()
        os._exit(0)
    os.wait()
    print(int(os.read(read, 20)), flush=True)
"""
# A chain of processes of which each forks the next and ends: nobody is there for long. It stops by itself at last.
RUN_AWAY = """
import os
print("off", flush=True)
os.close(1)
for _ in range(100_000):
    if os.fork():
        os._exit(0)
    os.setsid()
"""
EAT = "x = bytearray(300 * 2**20)"


def cgroup1() -> Cgroup1:
    try:
        return Cgroup1.probe()
    except ContainmentUnavailable as error:
        pytest.skip(str(error))


def start_in(box: ContainedGroup, argv: Sequence[str], *, mark: str = "", **options) -> Child:
    """Start a program in a box, with its output in a pipe."""
    env = {"PATH": os.environ["PATH"], **({MARK: mark} if mark else {})}
    child = start(argv, cwd="/", env=env, stdout=subprocess.PIPE, entry=box.entry, **options)
    box.took_in(child.identity)
    return child


def run_in(box: ContainedGroup, argv: Sequence[str], *, mark: str = "", **options) -> tuple[str, ProcessExit]:
    """Run a program in a box to its end; give what it said."""
    child = start_in(box, argv, mark=mark, **options)
    assert child.stdout is not None
    with child.stdout:
        said = child.stdout.read().decode()
    return said, child.wait(PATIENCE_S)
