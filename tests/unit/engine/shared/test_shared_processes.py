"""Stages that share one process: each attempt stays its own, whatever becomes of the others and of the process."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.authoring import Plan, PlanBuilder, Stage
from stoker.core.clock import SystemClock
from stoker.core.device import GIB, MIB, Capacity, MemoryType, Needs, usable_bytes
from stoker.core.digests import digest_value
from stoker.core.errors import Cancelled
from stoker.core.frozen import changed
from stoker.core.job import TrialNodes
from stoker.core.retry import FailureCause
from stoker.devices.admission import MachineMemory
from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.shared_base import BaseWidth, MultiAdapterTraining, estimate_adapters
from stoker.devices.ledger.reservations import FakeMeter
from stoker.engine.runners.shared.members import framed
from stoker.engine.runners.shared.shared_runner import SharedProcessRunner
from stoker.engine.stage import SharedBase
from stoker.host.sockets import NamedSocket
from stoker.jobs.adapter_jobs import SharedProcessCapacity, estimate_shared_processes, with_needs_of
from stoker.jobs.trials import Trial
from tests.fakes.jobs import made_trial
from tests.others import suspend
from tests.unit.engine.lab import Flight, Lab, Ran, card
from tests.unit.engine.stages import number
from tests.unit.engine.together_stages import CountArgs, broken, count, greedy, hanging

CLOCK = SystemClock()
LLAMA_8G = read_shape(
    {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }
)  # fmt: skip
EIGHT = MultiAdapterTraining(shape=LLAMA_8G, adapters=8, rank=16, sequence=512, base_dtype=BaseWidth.NF4)
ONE_BASE = SharedBase(share_key="base", base_bytes=0, member_bytes=0, base_ram_bytes=0, member_ram_bytes=0)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab of which nothing may be left: no process, no door, no control group."""
    with Lab(tmp_path / "lab") as made:
        yield made
    until(lambda: processes_of(made) == [], "a shared process's processes are left")
    assert doors_of(made) == []
    until(lambda: left_groups() == [], "a control group is left whose shared process is gone")


def members(*args: CountArgs, of: Stage = count, needs: Needs | None = None, timeout_s: float | None = None) -> Plan:
    builder = PlanBuilder("members")
    tips = [builder.start(of, one, id=one.member, needs=needs, timeout_s=timeout_s) for one in args]
    return builder.finish(tips[0], keep=tuple(tips[1:]))


def counting(number: int, **more: object) -> tuple[CountArgs, ...]:
    return tuple(CountArgs(member=f"m{one}", **more) for one in range(number))  # type: ignore[arg-type]


def trials_of(plan: Plan) -> list[Trial]:
    """Return a trial for each node."""
    return [
        made_trial(
            number=number,
            label=node.id,
            point={},
            args={},
            job_id=digest_value("t", number),
            nodes=TrialNodes(final=node.id, keep=(), nodes=(node.id,)),
        )
        for number, node in enumerate(plan.nodes, 1)
    ]


