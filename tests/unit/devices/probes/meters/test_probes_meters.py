from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.device import GIB, Backend, Device, MemoryType, TriState, TriStateAnswer
from stoker.devices.ledger.reservations import FakeMeter, NoMeter
from stoker.devices.meters import AmdMeter, NvmlMeter, open_meter
from stoker.devices.probes import nvidia
from stoker.devices.probes.readers import KernelFiles
from stoker.host.identity import read_row
from tests.fakes.machine import FileMachine

LIBRARY = """
import os, time
class NVMLError(Exception): pass
class Memory:
    def __init__(self, free): self.free = free
class Row:
    def __init__(self, pid, size): self.pid, self.usedGpuMemory = pid, size
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid):
    if uuid == "hangs": time.sleep(100)
    if uuid == "dies": os._exit(3)
    if uuid == "lost": raise NVMLError("GPU is lost")
    return uuid
def nvmlDeviceGetMemoryInfo(handle, version=None):
    return Memory(os.getpid() if handle == "pid" else 1234)
def nvmlDeviceGetComputeRunningProcesses(handle): return [Row(7, 100), Row(8, None), Row(9, 5)]
def nvmlDeviceGetGraphicsRunningProcesses(handle):
    if handle == "part": raise NVMLError("Not Supported")
    return [Row(7, 150), Row(10, 20)]
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "pynvml.py").write_text(LIBRARY)
    return tmp_path


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def meter(library: Path, clock: FakeClock):
    made = NvmlMeter(
        {},
        command=lambda: nvidia.child_command(str(library), "meter", str(os.getpid())),
        limit_s=5.0,
        clock=clock,
    )
    yield made
    made.close()


def is_gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        row = read_row(pid)
        if row is None or row.is_gone:
            return True
        os.sched_yield()
    return False


def test_memory_is_measured_by_a_child_that_stays(meter: NvmlMeter) -> None:
    assert meter.free_bytes("GPU-1") == 1234
    child = meter.free_bytes("pid")
    assert child == meter.free_bytes("pid")
    assert child != os.getpid()


def test_a_process_in_both_lists_counts_once_and_one_without_a_size_not_at_all(meter: NvmlMeter) -> None:
    assert meter.used_by("GPU-1") == {7: 150, 9: 5, 10: 20}
    assert meter.used_by("part") == {7: 100, 9: 5}


def test_a_device_that_is_lost_is_not_known_and_the_child_goes_on(meter: NvmlMeter) -> None:
    child = meter.free_bytes("pid")
    assert meter.free_bytes("lost") is None
    assert meter.used_by("lost") is None
    assert meter.free_bytes("pid") == child


@pytest.mark.timing
@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_a_child_that_hangs_or_dies_is_replaced_after_a_rest(meter: NvmlMeter, clock: FakeClock, how: str) -> None:
    child = meter.free_bytes("pid")
    assert child is not None
    meter._limit_s = 0.2
    begun = time.monotonic()
    assert meter.free_bytes(how) is None
    assert time.monotonic() - begun < 4
    assert is_gone(child)
    meter._limit_s = 5.0
    assert meter.free_bytes("GPU-1") is None
    clock.advance(11)
    assert meter.free_bytes("GPU-1") == 1234
    assert meter.free_bytes("pid") != child


@pytest.mark.timing
def test_a_driver_that_keeps_failing_is_asked_less_and_less_often(meter: NvmlMeter, clock: FakeClock) -> None:
    for rest_s in (10, 20, 40):
        assert meter.free_bytes("dies") is None
        clock.advance(rest_s - 1)
        assert meter.free_bytes("GPU-1") is None
        clock.advance(2)
    assert meter.free_bytes("GPU-1") == 1234
    assert meter.free_bytes("dies") is None
    clock.advance(11)
    assert meter.free_bytes("GPU-1") == 1234


def test_many_threads_may_ask_at_once(meter: NvmlMeter) -> None:
    answers: list[object] = []

    def ask() -> None:
        answers.extend((meter.free_bytes("GPU-1"), meter.used_by("part")) for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(1234, {7: 100, 9: 5})] * 80


def test_the_child_outlives_the_thread_that_started_it(meter: NvmlMeter) -> None:
    told: list[int | None] = []
    thread = threading.Thread(target=lambda: told.append(meter.free_bytes("pid")))
    thread.start()
    thread.join()
    assert [meter.free_bytes("pid")] == told


def test_a_closed_meter_leaves_nothing_and_starts_again(meter: NvmlMeter) -> None:
    child = meter.free_bytes("pid")
    assert child is not None
    meter.close()
    meter.close()
    assert is_gone(child)
    assert meter.free_bytes("pid") not in (None, child)


def test_a_meter_that_nobody_holds_any_more_ends_its_child(library: Path) -> None:
    meter = NvmlMeter({}, command=lambda: nvidia.child_command(str(library), "meter", str(os.getpid())))
    child = meter.free_bytes("pid")
    assert child is not None
    del meter
    assert is_gone(child)


def test_after_a_fork_each_process_has_a_child_of_its_own(meter: NvmlMeter) -> None:
    mine = meter.free_bytes("pid")
    reading, writing = os.pipe()
    forked = os.fork()
    if not forked:
        theirs = meter.free_bytes("pid")
        os.write(writing, f"{theirs} {meter.free_bytes('GPU-1')}".encode())
        meter.close()
        os._exit(0)
    os.waitpid(forked, 0)
    said, free = os.read(reading, 100).split()
    os.close(reading)
    os.close(writing)
    assert free == b"1234"
    assert int(said) != mine
    assert meter.free_bytes("pid") == mine


PARENT = """
import ctypes, os, sys
from stoker.devices.probes import nvidia
from stoker.devices.meters import NvmlMeter
meter = NvmlMeter({}, command=lambda: nvidia.child_command(sys.argv[1], "meter", str(os.getpid())))
child = meter.free_bytes("pid")
libc = ctypes.CDLL(None)
# Forked behind Python's back, so that it goes on holding our ends of the pipes.
forked = libc.fork()
if forked == 0:
    libc.pause()
