"""What one run may hand out on this machine: cores and memory. Devices are the machine's: see `probes` and `ledger`."""

from __future__ import annotations

from stoker.hardware.admission import floor_bytes
from stoker.host.disk import memory_total_bytes, usable_cores
from stoker.model.resources import Capacity


def capacity_here() -> Capacity:
    """Give what stages of one run may hold together; memory leaves the floor of min(6 GiB, a tenth) to the machine."""
    total = memory_total_bytes() or 0
    return Capacity(cpu=usable_cores(), memory_bytes=total - floor_bytes(total))
