"""On a machine with an NVIDIA GPU: samples agree with nvidia-smi, work is seen, and sampling is cheap. Skips elsewhere.

Needs pytest and nothing else of ours; with `-s` it prints a sample and its cost:

    PYTHONPATH=src python -m pytest --noconftest -s tests/system/test_telemetry_on_gpu.py
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.device import MIB, Backend, Device
from stoker.devices.meters import NvmlMeter
from stoker.devices.probes import nvidia
from stoker.devices.telemetry.samples import DeviceSample, DeviceSampler

HAS_GPU = any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "nvidia0", "dxg"))
HAS_NVML = bool(nvidia.library_folder())
HAS_SMI = shutil.which("nvidia-smi") is not None
HAS_TORCH = importlib.util.find_spec("torch") is not None
SAME_BYTES = 64 * MIB
MOST_OF_A_CORE = 0.005
BUSY = """
import torch, time
rows = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("ready", flush=True)
until = time.monotonic() + 8
while time.monotonic() < until:
    for _ in range(20): rows @ rows
    torch.cuda.synchronize()
"""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (HAS_GPU and HAS_NVML), reason="there is no NVIDIA device, or no nvidia-ml-py, here"),
]


def ask_smi(*words: str) -> str:
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=True).stdout


def uuids() -> list[str]:
    return ask_smi("--query-gpu=uuid", "--format=csv,noheader").split()


@pytest.fixture
def sampler() -> Iterator[DeviceSampler]:
    if not HAS_SMI:
        pytest.skip("nvidia-smi is not here")
    devices = [Device(uuid=uuid, backend=Backend.CUDA) for uuid in uuids()]
    made = DeviceSampler(lambda: devices, os.environ, nvml=NvmlMeter(os.environ))
    yield made
    made.close()


def card(sampler: DeviceSampler, now_s: float) -> DeviceSample:
    found = [one for one in sampler.sample(now_s) if one.uuid]
    assert found, "the driver did not answer"
    return found[0]


def test_a_sample_agrees_with_nvidia_smi(sampler: DeviceSampler) -> None:
    one = card(sampler, 0.0)
    print(one)
    fields = "memory.total,memory.used,temperature.gpu,power.limit"
    line = ask_smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={one.uuid}")
    said = [part.strip() for part in line.split(",")]
    assert one.memory_total_bytes == pytest.approx(int(said[0]) * MIB, abs=2 * MIB)
    assert one.memory_used_bytes == pytest.approx(int(said[1]) * MIB, abs=SAME_BYTES)
    assert one.temperature_c == pytest.approx(float(said[2]), abs=5.0)
    assert one.power_limit_w == pytest.approx(float(said[3]), abs=1.0)
    assert one.power_w is not None
    assert 0.0 < one.power_w < 2000.0
    assert one.throttle is not None


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not here")
def test_work_is_seen_as_utilisation_power_and_memory(sampler: DeviceSampler) -> None:
    idle = card(sampler, 0.0)
    program = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline().strip() == "ready"
        busiest = idle
        until_s = time.monotonic() + 6.0
        while time.monotonic() < until_s:
            now = card(sampler, 60.0)
            if (now.power_w or 0.0) > (busiest.power_w or 0.0):
                busiest = now
            time.sleep(0.2)
    finally:
        program.communicate(timeout=60)
    print(busiest)
    assert (busiest.utilisation_percent or 0.0) > 50.0
    assert (busiest.power_w or 0.0) > 1.5 * (idle.power_w or 0.0)
    assert (busiest.memory_used_bytes or 0) > (idle.memory_used_bytes or 0) + 100 * MIB


def test_eight_devices_would_take_less_than_half_a_percent_of_a_core(sampler: DeviceSampler) -> None:
    card(sampler, 0.0)
    count = 300
    before_s, children_s = time.process_time(), _children_s()
    for second in range(1, count + 1):
        card(sampler, float(second))
    taken_s = time.process_time() - before_s + _children_s() - children_s
    devices = len(uuids())
    share = taken_s / count / devices * 8
    print(f"{1e6 * taken_s / count:.0f} µs of processor time for {devices} devices; {100 * share:.3f} % for eight")
    assert share < MOST_OF_A_CORE


def _children_s() -> float:
    ticks = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
