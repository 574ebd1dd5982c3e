"""Programs that do nothing, one job after the other: from the order of a stage to its recorded result.

`--way bare` is `subprocess.run` with its output in pipes. All others are jobs of the recipe `command` through the doors
that `stoker run` uses: job folder, journal, lease, scratch folder, box, log, durable record. `cgroup` is contained by
control groups, `watchdog` and `none` by less. `systemd` is contained by the user's systemd, without a cap where the
kernel would not keep one, beside a systemd started for it, which is not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import beside_systemd
import speak
import stoker_job

from stoker.cookbooks.command.cookbook import CommandArgs, command
from stoker.core.errors import ContainmentUnavailable
from stoker.host.containment.box import ContainedGroup, Containment, ContainmentLimits, Mechanism
from stoker.host.containment.mechanisms import SystemdContainment, choose_mechanism

PROGRAM = "/bin/true"
WAYS = ("bare", "cgroup", "watchdog", "none", "systemd")


def main() -> None:
    asked = speak.read_arguments(ways=WAYS)
    if asked.way == "systemd" and not beside_systemd.is_there():
        sys.exit(beside_systemd.start_again(asked.home))
    once = _bare if asked.way == "bare" else _stage(asked.home, _containment(asked.way))
    once()
    started = time.perf_counter()
    for _ in range(asked.count):
        once()
    speak.tell(asked, seconds=time.perf_counter() - started, total=None, executed=asked.count)


def _bare() -> None:
    subprocess.run([PROGRAM], check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _stage(home: Path, containment: Containment) -> Callable[[], None]:
    assembly = stoker_job.assemble(home / "stoker")
    assembly.__dict__["containment"] = containment
    args = CommandArgs(argv=(PROGRAM,), folder=str(home))

    def once() -> None:
        if stoker_job.run(assembly, command.compile(args)).ran != 1:
            raise SystemExit("the program did not run")

    return once


def _containment(way: str) -> Containment:
    if way == "systemd":
        return _WithoutCap(SystemdContainment(dict(os.environ)))
    if way != "cgroup":
        return choose_mechanism("bare" if way == "none" else way, environment={})
    try:
        return choose_mechanism("cgroup2", environment={})
    except ContainmentUnavailable:
        return choose_mechanism("cgroup1", environment={})


class _WithoutCap:
    """A mechanism whose boxes have no cap: what a systemd can do whose kernel keeps memory control elsewhere."""

    mechanism = Mechanism.SYSTEMD
    warning = ""

    def __init__(self, inner: Containment) -> None:
        self._inner = inner

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> ContainedGroup:
        return self._inner.open(name, ContainmentLimits(memory_bytes=None), mark)


main()
