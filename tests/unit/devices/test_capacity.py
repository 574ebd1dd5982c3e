from __future__ import annotations

from stoker.core.device import GIB
from stoker.devices.admission import capacity_here
from stoker.host.resources import memory_total_bytes, usable_cores


def test_memory_leaves_the_machine_its_floor() -> None:
    capacity = capacity_here()
    total = memory_total_bytes() or 0
    assert capacity.memory_bytes == total - min(6 * GIB, total // 10)
    assert capacity.cpu == usable_cores()
    assert (capacity.network, capacity.disk) == (4, 2)
