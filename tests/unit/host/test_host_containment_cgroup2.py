from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stoker.core.errors import ContainmentUnavailable
from stoker.host.containment.box import ContainmentLimits
from stoker.host.containment.cgroups import Cgroup2, ControlGroup, end_everybody, find_place
from stoker.host.identity import ProcessExit
from stoker.host.resources import own_group
from tests.unit.host.real_boxes import LEAVE_STRAYS, MIB, PYTHON, RUN_AWAY, run_in, start_in
from tests.unit.host.real_processes import is_running
from tests.unit.host.recorded_groups import RecordedGroups

KILLED = ProcessExit(status=None, signal=9, max_rss_bytes=0, cpu_s=0.0)
UNLIMITED = ContainmentLimits(memory_bytes=None)


@pytest.fixture
def groups(tmp_path) -> RecordedGroups:
    return RecordedGroups(tmp_path, "/user/service")


def handing_on(groups: RecordedGroups) -> Cgroup2:
    (groups.own / "cgroup.subtree_control").write_text("memory pids\n")
    return Cgroup2.probe(str(groups.proc), folders=groups.folders)


def leaf_of(box) -> Path:
    (procs,) = box.entry.procs_files
    return Path(procs).parent


def test_a_box_is_a_group_with_the_limits_that_were_asked_for(groups):
    limits = ContainmentLimits(memory_bytes=64 * MIB, swap_bytes=2 * MIB)
    box = handing_on(groups).open("job-stage", limits, "one")
    leaf = leaf_of(box)
    assert leaf.parent == groups.own
    assert leaf.name.startswith("stoker-job-stage.one.")
    written = {name: (leaf / name).read_text() for name in ("memory.max", "memory.swap.max")}
    assert written == {"memory.max": str(64 * MIB), "memory.swap.max": str(2 * MIB)}
    assert (leaf / "memory.oom.group").read_text() == "1"
    box.close()
    assert not leaf.exists()


def test_nobody_is_slowed_down_and_nothing_is_swapped(groups):
    box = handing_on(groups).open("job-stage", ContainmentLimits(memory_bytes=64 * MIB), "one")
    assert (leaf_of(box) / "memory.high").read_text() == "max\n"
    assert (leaf_of(box) / "memory.swap.max").read_text() == "0"
    box.close()


def test_a_kernel_without_swap_or_group_kills_is_good_enough(groups):
    containment = handing_on(groups)
    make = groups.make

    def make_older(folder: str) -> None:
        make(folder)
        for name in ("memory.swap.max", "memory.oom.group", "memory.peak", "cgroup.kill"):
            os.remove(os.path.join(folder, name))

    containment._folders = type(groups.folders)(make=make_older, remove=groups.remove)
    box = containment.open("job-stage", ContainmentLimits(memory_bytes=64 * MIB), "one")
    (leaf_of(box) / "memory.current").write_text(f"{30 * MIB}\n")
    assert box.read().charged_bytes == 30 * MIB
    (leaf_of(box) / "memory.current").write_text(f"{20 * MIB}\n")
    assert box.read().charged_bytes == 30 * MIB
    box.close()


def test_the_peak_is_what_was_needed_beside_cached_files(groups):
    box = handing_on(groups).open("job-stage", ContainmentLimits(memory_bytes=64 * MIB), "one")
    leaf = leaf_of(box)
    (leaf / "memory.peak").write_text(f"{50 * MIB}\n")
    (leaf / "memory.stat").write_text(f"anon 0\ninactive_file {30 * MIB}\nactive_file {5 * MIB}\n")
    reading = box.read()
    assert (reading.peak_bytes, reading.charged_bytes) == (15 * MIB, 50 * MIB)
    (leaf / "memory.stat").write_text(f"anon 0\ninactive_file {45 * MIB}\nactive_file {5 * MIB}\n")
    assert box.read().peak_bytes == 15 * MIB
    box.close()
    assert box.read().peak_bytes == 15 * MIB


@pytest.mark.parametrize(
    ("events", "verdict"), [("oom 1\noom_kill 2\n", True), ("high 9\nmax 40\noom 1\noom_kill 0\n", False), ("", False)]
)
def test_the_verdict_is_the_kernel_s_count_of_kills(groups, events, verdict):
    box = handing_on(groups).open("job-stage", ContainmentLimits(memory_bytes=64 * MIB), "one")
    (leaf_of(box) / "memory.events").write_text(events)
    assert box.read().was_out_of_memory is verdict
    box.close()


def test_boxes_go_below_our_own_group_if_it_hands_memory_control_on(groups):
    (groups.own / "cgroup.subtree_control").write_text("cpu memory\n")
    assert find_place(str(groups.proc), folders=groups.folders) == str(groups.own)


