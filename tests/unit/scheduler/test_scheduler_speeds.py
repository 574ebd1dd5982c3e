"""Speeds by the words of a name: system B's figures, whatever else the name says."""

from __future__ import annotations

import pytest

from stoker.scheduler.score import CPU_SPEED, speed_of


@pytest.mark.parametrize(
    ("name", "speed"),
    [
        ("rtx-4090", 1.0),
        ("NVIDIA GeForce RTX 4090", 1.0),
        ("RTX4090", 1.0),
        ("RTX 4080", 0.72),
        ("NVIDIA GeForce RTX 3090", 0.55),
        ("rtx_3080", 0.45),
        ("NVIDIA A100-SXM4-80GB", 1.2),
        ("NVIDIA H100 80GB HBM3", 2.0),
        ("Jetson AGX Orin", 0.06),
        ("jetson-orin", 0.06),
        ("NVIDIA Jetson Orin Nano", 0.06),
        ("Jetson Nano", 0.02),
        ("something new", 0.5),
        ("", 0.5),
        ("NVIDIA H200", 2.0),
        ("NVIDIA GeForce RTX 3080 Ti", 0.51),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 0.4),
        ("NVIDIA RTX 6000 Ada Generation", 1.1),
        ("NVIDIA L40S", 1.11),
        ("AMD Instinct MI300X", 2.64),
    ],
)
def test_a_name_says_how_fast_a_device_is(name: str, speed: float) -> None:
    assert speed_of(name) == speed


def test_a_slice_of_a_device_is_that_part_of_it() -> None:
    assert speed_of("NVIDIA A100-SXM4-40GB MIG 2g.10gb") == pytest.approx(1.2 * 2 / 7)


def test_a_cpu_is_a_hundredth() -> None:
    assert CPU_SPEED == 0.01
