"""Programs that do nothing, one after the other, each in a box of its own or in none.

`--way bare` is `subprocess.run`. `cgroup`, `address_space` and `watchdog` are boxes of Stoker with a cap of 64 MiB of
which the peak is read back. `systemd` is its box by the user's systemd, without a cap where the kernel would not keep
it; `systemd-run` is systemd's own tool (`--user --scope`). Those two run beside a systemd started for them, which is
not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import beside_systemd
import speak

from stoker.core.errors import ContainmentUnavailable
from stoker.host.containment.box import Containment, ContainmentLimits
from stoker.host.containment.mechanisms import SystemdContainment, choose_mechanism
from stoker.host.processes import start

PROGRAM = ["/bin/true"]
CAP = ContainmentLimits(memory_bytes=64 * 2**20)
WAYS = ("bare", "cgroup", "address_space", "watchdog", "systemd", "systemd-run")


def main() -> None:
    asked = speak.read_arguments(ways=WAYS)
    if asked.way.startswith("systemd") and not beside_systemd.is_there():
        sys.exit(beside_systemd.start_again(asked.home))
    once = _once(asked.way)
    once()
    started = time.perf_counter()
    for _ in range(asked.count):
        once()
    speak.tell(asked, seconds=time.perf_counter() - started, total=None, executed=asked.count)


def _once(way: str) -> Callable[[], None]:
    environment = dict(os.environ)
    if way == "bare":
        return lambda: _bare(PROGRAM)
    if way == "systemd-run":
        return lambda: _bare(["systemd-run", "--user", "--scope", "--quiet", "--collect", *PROGRAM])
    if way == "systemd":
        return lambda: _boxed(SystemdContainment(environment), ContainmentLimits(memory_bytes=None))
    containment = _control_groups() if way == "cgroup" else choose_mechanism(way, environment=environment)
    return lambda: _boxed(containment, CAP)


def _control_groups() -> Containment:
    try:
        return choose_mechanism("cgroup2", environment={})
    except ContainmentUnavailable:
        return choose_mechanism("cgroup1", environment={})


def _bare(command: list[str]) -> None:
    subprocess.run(command, check=True)


def _boxed(containment: Containment, limits: ContainmentLimits) -> None:
    box = containment.open("bench-program", limits, "mark")
    child = start(PROGRAM, cwd="/", env={}, entry=box.entry)
    box.took_in(child.identity)
    ended = child.wait()
    reading = box.read()
    box.close()
    if not ended.is_success or reading.was_out_of_memory:
        raise SystemExit(f"the program did not end well: {ended}")


main()