def test_boxes_go_beside_our_own_group_if_only_the_one_above_hands_it_on(groups):
    (groups.own / "cgroup.procs").write_text("1\n")
    (groups.own.parent / "cgroup.subtree_control").write_text("memory\n")
    assert find_place(str(groups.proc), folders=groups.folders) == str(groups.own.parent)


@pytest.mark.parametrize(("name", "value"), [("memory.max", "8589934592\n"), ("cpu.max", "50000 100000\n")])
def test_no_box_escapes_a_limit_of_our_own_group(groups, name, value):
    (groups.own / "cgroup.procs").write_text("1\n")
    (groups.own.parent / "cgroup.subtree_control").write_text("memory\n")
    (groups.own / name).write_text(value)
    with pytest.raises(ContainmentUnavailable, match="shared with process 1 "):
        find_place(str(groups.proc), folders=groups.folders)


def test_a_group_that_is_ours_alone_is_freed_for_boxes(groups):
    with subprocess.Popen(["sleep", "60"]) as child:
        (groups.own / "cgroup.procs").write_text(f"{os.getpid()}\n{child.pid}\n")
        assert find_place(str(groups.proc), folders=groups.folders) == str(groups.own)
        child.kill()
    assert (groups.own / "stoker-itself" / "cgroup.procs").read_text() == str(child.pid)
    assert (groups.own / "cgroup.subtree_control").read_text() == "+memory"


def test_a_group_without_memory_control_is_not_taken(groups):
    (groups.own / "cgroup.controllers").write_text("cpu pids\n")
    with pytest.raises(ContainmentUnavailable, match="not delegated to this process"):
        Cgroup2.probe(str(groups.proc))


def test_a_machine_without_version_2_says_so(tmp_path):
    with pytest.raises(ContainmentUnavailable, match="not mounted"):
        Cgroup2.probe(str(tmp_path))


def test_a_limit_that_the_kernel_does_not_take_leaves_no_group(groups):
    containment = handing_on(groups)
    make = groups.make

    def make_without_limits(folder: str) -> None:
        make(folder)
        os.remove(os.path.join(folder, "memory.max"))

    containment._folders = type(groups.folders)(make=make_without_limits, remove=groups.remove)
    with pytest.raises(ContainmentUnavailable, match=r"memory\.max"):
        containment.open("job-stage", ContainmentLimits(memory_bytes=64 * MIB), "one")
    assert not list(groups.own.glob("stoker-*"))


@pytest.fixture
def real() -> Cgroup2:
    """Groups of this machine. They kill and freeze for real; whether they limit memory does not matter here."""
    place = own_group("", 2)
    if place is None or not os.access(os.path.join(place, "cgroup.procs"), os.W_OK):
        pytest.skip("no control groups of version 2 that are ours to write")
    return Cgroup2((place,))


def test_real_strays_are_found_and_ended(real):
    box = real.open("job-strays", UNLIMITED, "one")
    said, _ = run_in(box, [*PYTHON, LEAVE_STRAYS, "4"])
    strays = sorted(map(int, said.split()))
    assert list(box.members()) == strays
    box.close()
    assert not any(is_running(pid) for pid in strays)
    assert not leaf_of(box).exists()


def test_a_real_chain_is_ended_in_one_stroke(real):
    box = real.open("job-chain", UNLIMITED, "one")
    run_in(box, [*PYTHON, RUN_AWAY])
    box.kill_all()
    assert box.members() == ()
    box.close()


class Older(ControlGroup):
    """As before kernel 5.14: a group can be frozen, but not killed in one stroke. It remembers what it was told."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.told: list[tuple[str, object]] = []

    def has(self, name: str) -> bool:
        return name != "cgroup.kill" and super().has(name)

    def write(self, name: str, value: object) -> None:
        self.told.append((name, value))
        super().write(name, value)


@pytest.mark.parametrize("code", [LEAVE_STRAYS, RUN_AWAY])
def test_a_group_that_can_only_freeze_is_ended_while_it_stands_still(real, code):
    box = real.open("job-frozen", UNLIMITED, "one")
    run_in(box, [*PYTHON, code, "4"])
    older = Older(str(leaf_of(box)))
    end_everybody((older,))
    assert box.members() == ()
    assert older.told[:2] == [("cgroup.freeze", 1), ("cgroup.freeze", 0)]
    older.remove()
    box.close()


def test_groups_that_were_made_inside_go_with_their_people(real):
    box = real.open("job-nested", UNLIMITED, "one")
    leaf = leaf_of(box)
    child = start_in(
        box, ["sh", "-c", f"mkdir {leaf}/a {leaf}/a/b && echo 0 > {leaf}/a/b/cgroup.procs && echo && exec sleep 99"]
    )
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
    assert box.members() == (child.identity.pid,)
    box.close()
    assert not leaf.exists()
    assert child.wait(20).signal == 9