def until(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline_s = CLOCK.monotonic_s() + 20.0
    while not is_so():
        assert CLOCK.monotonic_s() < deadline_s, otherwise
        CLOCK.sleep(0.01)


def processes_of(lab: Lab, name: str = "") -> list[int]:
    """Return the processes of shared processes that were started from a lab, by the name that `top` shows."""
    mark = f"LAB={lab.folder}\0".encode()
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            is_ours = mark in Path("/proc", pid, "environ").read_bytes() + b"\0"
            if is_ours and name in Path("/proc", pid, "comm").read_text():
                found.append(int(pid))
    return found


def left_groups() -> list[str]:
    """Return control groups of shared processes whose keepers are gone."""
    found = [
        Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if "stoker-company-" in os.path.basename(folder)
    ]
    keepers = {folder: re.search(r"\.company-[0-9a-f]+-([0-9]+)\.", folder.name) for folder in found}
    return [str(folder) for folder, keeper in keepers.items() if keeper and not Path("/proc", keeper[1]).exists()]


def doors_of(lab: Lab) -> list[str]:
    folder = lab.folder / "run"
    return sorted(name for name in os.listdir(folder) if name != "lock") if folder.exists() else []


def processes_in(lab: Lab, ran: Ran) -> set[int]:
    return {lab.value(ran, name)["process"] for name in ran.result.nodes}


def joined(folder: Path) -> list[str]:
    return sorted(name.partition(".")[0] for name in os.listdir(folder))


def test_stages_outside_of_shared_processes_are_announced_before_the_first_one_runs(lab: Lab) -> None:
    builder = PlanBuilder("mixed")
    tips = [builder.start(count, CountArgs(member="a"), id="a"), builder.start(number, id="number")]
    plan = builder.finish(tips[0], keep=(tips[1],))
    lab.run(plan)
    assert lab.announced == [number.name]
    lab.has_shared_processes = False
    lab.run(plan)
    assert lab.announced[1:] == [count.name, number.name]
    lab.has_shared_processes = True
    lab.run(plan, solo=True)
    assert lab.announced[3:] == [count.name, number.name]


def test_eight_attempts_share_one_process_and_each_has_its_own_result_steps_and_log(lab: Lab, tmp_path: Path) -> None:
    flight, _ = _held_up(lab, tmp_path, 8)
    (tmp_path / "go").touch()
    ran = flight.land()

    assert set(ran.endings.values()) == {"ran"}
    assert len(processes_in(lab, ran)) == 1
    assert sorted(lab.value(ran, name)["number"] for name in ran.result.nodes) == list(range(8))
    assert [event["step"] for event in ran.of_kind("stage_step", "m3")][-1:] == [3]
    assert "m3 is done" in lab.log("m3")
    told = ran.of_kind("stage_told", "m3")
    assert [(event["text"], event["at_once"]) for event in told] == [("m3 is done", True)]
    assert "m4 is done" not in lab.log("m3")
    assert "joined m3" in lab.log("m3"), "what the process prints goes to everybody"


def test_a_home_knows_whether_a_shared_process_of_its_own_runs(lab: Lab, tmp_path: Path) -> None:
    assert not lab.shared_processes.has_process()
    flight, _ = _held_up(lab, tmp_path, 2)
    assert lab.shared_processes.has_process()
    other = changed(lab.shared_process_settings(), home=str(tmp_path / "another"))
    assert not SharedProcessRunner(lambda: other, clock=CLOCK).has_process()
    (tmp_path / "go").touch()
    flight.land()
    until(lambda: not lab.shared_processes.has_process(), "a shared process has ended and is still said to run")


def test_one_member_that_fails_leaves_the_others_alone(lab: Lab) -> None:
    failing = CountArgs(member="bad", fails_at=2)
    ran = lab.run(members(failing, *counting(3)), keep_going=True)

    assert ran.endings == {"bad": "diverged", "m0": "ran", "m1": "ran", "m2": "ran"}
    assert ran["bad"].message == "bad diverged"
    assert len({lab.value(ran, f"m{one}")["process"] for one in range(3)}) == 1


def test_one_member_that_is_stopped_leaves_the_others_alone(lab: Lab, tmp_path: Path) -> None:
    slow = members(CountArgs(member="slow", waits_for=str(tmp_path / "never")), timeout_s=0.2)
    others = members(*counting(2))
    plan = Plan(name="both", nodes=(*slow.nodes, *others.nodes), final="m0", keep=("m1", "slow"))
    ran = lab.run(plan, keep_going=True)

    assert ran["slow"].cause is FailureCause.TIMEOUT
    assert (ran.endings["m0"], ran.endings["m1"]) == ("ran", "ran")


def test_a_killed_shared_process_is_begun_anew_and_its_members_go_on_from_what_they_kept(
    lab: Lab, tmp_path: Path
) -> None:
    flight, pid = _held_up(lab, tmp_path, 3)
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(flight.events("stage_retrying")) >= 3, "the members are not tried again")
    (tmp_path / "go").touch()
    ran = flight.land()

    assert set(ran.endings.values()) == {"ran"}
    assert len(ran.of_kind("stage_retrying")) == 3, "whoever came to the killed process's socket joins the next one"
    assert pid not in processes_in(lab, ran)
    told = ran.of_kind("stage_retrying", "m0")[0]
    assert told["cause"] == "lost"
    assert f"its shared process {pid} ended without an answer: signal 9 (SIGKILL)" in told["message"]


