"""Samples by a real child with a library of recorded answers, by kernel files, and what happens when a driver hangs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.device import Backend, Device
from stoker.devices.meters import NvmlMeter
from stoker.devices.probes import nvidia
from stoker.devices.probes.readers import KernelFiles
from stoker.devices.telemetry.recorder import TelemetryRecorder
from stoker.devices.telemetry.samples import AmdSensors, DeviceSample, DeviceSampler, HostSensors, read_nvml
from stoker.devices.telemetry.series import ON_THE_MACHINE, RingFile, stored_rings

LIBRARY = """
import time
class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass
nvmlMemory_v2 = 2
class Of:
    def __init__(self, **values): self.__dict__.update(values)
calls = []
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid):
    if uuid == "GPU-lost": raise NVMLError("GPU is lost")
    return uuid
def nvmlDeviceGetMemoryInfo(handle, version=None): return Of(total=1000, used=250, free=700)
def nvmlDeviceGetUtilizationRates(handle):
    if handle == "GPU-hangs": time.sleep(100)
    return Of(gpu=97, memory=5)
def nvmlDeviceGetPowerUsage(handle): return 388_000
def nvmlDeviceGetEnforcedPowerLimit(handle): return 450_000
def nvmlDeviceGetTotalEnergyConsumption(handle): raise NVMLError_NotSupported("Not Supported")
def nvmlDeviceGetTemperature(handle, kind): return 71
def nvmlDeviceGetTemperatureThreshold(handle, kind): return 90
def nvmlDeviceGetClockInfo(handle, kind): return 2520
def nvmlDeviceGetCurrentClocksEventReasons(handle): return 0x4 | 0x40
def nvmlDeviceGetFanSpeed(handle): calls.append("fan"); return 10 * len(calls)
def nvmlDeviceGetTotalEccErrors(handle, kind, counter): raise NVMLError_NotSupported("Not Supported")
def nvmlDeviceGetComputeRunningProcesses(handle): return [1, 2]
"""


def device(uuid: str, **more: object) -> Device:
    return Device(**{"uuid": uuid, "backend": Backend.CUDA, **more})  # type: ignore[arg-type]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def meter(tmp_path: Path, clock: FakeClock) -> Iterator[NvmlMeter]:
    (tmp_path / "pynvml.py").write_text(LIBRARY)
    command = nvidia.child_command(str(tmp_path), "meter", str(os.getpid()))
    made = NvmlMeter({}, command=lambda: command, limit_s=5.0, clock=clock)
    yield made
    made.close()


def test_a_card_is_sampled_by_a_child_and_what_it_lacks_is_unknown(meter: NvmlMeter):
    sampler = DeviceSampler(
        lambda: [device("GPU-1"), device("GPU-lost"), device("GPU-fake", is_fake=True)], {}, nvml=meter
    )
    host, one, lost = sampler.sample(0.0)
    assert host.uuid == ""
    assert one == DeviceSample(
        uuid="GPU-1",
        utilisation_percent=97.0,
        memory_total_bytes=1000,
        memory_used_bytes=250,
        power_w=388.0,
        power_limit_w=450.0,
        temperature_c=71.0,
        slowdown_c=90.0,
        clock_mhz=2520.0,
        throttle=("power limit", "heat (hardware)"),
        fan_percent=10.0,
        processes=2,
    )
    assert one.is_slowed
    assert lost == DeviceSample(uuid="GPU-lost", error="GPU is lost")
    # The fan is slow to ask: its last value stays for ten seconds.
    assert sampler.sample(9.0)[1].fan_percent == 10.0
    assert sampler.sample(10.0)[1].fan_percent == 20.0


@pytest.mark.timing
def test_a_driver_that_hangs_costs_the_samples_of_its_devices_and_nothing_else(meter: NvmlMeter, clock: FakeClock):
    devices = [device("GPU-hangs")]
    sampler = DeviceSampler(lambda: devices, {}, nvml=meter)
    meter._limit_s = 0.2
    assert [one.uuid for one in sampler.sample(0.0)] == [""]
    meter._limit_s = 5.0
    devices[:] = [device("GPU-1")]
    assert [one.uuid for one in sampler.sample(1.0)] == [""]
    clock.advance(11.0)
    assert [one.uuid for one in sampler.sample(2.0)] == ["", "GPU-1"]


def test_values_that_are_none_of_their_kind_are_left_out():
    row = {
        "utilisation": 255,
        "memory": [1],
        "power_mw": -1,
        "temperature_c": "hot",
        "throttle": "x",
        "clock_mhz": True,
    }
    assert read_nvml("a", row) == DeviceSample(uuid="a")


def test_amd_is_read_from_the_kernels_files(tmp_path: Path):
    pci = "0000:03:00.0"
    folder = tmp_path / "sys/devices" / pci
    sensors = folder / "hwmon/hwmon3"
    sensors.mkdir(parents=True)
    card = tmp_path / "sys/class/drm/card1"
    card.mkdir(parents=True)
    (card / "device").symlink_to(folder)
    values = {"gpu_busy_percent": 42, "mem_info_vram_total": 1000, "mem_info_vram_used": 400}
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    for name, value in {"power1_average": 150_000_000, "power1_cap": 300_000_000, "temp1_input": 65_000}.items():
        (sensors / name).write_text(f"{value}\n")
    found = AmdSensors(KernelFiles(str(tmp_path))).sample(device("GPU-a", backend=Backend.ROCM, pci=pci))
    assert found == DeviceSample(
        uuid="GPU-a",
        utilisation_percent=42.0,
        memory_total_bytes=1000,
        memory_used_bytes=400,
        power_w=150.0,
        power_limit_w=300.0,
        temperature_c=65.0,
    )
    assert AmdSensors(KernelFiles(str(tmp_path))).sample(device("GPU-b", pci="0000:04:00.0")) is None


def test_the_host_is_busy_by_the_time_between_two_samples(tmp_path: Path):
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\n")
    (proc / "loadavg").write_text("1.50 1.0 1.0 1/2 3\n")
    host = HostSensors(str(tmp_path))
    (proc / "stat").write_text("cpu 100 0 100 700 100 0 0 0 50 0\ncpu0 1\n")
    assert host.sample(0.0).utilisation_percent is None
    (proc / "stat").write_text("cpu 150 0 150 760 140 0 0 0 50 0\n")
    found = host.sample(1.0)
    assert found.utilisation_percent == pytest.approx(50.0)
    assert (found.memory_total_bytes, found.memory_used_bytes, found.load) == (1_024_000, 409_600, 1.5)


def test_a_recorder_stores_rows_reports_them_once_and_keeps_what_was_not_delivered(tmp_path: Path, clock: FakeClock):
    held: dict[str, int] = {"GPU-1": 1}
    one = DeviceSample(uuid="GPU-1", temperature_c=95.0, power_w=100.0)
    recorder = TelemetryRecorder(
        str(tmp_path / "telemetry"), lambda _now_s: [one], lambda: held, clock=clock, name_of=lambda _uuid: "Card"
    )
    changes = []
    for _ in range(25):
        changes.append(recorder.record())
        clock.advance(1.0)
    assert changes.count(True) == 1
    taken = recorder.take()
    assert [row.count for row in taken.rows["GPU-1"]] == [10, 10]
    assert [alert.severity for alert in taken.alerts] == [80]
    assert recorder.take().rows == {}
    recorder.put_back(taken.rows)
    assert recorder.take().rows == taken.rows
    ring = stored_rings(str(tmp_path / "telemetry"), ON_THE_MACHINE)[0]
    assert isinstance(ring, RingFile)
    assert ring.about() == {"uuid": "GPU-1", "name": "Card"}
    assert len(ring.read(1, 0, clock.wall_s())) == 25
    clock.advance(60.0)
    assert recorder.take().samples == ()


def test_a_disk_that_refuses_is_no_reason_to_stop(tmp_path: Path, clock: FakeClock):
    (tmp_path / "telemetry").write_text("in the way")
    one = DeviceSample(uuid="", utilisation_percent=1.0)
    recorder = TelemetryRecorder(str(tmp_path / "telemetry"), lambda _now_s: [one], dict, clock=clock)
    assert recorder.record() is False
    assert recorder.take().samples == (one,)
