"""What changes on a node from minute to minute without any job of ours: memory that others hold, and what is closed."""

from __future__ import annotations

from typing import NamedTuple


class MeasuredNode(NamedTuple):
    """One node, as it was measured just now. `NodeOffer` and `DeviceOffer` say what each means."""

    ram_bytes: int | None
    closed: str = ""
    devices: tuple[tuple[int | None, str], ...] = ()
    """Of each device, in the node's order: its measured free memory, and why it is closed."""