def test_a_shared_process_goes_with_its_keeper_and_its_members_are_tried_again(lab: Lab, tmp_path: Path) -> None:
    flight, _ = _held_up(lab, tmp_path, 2)
    (keeper,) = processes_of(lab, "stoker-keeper")
    os.kill(keeper, signal.SIGKILL)
    until(lambda: len(flight.events("stage_retrying")) >= 2, "the members are not tried again")
    (tmp_path / "go").touch()

    assert set(flight.land().endings.values()) == {"ran"}


def test_a_cancelled_run_leaves_its_shared_process_and_that_ends(lab: Lab, tmp_path: Path) -> None:
    flight, pid = _held_up(lab, tmp_path, 2)
    flight.executor.cancel(Cancelled("enough"))
    ran = flight.land()

    assert set(ran.endings.values()) == {"cancelled"}
    until(lambda: not os.path.exists(f"/proc/{pid}"), "the shared process does not end")


def test_two_runs_meet_in_one_shared_process_and_a_late_one_joins_it(lab: Lab, tmp_path: Path) -> None:
    flight, pid = _held_up(lab, tmp_path, 1)
    with Lab(lab.folder, store=tmp_path / "another") as other:
        late = other.run(members(CountArgs(member="late")))
        assert processes_in(other, late) == {pid}
        (told,) = late.of_kind("stage_end", "late")
        company = {"process": pid, "members": 2, "others": 1, "with": ["run-1/m0"]}
        assert told["company"] == company, "it is told with whom it was"
        assert late["late"].products[0].record.body["company"] == company, "and its result remembers it"
    (tmp_path / "go").touch()

    assert processes_in(lab, flight.land()) == {pid}


def test_whoever_joins_a_shared_process_of_another_run_needs_no_memory_for_its_base(lab: Lab, tmp_path: Path) -> None:
    needs = Needs(memory_gib=10.0, base_memory_gib=8.0)
    with Lab(lab.folder, store=tmp_path / "another") as other:
        # Of 20 GiB four are free, and two are the system reserve: enough for a member, not for its base.
        other.memory = MachineMemory(total_bytes=20 * GIB, available_bytes=4 * GIB + 1)
        assert other.run(members(CountArgs(member="early"), needs=needs))["early"].cause is FailureCause.OOM_HOST
        flight, pid = _held_up(lab, tmp_path, 1)
        assert processes_in(other, other.run(members(CountArgs(member="late"), needs=needs))) == {pid}
    (tmp_path / "go").touch()

    assert set(flight.land().endings.values()) == {"ran"}


def test_bytes_that_are_none_of_ours_cost_a_shared_process_nothing(lab: Lab, tmp_path: Path) -> None:
    flight, pid = _held_up(lab, tmp_path, 2)
    (door,) = doors_of(lab)
    hostile = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", 2**32 - 1),
        struct.pack("!I", 3) + b"[1]",
        struct.pack("!I", 2) + b"\xff\xff",
        framed({"join": 7}),
        framed({"join": {}}),
        framed({"join": {"claim": 7, "most": "x", "who": []}}),
        framed({"join": {"claim": {"entry": {"shares": [1]}, "folder": 1}}}),
        framed({"join": {"entry": "os:system", "node": "x", "args": {}, "inputs": {}}}),
        framed({"stop": True}) * 3,
        struct.pack("!I", 1 << 20) + b"[" * (1 << 20),
    ]
    for sent in hostile:
        link = NamedSocket(str(lab.folder / "run"), door.removesuffix(".sock")).knock()
        assert link is not None
        with link, suppress(ConnectionError):
            link.settimeout(10)
            link.sendall(sent)
            link.shutdown(socket.SHUT_WR)
            while link.recv(65536):
                pass
    (tmp_path / "go").touch()

    assert processes_in(lab, flight.land()) == {pid}


