from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from stoker.core.errors import ContainmentUnavailable
from stoker.host.containment.box import ContainmentLimits, Mechanism
from stoker.host.containment.cgroups import Cgroup1
from tests.unit.host.real_boxes import CAP, EAT, LEAVE_STRAYS, MIB, PYTHON, RUN_AWAY, cgroup1, run_in, start_in
from tests.unit.host.real_processes import is_running

ENDED_BY_THE_KERNEL = 9


@pytest.fixture
def containment() -> Cgroup1:
    return cgroup1()


def folders_of(box) -> list[Path]:
    return [Path(path).parent for path in box.entry.procs_files]


def test_a_program_that_eats_all_memory_is_killed_and_the_kill_is_named(containment):
    box = containment.open("job-eater", CAP, "one")
    _, ended = run_in(box, [*PYTHON, EAT])
    reading = box.read()
    box.close()
    assert ended.signal == ENDED_BY_THE_KERNEL
    assert reading.was_out_of_memory
    assert reading.charged_bytes == CAP.memory_bytes
    assert 32 * MIB < (reading.peak_bytes or 0) <= 64 * MIB


def test_a_program_within_its_cap_leaves_its_peak(containment):
    box = containment.open("job-modest", CAP, "one")
    _, ended = run_in(box, [*PYTHON, "x = bytearray(20 * 2**20)"])
    reading = box.read()
    box.close()
    assert ended.is_success
    assert not reading.was_out_of_memory
    assert 20 * MIB < (reading.peak_bytes or 0) < 50 * MIB


def test_a_kill_from_elsewhere_is_not_taken_for_one_of_memory(containment):
    box = containment.open("job-shot", CAP, "one")
    _, ended = run_in(box, [*PYTHON, "import os; os.kill(os.getpid(), 9)"])
    assert ended.signal == ENDED_BY_THE_KERNEL
    assert not box.read().was_out_of_memory
    box.close()


def test_the_verdict_reaches_through_a_shell_that_ends_with_a_status_of_its_own(containment):
    box = containment.open("job-shell", CAP, "one")
    _, ended = run_in(box, ["sh", "-c", '"$@"; exit 7', "sh", *PYTHON, EAT])
    assert ended.status == 7
    assert box.read().was_out_of_memory
    box.close()


def test_files_that_pass_through_memory_are_not_counted_as_needed(containment):
    # Not below pytest's folder, which may be in memory.
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["stat", "-fc", "%T", folder], capture_output=True, check=True).stdout == b"tmpfs\n":
            pytest.skip("files here are memory and nothing else")
        box = containment.open("job-writer", ContainmentLimits(memory_bytes=128 * MIB), "one")
        _, ended = run_in(box, ["dd", "if=/dev/zero", f"of={folder}/file", "bs=1M", "count=48", "status=none"])
        reading = box.read()
        box.close()
    assert ended.is_success
    assert (reading.charged_bytes or 0) > 40 * MIB
    assert (reading.peak_bytes or 0) < 30 * MIB


def test_a_reading_outlives_its_box(containment):
    box = containment.open("job-late", CAP, "one")
    run_in(box, [*PYTHON, EAT])
    box.close()
    assert box.read().was_out_of_memory


def test_limits_are_those_that_were_asked_for(containment):
    limits = ContainmentLimits(memory_bytes=64 * MIB, swap_bytes=8 * MIB)
    box = containment.open("job-limits", limits, "one")
    memory = folders_of(box)[0]
    assert (memory / "memory.limit_in_bytes").read_text() == f"{64 * MIB}\n"
    swap = memory / "memory.memsw.limit_in_bytes"
    assert not swap.exists() or swap.read_text() == f"{72 * MIB}\n"
    box.close()


def test_a_box_without_a_cap_still_counts(containment):
    box = containment.open("job-free", ContainmentLimits(memory_bytes=None), "one")
    _, ended = run_in(box, [*PYTHON, "x = bytearray(100 * 2**20)"])
    assert ended.is_success
    assert (box.read().peak_bytes or 0) > 100 * MIB
    box.close()


