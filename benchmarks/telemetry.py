"""How much of a core does telemetry of eight devices take at one sample a second?

The worker's own parts, at their own pace: the sampler with its child process, rows and rings on disk, alerts, and a
report every 30 s. NVIDIA's library is replaced by one that takes as long for each call as was published for the real
one (MangoHud 2104: utilisation 2.5 µs, memory 12 µs, fan 137 µs, process list 4.5 ms; others: 10 µs), all of it
processor time. Counted is the processor time of this process and of its child. Beside it a command for each sample, as
users of `nvidia-smi` have it: the start of an empty Python alone.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import harness
from harness import Figure, Row

from stoker.core.clock import SystemClock
from stoker.core.device import Backend, Device
from stoker.devices.meters import NvmlMeter
from stoker.devices.probes.nvidia import child_command
from stoker.devices.telemetry.recorder import TelemetryRecorder
from stoker.devices.telemetry.samples import DeviceSampler
from stoker.worker.telemetry import report_of

DEVICES = 8
MEASURED_S, QUICK_S = 60, 3
REPORT_EVERY = 30
MOST_OF_A_CORE = 0.005

LIBRARY = """
import time
class NVMLError(Exception): pass
nvmlMemory_v2 = 2
class Values:
    def __init__(self, **values): self.__dict__.update(values)
def taking(microseconds, value):
    def call(*arguments):
        until = time.perf_counter_ns() + int(microseconds * 1000)
        while time.perf_counter_ns() < until: pass
        return value
    return call
def nvmlInit(): pass
nvmlDeviceGetHandleByUUID = lambda uuid: uuid
nvmlDeviceGetUtilizationRates = taking(2.5, Values(gpu=97, memory=50))
nvmlDeviceGetMemoryInfo = taking(12, Values(total=1 << 36, used=1 << 35, free=1 << 35))
nvmlDeviceGetPowerUsage = taking(10, 388_000)
nvmlDeviceGetEnforcedPowerLimit = taking(10, 450_000)
nvmlDeviceGetTotalEnergyConsumption = taking(10, 1 << 30)
nvmlDeviceGetTemperature = taking(10, 71)
nvmlDeviceGetTemperatureThreshold = taking(10, 90)
nvmlDeviceGetClockInfo = taking(10, 2520)
nvmlDeviceGetCurrentClocksEventReasons = taking(10, 4)
nvmlDeviceGetTotalEccErrors = taking(10, 0)
nvmlDeviceGetFanSpeed = taking(137, 40)
nvmlDeviceGetComputeRunningProcesses = taking(4500, [])
"""


def main() -> int:
    bench = harness.start("telemetry", __doc__.splitlines()[0])
    seconds = QUICK_S if bench.quick else MEASURED_S
    home = bench.home("telemetry")
    home.mkdir(parents=True, exist_ok=True)
    share, parent_share = measure(home, seconds, is_quick=bench.quick)
    bench.rows.append(
        Row(
            question=f"share of a core, {DEVICES} devices at 1 Hz, {seconds} s",
            against="0.5 %",
            unit="of a core",
            ours=Figure.of([share]),
            theirs=Figure.of([MOST_OF_A_CORE]),
            at_most=1.0,
        )
    )
    bench.rows.append(
        Row(
            question="the same",
            against="a command for each sample",
            unit="of a core",
            ours=Figure.of([share]),
            theirs=Figure.of([command_share(2 if bench.quick else 20)]),
        )
    )
    sizes = sum(file.stat().st_size for file in home.rglob("*.ring"))
    bench.notes.append(f"{100 * parent_share:.2f} % in the worker, the rest in its child; {sizes:,} bytes of files.")
    return bench.finish()


def measure(home: Path, seconds: int, *, is_quick: bool) -> tuple[float, float]:
    """Return the share of a core of worker and child together, and of the worker alone; unpaced in a smoke run."""
    (home / "pynvml.py").write_text(LIBRARY)
    command = child_command(str(home), "meter", str(os.getpid()))
    clock = SystemClock()
    devices = [Device(uuid=f"GPU-{number}", backend=Backend.CUDA) for number in range(DEVICES)]
    sampler = DeviceSampler(lambda: devices, {}, nvml=NvmlMeter({}, command=lambda: command))
    recorder = TelemetryRecorder(str(home / "rings"), sampler.sample, dict, clock=clock)
    # The child's start is counted once: it lasts as long as the worker.
    recorder.record()
    before_s, children_s = time.process_time(), child_time_s(os.getpid())
    for at in range(seconds):
        if not is_quick:
            time.sleep(1.0 - time.time() % 1.0)
        recorder.record()
        if at % REPORT_EVERY == REPORT_EVERY - 1:
            taken = recorder.take()
            report_of(taken, taken.rows, worker="desk", names={}, wall_s=clock.wall_s()).model_dump_json()
    ours_s, theirs_s = time.process_time() - before_s, child_time_s(os.getpid()) - children_s
    sampler.close()
    return (ours_s + theirs_s) / seconds, ours_s / seconds


def child_time_s(parent: int) -> float:
    """Return the processor time of our children that run."""
    ticks = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def command_share(count: int) -> float:
    """Return the share of a core of one command a second."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(count):
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count


if __name__ == "__main__":
    sys.exit(main())
