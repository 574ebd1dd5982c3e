"""The roll: all machines that may be given work, what their live leases hold of them, and which shapes fit each now.

Nothing here chooses. Jobs are counted in and out on a `NodeIndex`; what fits a machine is asked of it again only after
something came, went or was measured there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

from stoker.coordinator.matching.heads import Seat
from stoker.model.devices import MIB, Backend
from stoker.model.errors import Bug
from stoker.model.frozen import changed
from stoker.model.requirements import WantedJob, Wish
from stoker.scheduler.node_index import NodeIndex, PlacedJob
from stoker.scheduler.offers import MeasuredNode, NodeOffer
from stoker.scheduler.shapes import Shape
from stoker.wire.leasing import Measured

_RAM_STEP_BYTES = 64 * MIB
"""RAM that others hold goes up and down by less all the time."""


class Machine:
    """One machine."""

    __slots__ = (
        "_offer",
        "backends",
        "closed",
        "drift",
        "ever",
        "ever_version",
        "fits",
        "fits_version",
        "free_bytes",
        "is_doubted",
        "name",
        "seen_bytes",
        "told",
    )

    def __init__(self, offer: NodeOffer, available_bytes: int | None, drift: tuple[str, ...] = ()) -> None:
        self.name = offer.node
        self.drift = drift
        """Where its declaration and what was found disagree."""
        self._offer = offer
        self.seen_bytes = available_bytes
        """RAM, as it was measured last: what was available, and what our jobs were promised then."""
        self.free_bytes = [device.free_bytes for device in offer.devices]
        self.told: Mapping[str, str] = {}
        """What the machine itself says is closed, and why; "" is all of it."""
        self.closed = offer.closed
        """Why it gets nothing now."""
        self.is_doubted = False
        """It declined something lately: nobody counts on it to take what fits it."""
        self.backends = frozenset(device.backend for device in offer.devices if not device.closed)
        self.fits = self.ever = 0
        """The shapes of which a job could start here now, and if none of ours ran here: as last asked."""
        self.fits_version = self.ever_version = -1
        """Which shapes were known then; below 0: something has changed since."""

    def idle(self) -> NodeOffer:
        """Give it with nothing running on it, as it was measured last."""
        measured = self.measured()
        return changed(
            self._offer,
            ram_bytes=measured.ram_bytes,
            closed=measured.closed,
            devices=tuple(
                changed(device, free_bytes=free_bytes, closed=closed)
                for device, (free_bytes, closed) in zip(self._offer.devices, measured.devices, strict=True)
            ),
        )

    def measure(self, measured: Measured, held_bytes: int) -> bool:
        """Take in what its worker measured while its jobs were promised so much RAM; says whether that is news.

        What it does not mention stays as it was.
        """
        seen_bytes, free_bytes, told = self.seen_bytes, self.free_bytes, measured.closed
        if measured.ram_available_bytes is not None:
            available_bytes = max(0, measured.ram_available_bytes) // _RAM_STEP_BYTES * _RAM_STEP_BYTES
            # Our own jobs have their part already.
            seen_bytes = available_bytes + held_bytes
        if measured.free_bytes:
            free_bytes = [
                _clamped(measured.free_bytes.get(device.uuid, known), device.total_bytes)
                for device, known in zip(self._offer.devices, free_bytes, strict=True)
            ]
        if seen_bytes == self.seen_bytes and free_bytes == self.free_bytes and told == self.told:
            return False
        self.seen_bytes, self.free_bytes = seen_bytes, free_bytes
        self.hear(told)
        return True

    def hear(self, told: Mapping[str, str]) -> None:
        """Take in what the machine itself says is closed."""
        self.told = told
        self.closed = self._offer.closed or told.get("", "")

    def measured(self) -> MeasuredNode:
        """Give what was measured as placement takes it: of RAM both must pass, what it has and what was seen."""
        known = [size for size in (self._offer.ram_bytes, self.seen_bytes) if size is not None]
        return MeasuredNode(
            min(known, default=None),
            self.closed,
            tuple(
                [
                    (free_bytes, device.closed or self.told.get(device.uuid, ""))
                    for device, free_bytes in zip(self._offer.devices, self.free_bytes, strict=True)
                ]
            ),
        )


class _Held:
    """What one lease holds."""

    __slots__ = ("placed", "seat", "shape")

    def __init__(self, seat: Seat, shape: Shape) -> None:
        self.seat = seat
        self.shape = shape
        self.placed: PlacedJob | None = None
        """Nothing while the machine is not on the roll."""


class Roll:
    """All machines, and the classes of jobs that they are asked about."""

    def __init__(self, on_renumbered: Callable[[], None]) -> None:
        """`on_renumbered` is called when classes have other numbers than before."""
        self._on_renumbered = on_renumbered
        self.board = NodeIndex()
        self.machines: dict[str, Machine] = {}
        self.wanted: dict[int, WantedJob] = {}
        self._shapes: dict[int, Shape] = {}
        self._by_number: dict[int, Shape] = {}
        self._version = 0
        """Changes when there is a shape that there was not before."""
        self._wants: dict[Backend, int] = {}
        self._prefers: dict[Backend, int] = {}
        self._held: dict[str, list[_Held]] = {}
        self._masks: dict[int, int] = {}
        self._takers: tuple[int, int] | None = None
        self._stale: set[str] = set()

    def put(self, machine: Machine) -> None:
        """Let a machine stand as it says, with what its leases hold."""
        known = self.machines.get(machine.name)
        if known is not None:
            self._uncount(known)
            machine.is_doubted = known.is_doubted
            machine.hear(known.told)
        self.machines[machine.name] = machine
        self._count(machine)
        if self._lay_out(machine):
            # Lists name words that no list named before.
            for class_id in self.wanted:
                self._shape(class_id)
            self._on_renumbered()

    def remove(self, name: str) -> None:
        """Forget a machine; its leases are remembered until they end."""
        machine = self.machines.pop(name, None)
        if machine is None:
            return
        self._uncount(machine)
        self._stale.discard(name)
        self.board.remove(name)
        for held in self._held.get(name, ()):
            held.placed = None

    def put_class(self, class_id: int, wanted: WantedJob) -> None:
        """Learn what jobs of a class want."""
        if self.wanted.get(class_id) == wanted:
            return
        is_known = class_id in self.wanted
        self.wanted[class_id] = wanted
        self._shape(class_id)
        if is_known:
            self._on_renumbered()

    def number_of(self, class_id: int) -> int:
        """Give the number of the shape that a class's jobs are placed as."""
        shape = self._shapes.get(class_id)
        if shape is None:
            message = f"jobs of class {class_id} wait, and nobody said what they want"
            raise Bug(message)
        return self.board.number_of(shape)

    def shape(self, number: int) -> Shape:
        """Give the shape with a number."""
        return self._by_number[number]

    def seat(self, seat: Seat) -> None:
        """Count what a lease holds."""
        shape = self._shapes.get(seat.class_id)
        if shape is None:
            message = f"a lease on {seat.machine} is of class {seat.class_id}, and nobody said what that wants"
            raise Bug(message)
        held = _Held(seat, shape)
        self._held.setdefault(seat.machine, []).append(held)
        machine = self.machines.get(seat.machine)
        if machine is not None:
            self._occupy(held)
            self._changed(machine)

    def unseat(self, seat: Seat) -> None:
        """Count it no more."""
        all_held = self._held.get(seat.machine, [])
        held = next((held for held in all_held if held.seat is seat or held.seat == seat), None)
        if held is None:
            message = f"a lease on {seat.machine} ends that nobody was given"
            raise Bug(message)
        all_held.remove(held)
        if not all_held:
            del self._held[seat.machine]
        if held.placed is not None:
            self.board.release(held.placed)
            self._changed(self.machines[seat.machine])

    def measure(self, machine: Machine, measured: Measured) -> None:
        """Take in what a machine's worker measured."""
        held_bytes = self.board.seat(machine.name).ram_held_bytes
        if machine.measure(measured, held_bytes) and self.board.measure(machine.name, machine.measured()):
            machine.ever_version = -1
            self._changed(machine)

    def doubt(self, name: str, *, is_doubted: bool) -> None:
        """Count on a machine no longer, or again, to take what fits it."""
        machine = self.machines.get(name)
        if machine is not None and machine.is_doubted != is_doubted:
            self._uncount(machine)
            machine.is_doubted = is_doubted
            self._count(machine)

    def fits(self, machine: Machine) -> int:
        """Give the shapes of which a job could start on a machine now."""
        if machine.fits_version != self._version:
            self._refresh(machine)
        return machine.fits

    def ever(self, machine: Machine) -> int:
        """Give the shapes of which a job could start on a machine if none of ours ran there."""
        if machine.ever_version != self._version:
            machine.ever = self.board.fitting_as(self.board.scratch(machine.name, is_idle=True))
            machine.ever_version = self._version
        return machine.ever

    def takers(self) -> int:
        """Give the shapes of which a job could start on some machine now, of those that can be counted on."""
        is_known = self._takers is not None and self._takers[0] == self._version
        for name in self._stale if is_known else self.machines:
            self.fits(self.machines[name])
        self._stale.clear()
        if self._takers is None or self._takers[0] != self._version:
            takers = 0
            for mask in self._masks:
                takers |= mask
            self._takers = self._version, takers
        return self._takers[1]

    def takers_beside(self, machine: Machine) -> int:
        """Give the shapes of which a job could start on some other machine now."""
        takers = self.takers()
        if machine.is_doubted or self._masks[machine.fits] > 1:
            return takers
        takers = 0
        for mask in self._masks:
            takers |= 0 if mask == machine.fits else mask
        return takers

    def state(self, machine: Machine) -> Hashable:
        """Give what decides which jobs a machine can't be given, and why."""
        return self._version, self.board.state(machine.name)

    def wishes(self, machine: Machine) -> tuple[int, int]:
        """Give the shapes that go first on a machine within their priority, and those that go last."""
        first = last = 0
        for backend, mask in self._wants.items():
            if backend in machine.backends:
                first |= mask
        for backend, mask in self._prefers.items():
            if backend not in machine.backends:
                last |= mask
        return first, last

    def offers(self) -> Iterator[NodeOffer]:
        """Give every machine as it stands now."""
        return (self.board.offer(name) for name in self.board.nodes)

    def _lay_out(self, machine: Machine) -> bool:
        has_new_words = self.board.put(machine.idle())
        for held in self._held.get(machine.name, ()):
            self._occupy(held)
        machine.ever_version = -1
        self._changed(machine)
        return has_new_words

    def _occupy(self, held: _Held) -> None:
        seat = held.seat
        held.placed = self.board.occupy(seat.machine, held.shape, seat.devices, is_shared=seat.is_shared)

    def _changed(self, machine: Machine) -> None:
        machine.fits_version = -1
        self._stale.add(machine.name)

    def _refresh(self, machine: Machine) -> None:
        fits = self.board.fitting(machine.name)
        machine.fits_version = self._version
        if fits != machine.fits:
            self._uncount(machine)
            machine.fits = fits
            self._count(machine)

    def _count(self, machine: Machine) -> None:
        if machine.is_doubted:
            return
        count = self._masks.get(machine.fits, 0)
        self._masks[machine.fits] = count + 1
        if not count:
            self._takers = None

    def _uncount(self, machine: Machine) -> None:
        if machine.is_doubted:
            return
        count = self._masks[machine.fits] - 1
        if count:
            self._masks[machine.fits] = count
        else:
            del self._masks[machine.fits]
            self._takers = None

    def _shape(self, class_id: int) -> None:
        shape = self._shapes[class_id] = self.board.shape_of(self.wanted[class_id])
        number = self.board.number_of(shape)
        if number in self._by_number:
            return
        self._by_number[number] = shape
        self._version += 1
        if shape.takes_devices and not shape.is_advised_against:
            self._wants[shape.backend] = self._wants.get(shape.backend, 0) | 1 << number
            if shape.wish is Wish.PREFER:
                self._prefers[shape.backend] = self._prefers.get(shape.backend, 0) | 1 << number


def _clamped(free_bytes: int | None, total_bytes: int) -> int | None:
    return None if free_bytes is None else max(0, min(free_bytes, total_bytes)) // MIB * MIB
