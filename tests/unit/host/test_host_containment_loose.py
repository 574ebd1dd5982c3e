from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from stoker.core.errors import ContainmentUnavailable
from stoker.core.frozen import changed
from stoker.host.containment.box import (
    MARK,
    AddressSpace,
    CleanupShell,
    ContainmentLimits,
    Mechanism,
    NoContainment,
    Watchdog,
    _together,
    find_strays,
)
from stoker.host.identity import mine, read_row
from stoker.host.processes import start
from tests.unit.host.real_boxes import CAP, LEAVE_STRAYS, MIB, PYTHON, run_in, start_in
from tests.unit.host.real_processes import is_running, wait_until

EVERY = pytest.mark.parametrize(
    "containment", [NoContainment(), Watchdog(), AddressSpace()], ids=lambda each: each.mechanism
)
ROOMY = ContainmentLimits(memory_bytes=1024 * MIB)


@EVERY
def test_strays_with_the_mark_are_found_in_whatever_session_they_are(containment):
    mark = f"test-{os.getpid()}-{containment.mechanism}"
    box = containment.open("job-strays", ROOMY, mark)
    said, ended = run_in(box, [*PYTHON, LEAVE_STRAYS, "3"], mark=mark)
    strays = sorted(map(int, said.split()))
    assert ended.is_success
    assert sorted(box.members()) == strays
    box.close()
    assert not any(is_running(pid) for pid in strays)
    assert box.members() == ()


@EVERY
def test_a_running_program_and_its_children_are_killed_and_seen_gone(containment):
    box = containment.open("job-family", ROOMY, "")
    # The child sheds its environment and its session; as long as its parent lives, it is known by descent.
    child = start_in(box, ["sh", "-c", "env -i setsid sh -c 'echo $$; exec sleep 99' & wait"])
    assert child.stdout is not None
    with child.stdout:
        grandchild = int(child.stdout.readline())
    assert {child.identity.pid, grandchild} <= set(box.members())
    box.kill_all()
    assert not is_running(grandchild)
    assert child.wait(20).signal in {signal.SIGKILL, signal.SIGTERM}
    box.close()
    box.close()


def test_another_mark_is_not_ours():
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: "one-more"}) as other:
        try:
            assert [row.pid for row in find_strays(None, "one-more")] == [other.pid]
            assert find_strays(None, "one") == ()
            assert find_strays(None, "") == ()
        finally:
            other.kill()


def test_whoever_asks_is_never_among_those_found():
    assert os.getpid() not in {row.pid for row in find_strays(mine(), "")}


@pytest.mark.parametrize("is_the_same", [True, False])
def test_a_keeper_that_is_left_alone_kills_the_session_it_was_told_of_and_no_later_one(is_the_same):
    child = start(["sleep", "60"], cwd="/", env={"PATH": os.environ["PATH"]})
    keeper = CleanupShell()
    earlier = changed(child.identity, start_ticks=child.identity.start_ticks - (0 if is_the_same else 1))
    keeper.guard_session(earlier)
    assert keeper._process.stdin is not None
    keeper._process.stdin.close()
    keeper._process.wait(20)
    if is_the_same:
        assert child.wait(20).signal == signal.SIGKILL
    else:
        assert is_running(child.identity.pid)
        child.stop(grace_s=0.0)


def test_a_keeper_that_is_dismissed_kills_nobody():
    child = start(["sleep", "60"], cwd="/", env={"PATH": os.environ["PATH"]})
    keeper = CleanupShell()
    keeper.guard_session(child.identity)
    keeper.dismiss()
    keeper.dismiss()
    assert is_running(child.identity.pid)
    child.stop(grace_s=0.0)


def test_the_watchdog_kills_what_grows_above_its_cap_and_names_it():
    mark = f"test-{os.getpid()}-eater"
    box = Watchdog().open("job-eater", CAP, mark)
    eat = "import time\nx = []\nwhile True: x.append(bytearray(2**20)); time.sleep(0.002)"
    _, ended = run_in(box, [*PYTHON, eat], mark=mark)
    wait_until(lambda: box.read().was_out_of_memory)
    reading = box.read()
    box.close()
    assert not ended.is_success
    assert reading.was_out_of_memory
    assert (reading.peak_bytes or 0) > 64 * MIB


def test_the_watchdog_counts_the_whole_family():
    box = Watchdog().open("job-family", CAP, "")
    hungry = "x = bytearray(40 * 2**20)\nimport signal\nprint(flush=True)\nwhile True: signal.pause()"
    child = start_in(box, ["sh", "-c", '"$@" & "$@" & wait', "sh", *PYTHON, hungry])
    assert child.wait(20).signal is not None
    assert box.read().was_out_of_memory
    assert child.stdout is not None
    child.stdout.close()
    box.close()


def test_memory_that_a_family_shares_counts_once():
    share = (
        "import os, signal\nx = bytearray(50 * 2**20)\nfor _ in range(3): os.fork()\nprint(os.getpid(), flush=True)\n"
    )
    box = NoContainment().open("job-shared", ROOMY, "")
    child = start_in(box, [*PYTHON, share + "while True: signal.pause()"])
    assert child.stdout is not None
    with child.stdout:
        pids = [int(child.stdout.readline()) for _ in range(8)]
    rows = tuple(row for pid in pids if (row := read_row(pid)) is not None)
    assert _together(rows, None) > 8 * 50 * MIB
    assert 50 * MIB < _together(rows, 100 * MIB) < 100 * MIB
    box.close()
    child.wait(20)


def test_the_watchdog_leaves_a_modest_program_alone():
    box = Watchdog().open("job-modest", ROOMY, "")
    _, ended = run_in(box, [*PYTHON, "x = bytearray(20 * 2**20)"])
    box.close()
    assert ended.is_success
    assert not box.read().was_out_of_memory


def test_an_address_space_limit_makes_allocation_fail_in_the_program_itself():
    box = AddressSpace().open("job-eater", ContainmentLimits(memory_bytes=256 * MIB), "")
    said, ended = run_in(box, [*PYTHON, "try: x = bytearray(2**29)\nexcept MemoryError: print('refused')"])
    box.close()
    assert said == "refused\n"
    assert ended.is_success
    assert box.mechanism is Mechanism.ADDRESS_SPACE


def test_an_address_space_limit_is_never_for_gpu_work():
    with pytest.raises(ContainmentUnavailable, match="GPU"):
        AddressSpace().open("job-gpu", ContainmentLimits(memory_bytes=256 * MIB, uses_gpu=True), "")


def test_a_bare_box_counts_nothing_and_warns_loudly():
    box = NoContainment().open("job-bare", CAP, "")
    assert box.entry.is_empty
    _, ended = run_in(box, [sys.executable, "-S", "-c", "x = bytearray(100 * 2**20)"])
    reading = box.read()
    box.close()
    assert ended.is_success
    assert (reading.peak_bytes, reading.was_out_of_memory) == (None, False)
    assert "NOT limited" in NoContainment.warning
    assert "best effort" in Watchdog.warning
