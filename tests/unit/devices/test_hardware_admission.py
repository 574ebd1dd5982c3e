from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.device import GIB
from stoker.devices.admission import (
    Admission,
    AdmissionDelay,
    AdmissionRefusal,
    MachineMemory,
    admit,
    floor_bytes,
    memory_here,
)
from stoker.host.resources import memory_total_bytes

LAPTOP = MachineMemory(total_bytes=16 * GIB, available_bytes=9 * GIB)
SERVER = MachineMemory(total_bytes=128 * GIB, available_bytes=120 * GIB)
UNREADABLE = MachineMemory(total_bytes=None, available_bytes=None)


def cap_of(answer: object) -> int:
    assert isinstance(answer, Admission)
    assert answer.cap_bytes is not None
    return answer.cap_bytes


@pytest.mark.parametrize(("total", "floor"), [(128 * GIB, 6 * GIB), (60 * GIB, 6 * GIB), (16 * GIB, 16 * GIB // 10)])
def test_the_floor_is_a_tenth_and_at_most_six_gib(total, floor):
    assert floor_bytes(total) == floor


@pytest.mark.parametrize("need", [None, 0])
@pytest.mark.parametrize("memory", [LAPTOP, SERVER, MachineMemory(total_bytes=8 * GIB, available_bytes=0)])
def test_who_declares_nothing_is_never_refused_and_capped_at_all_but_the_floor(memory, need):
    assert cap_of(admit(need, memory)) == memory.total_bytes - floor_bytes(memory.total_bytes)


def test_a_need_that_can_never_fit_is_refused_with_its_numbers():
    answer = admit(15 * GIB, LAPTOP)
    assert isinstance(answer, AdmissionRefusal)
    assert answer.most_bytes == 16 * GIB - 16 * GIB // 10
    assert answer.why == (
        "it needs 15.0 GiB; this machine has 16.0 GiB, of which 1.6 GiB are the system reserve: 14.4 GiB at most"
    )


def test_a_need_of_exactly_what_there_is_at_most_is_not_too_large():
    most = 16 * GIB - 16 * GIB // 10
    empty = MachineMemory(total_bytes=16 * GIB, available_bytes=16 * GIB)
    assert cap_of(admit(most, empty)) == most
    assert isinstance(admit(most + 1, empty), AdmissionRefusal)


def test_a_need_that_does_not_fit_now_waits_for_work_of_ours_and_is_refused_without():
    room = 9 * GIB - 16 * GIB // 10
    assert isinstance(admit(room, LAPTOP), Admission)
    waiting, refused = admit(room + 1, LAPTOP, is_work_running=True), admit(room + 1, LAPTOP)
    assert isinstance(waiting, AdmissionDelay)
    assert isinstance(refused, AdmissionDelay)
    assert (waiting.may_wait, refused.may_wait) == (True, False)
    assert refused.why == "it needs 7.4 GiB; 9.0 GiB are free now, and 1.6 GiB of that are the system reserve"


def test_a_declared_need_is_capped_two_gib_above_it():
    answer = admit(20 * GIB, SERVER)
    assert cap_of(answer) == 22 * GIB
    assert answer.why == "22.0 GiB: the need and 2.0 GiB"


def test_no_cap_reaches_into_the_floor():
    empty = MachineMemory(total_bytes=16 * GIB, available_bytes=16 * GIB)
    answer = admit(14 * GIB, empty)
    assert cap_of(answer) == 16 * GIB - 16 * GIB // 10
    assert "no more than all above the reserve" in answer.why


def test_memory_that_cannot_be_read_refuses_nobody():
    assert admit(None, UNREADABLE) == Admission(cap_bytes=None, why="nothing declared; memory can't be read")
    assert cap_of(admit(500 * GIB, UNREADABLE)) == 502 * GIB
    assert isinstance(admit(10 * GIB, MachineMemory(total_bytes=16 * GIB, available_bytes=None)), Admission)
    assert isinstance(admit(10 * GIB, MachineMemory(total_bytes=None, available_bytes=1 * GIB)), Admission)


def test_only_a_kill_for_memory_raises_the_next_cap_and_by_half():
    assert cap_of(admit(20 * GIB, SERVER, killed_at_bytes=22 * GIB)) == 33 * GIB
    assert cap_of(admit(20 * GIB, SERVER, killed_at_bytes=33 * GIB)) == 33 * GIB * 3 // 2
    assert cap_of(admit(20 * GIB, SERVER, killed_at_bytes=110 * GIB)) == 122 * GIB
    # It was killed at less than it would get anyway.
    assert cap_of(admit(20 * GIB, SERVER, killed_at_bytes=1 * GIB)) == 22 * GIB


@given(
    need=st.none() | st.integers(0, 300 * GIB),
    total=st.none() | st.integers(1, 256 * GIB),
    available=st.none() | st.integers(0, 256 * GIB),
    killed_at=st.none() | st.integers(1, 256 * GIB),
)
def test_a_cap_is_at_least_the_need_and_never_in_the_floor(need, total, available, killed_at):
    memory = MachineMemory(total_bytes=total, available_bytes=available)
    answer = admit(need, memory, killed_at_bytes=killed_at)
    assert answer.why
    if not need or total is None:
        assert isinstance(answer, Admission)
    if isinstance(answer, Admission) and answer.cap_bytes is not None:
        assert answer.cap_bytes >= (need or 0)
        assert total is None or answer.cap_bytes <= total - floor_bytes(total)


def test_this_machine_can_be_looked_at():
    memory = memory_here()
    assert memory.total_bytes == memory_total_bytes()
    assert memory.most_bytes is not None
    assert isinstance(admit(1, memory), Admission)


def test_the_limits_of_a_container_count(tmp_path):
    proc = tmp_path / "proc"
    group = tmp_path / "groups" / "box"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\n")
    (proc / "self" / "cgroup").write_text("0::/box\n")
    (proc / "self" / "mountinfo").write_text(f"30 20 0:3 / {tmp_path / 'groups'} rw - cgroup2 none rw\n")
    (group / "memory.max").write_text(f"{4 * GIB}\n")
    (group / "memory.current").write_text(f"{1 * GIB}\n")
    (group / "memory.stat").write_text("inactive_file 0\n")
    memory = memory_here(str(proc))
    assert (memory.total_bytes, memory.available_bytes) == (4 * GIB, 3 * GIB)
    assert isinstance(admit(5 * GIB, memory), AdmissionRefusal)
    assert isinstance(admit(3 * GIB, memory), AdmissionDelay)
