from __future__ import annotations

from typing import Any

import pytest

from stoker.core.capability import Capability
from stoker.core.device import GIB
from stoker.views.device_lines import devices_text, ram_text, short_name
from tests.unit.engine.lab import card


def cards(*free_gib: float | None, name: str = "NVIDIA GeForce RTX 4090", total: int | None = 24 * GIB) -> Any:
    return [
        card(f"GPU-{number}", name=name, total_bytes=total, free_bytes=None if free is None else int(free * GIB))
        for number, free in enumerate(free_gib)
    ]


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (cards(23.1), "RTX 4090, 23.1 of 24.0 GiB free"),
        (cards(23.1, 23.1), "2 x RTX 4090, 23.1 of 24.0 GiB free"),
        (cards(23.1, 4.0), "2 x RTX 4090, 23.1 and 4.0 of 24.0 GiB free"),
        (cards(1.0, 2.0, 3.0), "3 x RTX 4090, 1.0, 2.0 and 3.0 of 24.0 GiB free"),
        (cards(1.0, 9.0, 3.0, 4.0), "4 x RTX 4090, 1.0 to 9.0 of 24.0 GiB free"),
        (cards(None), "RTX 4090, 24.0 GiB"),
        (cards(5.0, None), "2 x RTX 4090, 24.0 GiB"),
        (cards(None, total=None), "RTX 4090"),
        ([*cards(20.0), *cards(139.0, name="NVIDIA H200", total=140 * GIB)],
         "RTX 4090, 20.0 of 24.0 GiB free, H200, 139.0 of 140.0 GiB free"),
    ],
    ids=["one", "alike", "two", "three", "four", "unmeasured", "half-measured", "unsized", "mixed"],
)  # fmt: skip
def test_devices_are_told_with_what_is_free(devices: Any, text: str) -> None:
    assert devices_text(devices) == text


def test_a_device_without_a_name_is_called_by_what_it_speaks() -> None:
    assert short_name(card("a", name="")) == "cuda"
    assert short_name(card("a", name="Fake cuda device")) == "Fake cuda device"


@pytest.mark.parametrize(
    ("total", "available", "text"),
    [
        (32 * GIB, 20 * GIB, "20.0 GiB of 32.0 GiB free"),
        (32 * GIB, None, "32.0 GiB"),
        (None, None, "unknown"),
    ],
    ids=["known", "unmeasured", "unknown"],
)
def test_ram_is_told_as_far_as_it_is_known(total: int | None, available: int | None, text: str) -> None:
    machine = Capability(hostname="h", os="o", arch="a", ram_total_bytes=total, ram_available_bytes=available)
    assert ram_text(machine) == text
