from __future__ import annotations

import pytest

from stoker.core.device import Backend, Device, TriState, TriStateAnswer
from stoker.gang.owner import as_numbered

YES = TriStateAnswer(verdict=TriState.YES)


def device(index: int, backend: Backend = Backend.CUDA) -> Device:
    return Device(
        uuid=f"GPU-{index}{index}-x", backend=backend, name="H", index=index, installed=YES, visible=YES, usable=YES
    )


DEVICES = [device(2), device(0), device(1), device(0, Backend.ROCM)]


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-11-x,0", [1, 0]),
        ("GPU-2", [2]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
    ],
)
def test_devices_have_the_numbers_that_a_program_sees(visible, order):
    assert [found.index for found in as_numbered(DEVICES, visible)] == order