def test_whoever_finds_a_shared_process_that_was_stopped_begins_another_and_the_first_goes_on(
    lab: Lab, tmp_path: Path
) -> None:
    flight, pid = _held_up(lab, tmp_path, 1)
    suspend(pid)
    try:
        with Lab(lab.folder, store=tmp_path / "another") as other:
            # The other one has to answer within this time, too, on a busy machine.
            other.answer_s = 2.0
            late = other.run(members(CountArgs(member="late")))
            assert processes_in(other, late).isdisjoint({pid})
            assert "has not answered for 2.0s: starting another" in other.log("late")
    finally:
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "go").touch()

    assert processes_in(lab, flight.land()) == {pid}


def test_beside_a_shared_process_that_was_stopped_no_other_is_begun_whose_base_has_no_room(
    lab: Lab, tmp_path: Path
) -> None:
    needs = Needs(memory_gib=3.0, base_memory_gib=2.0)
    marks = tmp_path / "marks"
    marks.mkdir()
    flight = lab.start(members(*counting(1, waits_for=str(tmp_path / "go"), marks=str(marks)), needs=needs))
    until(lambda: joined(marks) == ["m0"], "nobody is there")
    pid = int(os.listdir(marks)[0].partition(".")[2])
    suspend(pid)
    try:
        with Lab(lab.folder, store=tmp_path / "another") as other:
            other.answer_s = 0.1
            # Enough for who joins, and too little for a second base.
            other.memory = MachineMemory(total_bytes=20 << 30, available_bytes=4 << 30)
            late = other.run(members(CountArgs(member="late"), needs=needs))
            assert late["late"].cause is FailureCause.LOST
            assert late["late"].message == (
                "its shared process has not answered for 0.1s, and there is no memory for another: it needs 3.0 GiB; "
                "4.0 GiB are free now, and 2.0 GiB of that are the system reserve"
            )
    finally:
        os.kill(pid, signal.SIGCONT)
    (tmp_path / "go").touch()

    assert processes_in(lab, flight.land()) == {pid}


def test_a_member_on_a_device_whose_shared_process_was_stopped_says_so(lab: Lab, tmp_path: Path) -> None:
    lab.devices = (card("a"),)
    marks = tmp_path / "marks"
    marks.mkdir()
    needs = Needs(gpu=1, vram_gib=10.0, base_gib=8.0, shares=True)
    waiting = CountArgs(member="m0", waits_for=str(tmp_path / "go"), marks=str(marks))
    flight = lab.start(members(waiting, needs=needs))
    until(lambda: joined(marks) == ["m0"], "nobody is there")
    pid = int(os.listdir(marks)[0].partition(".")[2])
    suspend(pid)
    try:
        with Lab(lab.folder, store=tmp_path / "another") as other:
            other.devices, other.answer_s = lab.devices, 0.1
            late = other.run(members(CountArgs(member="late"), needs=needs))
            assert (late["late"].cause, late["late"].message.partition(":")[0]) == (
                FailureCause.LOST,
                "its shared process has not answered for 0.1s",
            )
    finally:
        os.kill(pid, signal.SIGCONT)
    (tmp_path / "go").touch()

    assert set(flight.land().endings.values()) == {"ran"}, "it has its door still"


