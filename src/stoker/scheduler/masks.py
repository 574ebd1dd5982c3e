"""Which shapes fit a node now, as one number with a bit for each shape.

A shape's bit is its number on the board. Whoever keeps a queue lays the answer over the numbers of the shapes that
wait, and has the next job without looking at any.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.scheduler.fit import shares
from stoker.scheduler.known import Known
from stoker.scheduler.pools import AlonePool, Base, DeviceKind, Idle, Policy, allows, score_alone
from stoker.scheduler.shapes import Shape
from stoker.scheduler.shelves import Gate, amount_at


class Masks:
    """Bits by what decides them, each worked out when first asked for."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._shapes: list[Shape] = []
        self.version = 0
        """How many shapes there are."""
        self.on_cpu = 0
        """Those that may run on a CPU."""
        self._alone: dict[Idle, int] = {}
        self._shared: dict[tuple[DeviceKind, float], int] = {}
        self._beside: dict[tuple[DeviceKind, Base, float], int] = {}
        self._admitted: dict[tuple[Policy, Gate], int] = {}

    def add(self, shape: Shape) -> None:
        """Take in the next shape."""
        if shape.takes_cpu:
            self.on_cpu |= 1 << len(self._shapes)
        self._shapes.append(shape)
        self.version += 1
        self._alone.clear()
        self._shared.clear()
        self._beside.clear()
        self._admitted.clear()

    def admitted(self, policy: Policy, gate: Gate) -> int:
        """Those that a node's policy, RAM and cores admit."""
        bits = self._admitted.get((policy, gate))
        if bits is None:
            (ram, cores), lists = gate, self._known.host_lists
            bits = self._admitted[policy, gate] = self._bits(
                lambda shape: shape.ram_bytes <= ram and shape.cores <= cores and allows(shape, policy, lists)
            )
        return bits

    def alone(self, pool: AlonePool, idle: Idle) -> int:
        """Those for which these idle devices are enough."""
        bits = self._alone.get(idle)
        if bits is None:
            bits = self._alone[idle] = self._bits(lambda shape: score_alone(shape, pool.kinds, idle) > 0)
        return bits

    def shared(self, kind: DeviceKind, room_bytes: int) -> int:
        """Those that may share a device with so much room."""
        left = amount_at(self._known.vram_amounts, room_bytes)
        bits = self._shared.get((kind, left))
        if bits is None:
            bits = self._shared[kind, left] = self._bits(
                lambda shape: shape.vram_bytes <= left and _may_share(shape, kind)
            )
        return bits

    def beside(self, kind: DeviceKind, base: Base, room_bytes: int) -> int:
        """Those that may share a device with so much room and their base model on it."""
        left = amount_at(self._known.vram_amounts, room_bytes)
        bits = self._beside.get((kind, base, left))
        if bits is None:
            bits = self._beside[kind, base, left] = self._bits(_on_base(kind, base, left))
        return bits

    def _bits(self, holds: Callable[[Shape], bool]) -> int:
        return sum(1 << number for number, shape in enumerate(self._shapes) if holds(shape))


def _on_base(kind: DeviceKind, base: Base, left: float) -> Callable[[Shape], bool]:
    def holds(shape: Shape) -> bool:
        is_same = (shape.base, shape.base_bytes) == base
        return is_same and shape.increment_bytes <= left and _may_share(shape, kind)

    return holds


def _may_share(shape: Shape, kind: DeviceKind) -> bool:
    return shape.takes_devices and shape.backend is kind.backend and shares(shape, kind)
