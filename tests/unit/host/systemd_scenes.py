"""What the tests of systemd's boxes do inside: run beside a user's systemd of its own, one report for each scene.

Started by `real_systemd`; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.core.errors import ContainmentUnavailable
from stoker.host.containment.box import ContainmentLimits
from stoker.host.containment.mechanisms import SystemdContainment, UserBus, choose_mechanism
from stoker.host.zygote import Zygote
from tests.unit.host.real_boxes import LEAVE_STRAYS, MIB, PYTHON, RUN_AWAY, run_in, start_in
from tests.unit.host.real_processes import fork, is_running, kill_and_reap, wait_until

UNLIMITED = ContainmentLimits(memory_bytes=None)


def open_box(name: str = "job-stage", limits: ContainmentLimits = UNLIMITED):
    return SystemdContainment(os.environ).open(name, limits, "one")


def units() -> list[str]:
    shown = subprocess.run(
        ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "stoker-*"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split()[0] for line in shown.stdout.splitlines()]


def a_program_runs_in_a_unit() -> Any:
    box = open_box("Job 7-train")
    said, ended = run_in(box, ["cat", "/proc/self/cgroup"])
    before = units()
    reading = box.read()
    box.close()
    return {
        "name": box.name,
        "group": said.splitlines()[-1],
        "ended": str(ended),
        "before": before,
        "after": units(),
        "was_out_of_memory": reading.was_out_of_memory,
    }


def a_program_sees_its_own_environment_only() -> Any:
    box = open_box()
    said, _ = run_in(box, ["env"])
    box.close()
    return sorted(line.split("=")[0] for line in said.splitlines())


def strays_are_ended() -> Any:
    box = open_box()
    said, _ = run_in(box, [*PYTHON, LEAVE_STRAYS, "4"])
    strays = sorted(map(int, said.split()))
    members = list(box.members())
    box.close()
    return {"strays": strays, "members": members, "left": [pid for pid in strays if is_running(pid)], "units": units()}


def a_chain_is_ended() -> Any:
    box = open_box()
    run_in(box, [*PYTHON, RUN_AWAY])
    box.kill_all()
    left = list(box.members())
    box.close()
    return {"left": left, "units": units()}


def two_boxes_of_one_name() -> Any:
    one, two = open_box(), open_box()
    names = units()
    one.close()
    left = units()
    two.close()
    return {"names": names, "left": left, "two": two.name}


def a_limit_that_is_not_kept_is_refused() -> Any:
    try:
        box = open_box(limits=ContainmentLimits(memory_bytes=64 * MIB))
    except ContainmentUnavailable as error:
        return {"why": str(error), "units": units()}
    _, ended = run_in(box, [*PYTHON, "x = bytearray(300 * 2**20)"])
    reading = box.read()
    box.close()
    return {"why": "", "signal": ended.signal, "was_out_of_memory": reading.was_out_of_memory, "units": units()}


def choosing_it_by_name() -> Any:
    try:
        return {"mechanism": choose_mechanism("systemd", environment=os.environ).mechanism}
    except ContainmentUnavailable as error:
        return {"why": str(error), "units": units()}


def a_program_whose_unit_is_gone_never_runs() -> Any:
    box = open_box()
    came = Path(os.environ["XDG_RUNTIME_DIR"]) / "came"
    UserBus.connect(os.environ).stop_unit(box.name)
    wait_until(lambda: box.name not in units())
    why = ""
    try:
        start_in(box, ["touch", str(came)])
    except ContainmentUnavailable as error:
        why = str(error)
    box.close()
    return {"why": why, "came": came.exists()}


def forked_work_runs_in_a_unit() -> Any:
    box = open_box()
    with Zygote.start(sys.executable, [], env=dict(os.environ), cwd="/", sys_path=sys.path) as zygote:
        forked = zygote.fork("tests.unit.host.forked_entries:describe_box", {}, box=box.entry)
        box.took_in(forked.identity)
        (seen,) = forked.events()
        forked.wait(20)
    box.close()
    return {"group": seen["cgroup"].splitlines()[-1], "name": box.name}


def over_a_bus_with_others_on_it() -> Any:
    if shutil.which("dbus-daemon") is None:
        return {"why": "dbus-daemon is not installed"}
    direct = UserBus.connect(os.environ)
    found: list[UserBus] = []
    address = f"unix:path={os.environ['XDG_RUNTIME_DIR']}/bus"
    environment = {"XDG_RUNTIME_DIR": "/nonexistent", "DBUS_SESSION_BUS_ADDRESS": address}

    def is_reached() -> bool:
        # The first who asks has the bus started, and systemd comes to it a moment later.
        with suppress(ContainmentUnavailable):
            found.append(UserBus.connect(environment))
        return bool(found)

    wait_until(is_reached)
    same = found[0].control_group() == direct.control_group()
    found[0].close()
    direct.close()
    return {"why": "", "same": same}


def _owner_with_a_program(report_fd: int) -> Callable[[], None]:
    def own() -> None:
        box = open_box("job-orphan")
        child = start_in(box, ["sleep", "600"])
        os.write(report_fd, f"{child.identity.pid} {box._shell.pid}".encode())
        signal.pause()

    return own


def an_owner_that_is_killed_leaves_nothing() -> Any:
    read_fd, write_fd = os.pipe()
    owner = fork(_owner_with_a_program(write_fd))
    program, _ = map(int, os.read(read_fd, 100).split())
    before = is_running(program)
    kill_and_reap(owner)
    wait_until(lambda: not is_running(program) and not units())
    return {"before": before, "units": units()}


def the_next_box_ends_what_an_owner_and_its_keeper_left() -> Any:
    read_fd, write_fd = os.pipe()
    owner = fork(_owner_with_a_program(write_fd))
    program, keeper = map(int, os.read(read_fd, 100).split())
    os.kill(keeper, signal.SIGKILL)
    kill_and_reap(owner)
    before = is_running(program)
    box = open_box()
    left = is_running(program)
    box.close()
    wait_until(lambda: not units())
    return {"before": before, "left": left}


SCENES = [
    a_program_runs_in_a_unit,
    a_program_sees_its_own_environment_only,
    strays_are_ended,
    a_chain_is_ended,
    two_boxes_of_one_name,
    a_limit_that_is_not_kept_is_refused,
    choosing_it_by_name,
    a_program_whose_unit_is_gone_never_runs,
    forked_work_runs_in_a_unit,
    an_owner_that_is_killed_leaves_nothing,
    the_next_box_ends_what_an_owner_and_its_keeper_left,
    over_a_bus_with_others_on_it,
]


def main() -> None:
    reports: dict[str, Any] = {}
    for scene in SCENES:
        try:
            reports[scene.__name__] = scene()
        except Exception as error:  # noqa: BLE001 - the test that wants this report says it
            reports[scene.__name__] = {"error": repr(error)}
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