def test_no_more_members_are_seated_at_once_than_they_say(lab: Lab, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    args = counting(4, waits_for=str(tmp_path / "go"), marks=str(marks))
    flight = lab.start(members(*args, needs=Needs(most=2)))
    until(lambda: len(joined(marks)) == 2, "nobody is there")
    until(lambda: len(flight.events("stage_begin")) >= 2, "they have not begun")
    assert len(flight.events("stage_begin")) == 2
    (tmp_path / "go").touch()

    assert len(processes_in(lab, flight.land())) == 1
    assert len(joined(marks)) == 4


def test_a_shared_process_counts_as_one_of_those_that_run_at_once(lab: Lab, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    args = counting(5, waits_for=str(tmp_path / "go"), marks=str(marks))
    flight = lab.start(members(*args), max_in_flight=1)
    until(lambda: len(joined(marks)) == 5, "not everybody is there")
    (tmp_path / "go").touch()

    assert set(flight.land().endings.values()) == {"ran"}


def test_another_word_is_another_shared_process(lab: Lab) -> None:
    ran = lab.run(members(CountArgs(member="a", base="one"), CountArgs(member="b", base="two")))

    assert len(processes_in(lab, ran)) == 2


def test_whoever_wants_no_shared_process_has_a_process_of_its_own(lab: Lab) -> None:
    ran = lab.run(members(*counting(2)), solo=True)

    assert len(processes_in(lab, ran)) == 2
    assert not (lab.folder / "run").exists()


def test_members_on_a_device_are_charged_for_their_base_once(lab: Lab, tmp_path: Path) -> None:
    lab.devices = (card("a"),)
    marks = tmp_path / "marks"
    marks.mkdir()
    needs = Needs(gpu=1, vram_gib=10.0, base_gib=8.0, shares=True)
    flight = lab.start(
        members(*counting(8, waits_for=str(tmp_path / "go"), marks=str(marks)), needs=needs), max_in_flight=1
    )
    # Of 24 GiB, 20.4 may be shared: 8 for the base and 2 for each of six.
    until(lambda: len(joined(marks)) == 6, "not as many are there as there is room for")
    until(lambda: bool(flight.events("stage_blocked")), "nobody waits for room")
    (pid,) = {int(name.partition(".")[2]) for name in os.listdir(marks)}
    (device,) = lab.ledger.state().devices
    assert {holder.entry.owner.pid for holder in device.holders} == {pid}
    assert device.available_bytes < 2 * GIB
    # All six have 20 GiB, and as much of what is never promised as those are of what is.
    ceiling = f"at most {20 * GIB * device.device.total_bytes // device.device.usable_bytes} bytes"
    until(lambda: ceiling in lab.log("m0"), "no member is told how much all have")
    (tmp_path / "go").touch()

    assert set(flight.land().endings.values()) == {"ran"}
    assert lab.ledger.state().devices == ()


@pytest.mark.parametrize("is_on_device", [True, False])
def test_members_that_only_fit_with_few_of_them_in_a_pass_are_all_admitted_at_once(
    lab: Lab, tmp_path: Path, is_on_device: bool
) -> None:
    # A card of 24 GB, of which 21.9 GB may be shared; or a machine with as much memory.
    lab.devices = (card("a", total_bytes=24_564 * MIB),) if is_on_device else ()
    room_bytes = usable_bytes(24_564 * MIB, MemoryType.DISCRETE)
    lab.capacity = Capacity(cpu=4, memory_bytes=room_bytes)
    lab.use_meter(FakeMeter({device.uuid: device.total_bytes or 0 for device in lab.devices}))
    found = estimate_adapters(EIGHT).needs
    total_gib, base_gib = found.total_bytes / GIB, found.base_bytes / GIB
    needs = Needs(memory_gib=total_gib, base_memory_gib=base_gib)
    if is_on_device:
        needs = Needs(gpu=1, vram_gib=total_gib, base_gib=base_gib, shares=True)
    needs = changed(needs, state_gib=found.state_bytes / GIB, pass_gib=found.pass_bytes / GIB)

    def those_at_once(plan: Plan, marks: Path, count: int) -> list[str]:
        flight = lab.start(plan)
        until(lambda: len(joined(marks)) == count, f"not {count} are there")
        if count < len(plan.nodes):
            until(lambda: bool(flight.events("stage_blocked")), "nobody waits for room")
        there = os.listdir(marks)
        (tmp_path / "go").touch()
        assert set(flight.land().endings.values()) == {"ran"}
        (tmp_path / "go").unlink()
        return [name.partition(".")[2] for name in there]

    def eight(base: str) -> tuple[Plan, Path]:
        marks = tmp_path / base
        marks.mkdir()
        more = {"base": base, "waits_for": str(tmp_path / "go"), "marks": str(marks)}
        return members(*counting(8, **more), needs=needs), marks

    plan, marks = eight("whole")
    assert len(set(those_at_once(plan, marks, 4))) == 1, "each with all that it needs"
    assert "0 in a pass" in lab.log("m0")

    plan, marks = eight("divided")
    room = SharedProcessCapacity(device_bytes=room_bytes, memory_bytes=room_bytes)
    (estimate,) = estimate_shared_processes(plan.nodes, trials_of(plan), lambda _trial: ONE_BASE, room)
    assert (estimate.at_once, estimate.in_pass) == (8, 2)
    assert estimate.predicted_bytes <= room_bytes
    assert len(set(those_at_once(with_needs_of(plan, [estimate]), marks, 8))) == 1
    ceiling_bytes = None
    if is_on_device:
        ceiling_bytes = estimate.predicted_bytes * 24_564 * MIB // room_bytes
        assert ceiling_bytes <= 24_564 * MIB
    assert f"joined m7, at most {ceiling_bytes} bytes, 2 in a pass" in lab.log("m7")


def test_what_a_killed_run_held_of_a_device_is_given_back_though_its_shared_process_lives(
    lab: Lab, tmp_path: Path
) -> None:
    lab.devices = (card("a"),)
    marks = tmp_path / "marks"
    marks.mkdir()
    needs = Needs(gpu=1, vram_gib=10.0, base_gib=8.0, shares=True)
    args = counting(2, waits_for=str(tmp_path / "go"), marks=str(marks))
    flight = lab.start(members(*args, needs=needs))
    until(lambda: len(joined(marks)) == 2, "not everybody is there")
    # As a killed run does: its connection ends, and it gives nothing back itself.
    member = flight.executor._in_flight._running["m1"].attempt
    (kept,) = [one.entry for device in lab.ledger.state().devices for one in device.holders if "m1" in one.entry.job]
    member._link.shutdown(socket.SHUT_WR)  # type: ignore[attr-defined]
    until(
        lambda: kept.id not in {one.entry.id for device in lab.ledger.state().devices for one in device.holders},
        "what it held is not given back",
    )
    (tmp_path / "go").touch()

    assert set(flight.land().endings) == {"m0", "m1"}


def test_a_shared_process_that_breaks_for_everybody_says_why(lab: Lab) -> None:
    ran = lab.run(members(*counting(2), of=broken), keep_going=True)

    assert {node.message.partition(" (")[0] for node in ran.result.nodes.values()} == {"RuntimeError: nothing works"}


def test_a_shared_process_that_is_killed_at_its_cap_says_so_to_its_members(lab: Lab) -> None:
    lab.memory = MachineMemory(total_bytes=200 << 20, available_bytes=200 << 20)
    ran = lab.run(members(CountArgs(member="m0"), of=greedy))

    assert ran["m0"].cause is FailureCause.OOM_HOST
    assert ran["m0"].message == "out of memory: it was killed at its cap of 180.0 MiB"
    assert "hungry" in lab.log("m0")


def test_a_shared_process_that_hangs_and_has_nobody_left_is_ended(lab: Lab) -> None:
    lab.patience_s = 0.5
    ran = lab.run(members(CountArgs(member="m0"), of=hanging, timeout_s=0.3), grace_s=0.1)

    assert ran["m0"].cause is FailureCause.TIMEOUT


@pytest.mark.slow
def test_runs_that_come_and_go_while_shared_processes_end_always_find_one(lab: Lab, tmp_path: Path) -> None:
    processes: list[int] = []

    def come_and_go(number: int) -> None:
        with Lab(lab.folder, store=tmp_path / f"store{number}") as own:
            own.linger_s = 0.0
            for one in range(20):
                ran = own.run(members(CountArgs(member=f"{number}-{one}", to=1)))
                assert not ran.of_kind("stage_retrying")
                processes.extend(processes_in(own, ran))

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(processes) == 80


def _held_up(lab: Lab, tmp_path: Path, number: int) -> tuple[Flight, int]:
    """Start members that wait for a file, and give their shared process's process once all of them are there."""
    marks = tmp_path / "marks"
    marks.mkdir()
    flight = lab.start(members(*counting(number, waits_for=str(tmp_path / "go"), marks=str(marks))))
    until(lambda: len(joined(marks)) == number, "not everybody is there")
    return flight, int(os.listdir(marks)[0].partition(".")[2])
