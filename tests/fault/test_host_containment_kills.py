from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import ProcessLost
from stoker.host.containment.box import AddressSpace, ContainmentLimits, NoContainment, Watchdog, box_name, is_abandoned
from stoker.host.containment.cgroups import Cgroup2, CgroupFolders, ControlGroup, end_everybody
from stoker.host.resources import own_group
from tests.unit.host.real_boxes import CAP, LEAVE_STRAYS, MIB, PYTHON, cgroup1, run_in, start_in
from tests.unit.host.real_processes import fork, is_running, kill_and_reap, wait_until
from tests.unit.host.recorded_groups import RecordedGroups


def cgroup2() -> Cgroup2:
    place = own_group("", 2)
    if place is None or not os.access(os.path.join(place, "cgroup.procs"), os.W_OK):
        pytest.skip("no control groups of version 2 that are ours to write")
    return Cgroup2((place,))


class Owner:
    """A process that opened a box, started a program in it which left strays, and then waits to be killed."""

    def __init__(self, make: Callable[[], Any], *, limits: ContainmentLimits = CAP, strays: int = 2) -> None:
        read_fd, write_fd = os.pipe()

        def own() -> None:
            mark = f"orphan-{os.getpid()}"
            box = make().open("job-orphan", limits, mark)
            words = ["sh", "-c", '"$@"; exec sleep 600', "sh", *PYTHON, LEAVE_STRAYS, str(strays)]
            child = start_in(box, words, mark=mark)
            assert child.stdout is not None
            found = [int(child.stdout.readline()) for _ in range(strays)]
            folders = [os.path.dirname(path) for path in box.entry.procs_files]
            told = [str(child.identity.pid), str(box._shell.pid), " ".join(map(str, found)), " ".join(folders)]
            os.write(write_fd, "\n".join(told).encode())
            signal.pause()

        self.pid = fork(own)
        # An owner that failed is read as the end, not waited for.
        os.close(write_fd)
        program, keeper, found, folders = os.read(read_fd, 10_000).decode().split("\n")
        self.program, self.keeper = int(program), int(keeper)
        self.strays = [int(pid) for pid in found.split()]
        self.folders = [Path(folder) for folder in folders.split()]
        os.close(read_fd)
        assert all(map(is_running, [self.program, *self.strays]))

    def kill(self) -> None:
        kill_and_reap(self.pid)

    @property
    def left(self) -> list[object]:
        return [pid for pid in (self.program, *self.strays) if is_running(pid)] + [
            folder for folder in self.folders if folder.exists()
        ]


GROUPS = pytest.mark.parametrize(
    ("make", "limits"), [(cgroup1, CAP), (cgroup2, ContainmentLimits(memory_bytes=None))], ids=["cgroup1", "cgroup2"]
)


@GROUPS
def test_an_owner_killed_at_once_leaves_neither_processes_nor_groups(make, limits):
    make()
    owner = Owner(make, limits=limits)
    owner.kill()
    wait_until(lambda: not owner.left)


@pytest.mark.parametrize("make", [NoContainment, Watchdog, AddressSpace])
def test_where_no_group_keeps_them_whoever_carries_the_mark_dies_with_its_owner(make):
    owner = Owner(make, limits=ContainmentLimits(memory_bytes=2048 * MIB))
    owner.kill()
    wait_until(lambda: not owner.left)


@GROUPS
def test_the_next_box_ends_what_an_owner_and_its_keeper_left(make, limits):
    containment = make()
    owner = Owner(make, limits=limits)
    os.kill(owner.keeper, signal.SIGKILL)
    owner.kill()
    assert len(owner.left) == 3 + len(owner.folders)
    containment.open("job-next", limits, "two").close()
    assert owner.left == []


@GROUPS
def test_boxes_of_the_living_are_left_alone(make, limits):
    containment = make()
    owner = Owner(make, limits=limits)
    # What others of this machine have left may be swept, too.
    assert not {folder.name for folder in owner.folders} & set(containment.sweep_stale())
    assert len(owner.left) == 3 + len(owner.folders)
    owner.kill()
    wait_until(lambda: not owner.left)


def test_only_names_that_are_ours_and_whose_owner_is_gone_are_abandoned():
    mine = box_name("job", "mark")
    head, owner = mine.rsplit(".", 1)
    pid, ticks, space, count = owner.split("-")
    assert not is_abandoned(mine)
    assert is_abandoned(f"{head}.{pid}-{int(ticks) + 1}-{space}-{count}")
    with subprocess.Popen(["true"]) as ended:
        pass
    assert is_abandoned(f"{head}.{ended.pid}-{ticks}-{space}-{count}")
    for other in (
        f"{head}.{ended.pid}-{ticks}-1-{count}",
        f"{head}.{ended.pid}-{ticks}",
        "stoker-job",
        "system.slice",
        "",
    ):
        assert not is_abandoned(other)


def test_many_threads_open_and_close_boxes_at_once():
    containment = cgroup1()
    trouble: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for count in range(3):
                box = containment.open(f"job-{number}", CAP, f"{count}")
                said, ended = run_in(box, ["sh", "-c", "echo $$"])
                assert ended.is_success
                assert said
                box.close()
        except BaseException as error:  # noqa: BLE001 - told below
            trouble.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []


def test_somebody_who_cannot_be_killed_is_named(tmp_path):
    groups = RecordedGroups(tmp_path, "/own")
    group = ControlGroup(str(groups.own), folders=groups.folders)
    (groups.own / "cgroup.kill").unlink()
    # This process is not really in there, so nobody will kill it.
    (groups.own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    with pytest.raises(ProcessLost, match=str(os.getpid())):
        end_everybody((group,), clock=FakeClock())


def test_a_group_that_stays_busy_is_named(tmp_path):
    def refuse(folder: str) -> None:
        raise OSError(16, "Device or resource busy", folder)

    group = ControlGroup(str(tmp_path), folders=CgroupFolders(remove=refuse), clock=FakeClock())
    with pytest.raises(ProcessLost, match="busy"):
        group.remove()