def test_a_box_is_named_for_its_work_and_no_two_are_alike(containment):
    one = containment.open("Job 7/ü-train:gbt", CAP, "a.b/c")
    two = containment.open("Job 7/ü-train:gbt", CAP, "a.b/c")
    assert one.name.startswith("stoker-Job_7__-train_gbt.a_b_c.")
    assert one.name != two.name
    assert one.mechanism is Mechanism.CGROUP1
    for box in (one, two):
        folders = folders_of(box)
        assert [folder.name for folder in folders] == [box.name] * len(folders)
        box.close()
        assert not any(folder.exists() for folder in folders)


def test_a_very_long_name_is_cut_to_what_a_folder_may_have(containment):
    box = containment.open("x" * 500, CAP, "y" * 500)
    assert len(box.name) <= 250
    box.close()


def test_those_who_left_their_session_are_inside_and_gone_when_it_closes(containment):
    box = containment.open("job-strays", CAP, "one")
    said, ended = run_in(box, [*PYTHON, LEAVE_STRAYS, "5"])
    strays = sorted(map(int, said.split()))
    assert ended.is_success
    assert list(box.members()) == strays
    box.close()
    assert not any(is_running(pid) for pid in strays)
    assert box.members() == ()


TWINS = ["kill", "freezer", "none"]


def with_twin(twin: str) -> Cgroup1:
    found = cgroup1()
    if twin == "kill":
        return found
    memory = found._places[0]
    return Cgroup1((memory, "/sys/fs/cgroup/freezer") if twin == "freezer" else (memory,))


@pytest.mark.parametrize("twin", TWINS)
def test_a_family_of_many_is_ended_by_whatever_the_kernel_offers(twin):
    if twin == "freezer" and not os.access("/sys/fs/cgroup/freezer/cgroup.procs", os.W_OK):
        pytest.skip("no freezer is mounted here, or it is not ours")
    box = with_twin(twin).open("job-many", ContainmentLimits(memory_bytes=256 * MIB), "one")
    bomb = "import os\nfor _ in range(6): os.fork()\nos.setsid() if os.getpid() != os.getsid(0) else 0\n"
    child = start_in(box, [*PYTHON, bomb + "print('x', flush=True)\nimport signal\nwhile True: signal.pause()"])
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.read(2 * 64).count(b"x") == 64
    assert len(box.members()) == 64
    box.kill_all()
    assert box.members() == ()
    box.close()
    assert not any(folder.exists() for folder in folders_of(box))
    child.wait(20)


@pytest.mark.parametrize("twin", ["kill", "freezer"])
def test_a_chain_that_runs_away_from_every_look_is_ended(twin):
    if twin == "freezer" and not os.access("/sys/fs/cgroup/freezer/cgroup.procs", os.W_OK):
        pytest.skip("no freezer is mounted here, or it is not ours")
    containment = with_twin(twin)
    if twin == "kill" and len(containment._places) < 2:
        pytest.skip("no version 2 beside version 1 here")
    box = containment.open("job-chain", ContainmentLimits(memory_bytes=256 * MIB), "one")
    said, _ = run_in(box, [*PYTHON, RUN_AWAY])
    assert said == "off\n"
    box.close()
    assert not any(folder.exists() for folder in folders_of(box))


def test_groups_that_were_made_inside_go_with_their_people(containment):
    box = containment.open("job-nested", CAP, "one")
    memory = folders_of(box)[0]
    nest = f"mkdir {memory}/inner && echo 0 > {memory}/inner/cgroup.procs && echo in && exec sleep 100"
    child = start_in(box, ["sh", "-c", nest])
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"in\n"
    assert box.members() == (child.identity.pid,)
    box.close()
    assert not memory.exists()
    assert child.wait(20).signal == ENDED_BY_THE_KERNEL


def test_closing_twice_is_fine(containment):
    box = containment.open("job-twice", CAP, "one")
    box.close()
    box.close()
    assert box.members() == ()


def test_a_place_that_is_no_control_group_is_refused_and_left_clean(tmp_path):
    with pytest.raises(ContainmentUnavailable, match=r"memory\.limit_in_bytes"):
        Cgroup1((str(tmp_path),)).open("job", CAP, "one")
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_the_controller_says_so(tmp_path):
    with pytest.raises(ContainmentUnavailable, match="no memory controller"):
        Cgroup1.probe(str(tmp_path))
