from __future__ import annotations

from pathlib import Path

import pytest

from stoker.hardware.capacity import capacity_here, visible_gpus
from stoker.host.disk import memory_total_bytes, usable_cores
from stoker.model.resources import GIB


@pytest.fixture
def driver(tmp_path: Path) -> str:
    """A driver's list of four devices."""
    for bus in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"):
        (tmp_path / bus).mkdir()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("visible", "slots"),
    [
        (None, ("0", "1", "2", "3")),
        ("", ()),
        (" ", ()),
        ("2", ("2",)),
        ("3,1", ("3", "1")),
        (" 0 , 2 ", ("0", "2")),
        ("GPU-8e7,GPU-11a", ("GPU-8e7", "GPU-11a")),
        ("-1", ()),
        ("0,-1,2", ("0",)),
        ("0,9,1", ("0",)),
        ("0,0,1", ("0", "1")),
        ("NoDevFiles", ("NoDevFiles",)),
    ],
)
def test_gpu_slots_are_the_devices_that_the_variable_leaves(
    driver: str, visible: str | None, slots: tuple[str, ...]
) -> None:
    assert visible_gpus(visible, driver) == slots


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert visible_gpus(None, str(tmp_path / "none")) == ()
    assert visible_gpus("0,1", str(tmp_path / "none")) == ()


def test_memory_leaves_the_machine_its_floor(tmp_path: Path) -> None:
    capacity = capacity_here({}, driver_folder=str(tmp_path / "none"))
    total = memory_total_bytes() or 0
    assert capacity.memory_bytes == total - min(6 * GIB, total // 10)
    assert capacity.cpu == usable_cores()
    assert (capacity.gpus, capacity.network, capacity.disk) == ((), 4, 2)


def test_the_environment_is_handed_in(driver: str) -> None:
    assert capacity_here({"CUDA_VISIBLE_DEVICES": "1"}, driver_folder=driver).gpus == ("1",)