print(child, forked, flush=True)
sys.stdin.read()
"""


def test_the_child_goes_with_its_parent_even_by_kill_9(library: Path) -> None:
    import subprocess

    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child, forked = map(int, parent.stdout.readline().split())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    try:
        assert is_gone(child)
        assert not is_gone(forked, within_s=0.01)
    finally:
        os.kill(forked, signal.SIGKILL)
        parent.stdin.close()
        parent.stdout.close()


def test_a_machine_without_the_library_measures_nothing(tmp_path: Path) -> None:
    asked: list[int] = []
    meter = NvmlMeter({}, command=lambda: asked.append(1))
    assert (meter.free_bytes("GPU-1"), meter.used_by("GPU-1")) == (None, None)
    assert len(asked) == 1
    without = NvmlMeter({}, command=lambda: nvidia.child_command(str(tmp_path), "meter", str(os.getpid())))
    assert without.free_bytes("GPU-1") is None


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        "echo nonsense; exec /bin/sleep 9",
        "exec /bin/cat /dev/zero",
        "echo 'stoker-probe:[]'",
        "exec /bin/cat",
    ],
)
def test_a_child_that_talks_nonsense_is_not_believed(script: str) -> None:
    meter = NvmlMeter({}, command=lambda: ["/bin/sh", "-c", script], limit_s=0.2)
    assert meter.free_bytes("GPU-1") is None


def test_a_command_that_can_not_be_started_measures_nothing() -> None:
    meter = NvmlMeter({}, command=lambda: ["/no/such/python"])
    assert meter.used_by("GPU-1") is None


def test_a_fake_meter_gives_back_what_it_was_told() -> None:
    meter = FakeMeter({"FAKE-1": 100})
    meter.use("FAKE-1", 7, 30)
    meter.use("FAKE-1", 8, 90)
    assert (meter.free_bytes("FAKE-1"), meter.used_by("FAKE-1")) == (0, {7: 30, 8: 90})
    meter.use("FAKE-1", 8, 0)
    assert (meter.free_bytes("FAKE-1"), meter.used_by("FAKE-1")) == (70, {7: 30})
    assert (meter.free_bytes("GPU-1"), meter.used_by("GPU-1")) == (None, None)
    assert (NoMeter().free_bytes("GPU-1"), NoMeter().used_by("GPU-1")) == (None, None)


def test_amds_memory_is_read_from_files(tmp_path: Path) -> None:
    machine = FileMachine(tmp_path)
    machine.amd(total=1000, used=400)
    machine.file("/sys/class/kfd/kfd/proc/4711/vram_4672", "300\n")
    machine.file("/sys/class/kfd/kfd/proc/4712/vram_4672", "0\n")
    meter = AmdMeter({"GPU-1": "0000:03:00.0", "GPU-2": "0000:99:00.0"}, KernelFiles(str(tmp_path)))
    assert (meter.free_bytes("GPU-1"), meter.used_by("GPU-1")) == (600, {4711: 300})
    for unknown in ("GPU-2", "GPU-3"):
        assert (meter.free_bytes(unknown), meter.used_by(unknown)) == (None, None)


def device(uuid: str, backend: Backend, **fields) -> Device:
    yes = TriStateAnswer(verdict=TriState.YES)
    return Device(uuid=uuid, backend=backend, name="x", installed=yes, visible=yes, usable=yes, **fields)


def test_each_device_is_measured_by_whoever_knows_it(tmp_path: Path) -> None:
    machine = FileMachine(tmp_path)
    machine.amd(total=1000, used=400)
    meter = open_meter(
        [
            device("FAKE-cuda-0", Backend.CUDA, is_fake=True, total_bytes=24 * GIB),
            device("GPU-1", Backend.ROCM, pci="0000:03:00.0"),
            device("LOCAL-1", Backend.METAL, memory_type=MemoryType.UNIFIED),
            device("LOCAL-2", Backend.ONEAPI),
        ],
        {},
        files=str(tmp_path),
    )
    assert meter.free_bytes("FAKE-cuda-0") == 24 * GIB
    assert meter.used_by("FAKE-cuda-0") == {}
    assert meter.free_bytes("GPU-1") == 600
    assert meter.free_bytes("LOCAL-1") == 51200000 * 1024
    for unknown in ("LOCAL-2", "GPU-nobody"):
        assert (meter.free_bytes(unknown), meter.used_by(unknown)) == (None, None)
    meter.close()
