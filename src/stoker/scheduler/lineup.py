"""The lineup: which lines of jobs there are, and what each of them is to the board.

A line is jobs that ask for the same and take about as long. To the board it is a shape on devices, a shape on the CPU,
or, for who prefers devices, both: so it is seen which of them would start. Lines that ask for the same and only differ
in time are one shape to the board; here each has a bit of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stoker.model.frozen import changed
from stoker.model.requirements import WantedJob, Wish
from stoker.scheduler.node_index import NodeIndex
from stoker.scheduler.score import CPU_SPEED
from stoker.scheduler.shapes import NodeType, Shape
from stoker.scheduler.worth import Way, ways_of


class Line(NamedTuple):
    """Jobs of one shape, as the rules see them."""

    on_devices: int | None
    """Their bit on devices; nothing: they run on the CPU."""
    on_cpu: int | None
    bits: int
    """Both."""
    shape: Shape
    ways: tuple[Way, ...]
    expected_s: float
    """How long one takes on a device of speed 1, by what its like took before."""
    cpu_speed: float
    """How fast they run without devices: those that never wanted any as fast as they are said to."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Their bits, counted."""
        return tuple(number for number in (self.on_devices, self.on_cpu) if number is not None)

    @property
    def top_speed(self) -> float:
        """How fast they run where they run fastest."""
        return max((way.speed for way in self.ways), default=1.0)

    def takes_s(self, way: Way) -> float:
        """Say how long one is expected to take this way."""
        return self.expected_s / way.speed

    def number(self, way: Way) -> int:
        """Give the bit of a job that is run this way."""
        number = self.on_devices if way.on_devices else self.on_cpu
        if number is None:
            message = "a line is asked for a way that it does not go"
            raise ValueError(message)
        return number


class Lineup:
    """All lines on a board."""

    def __init__(self, board: NodeIndex, sorts: Sequence[NodeType], wanted: Iterable[tuple[WantedJob, float]]) -> None:
        """Open a line for each of these, with its expected seconds on a device of speed 1."""
        self._board = board
        asked = [(one, expected_s, _on_each(board, one)) for one, expected_s in wanted]
        numbers = [board.number_of(shape) for _, _, shapes in asked for shape in shapes.values()]
        self._next = max(numbers, default=-1) + 1
        self._shapes: dict[int, Shape] = {}
        self._doubles: list[tuple[int, int]] = []
        self._doubled = 0
        self.lines = tuple(
            self._line(one.requirements.wish, expected_s, shapes, sorts) for one, expected_s, shapes in asked
        )

    def shape(self, number: int) -> Shape:
        """Give what a line's jobs are placed as."""
        return self._shapes[number]

    def fitting(self, node: str) -> int:
        """Give the bits of all lines of which a job could start on the node now."""
        fits = self._board.fitting(node)
        return self._with_doubles(fits) if fits & self._doubled else fits

    def beside(self, node: str) -> int:
        """Give the bits of those that would be put beside their base model there."""
        fits = self._board.beside(node)
        return self._with_doubles(fits) if fits & self._doubled else fits

    def _with_doubles(self, fits: int) -> int:
        for known, other in self._doubles:
            if fits & known:
                fits |= other
        return fits

    def _line(self, wish: Wish, expected_s: float, shapes: dict[bool, Shape], sorts: Sequence[NodeType]) -> Line:
        numbers = {on_devices: self._number(one) for on_devices, one in shapes.items()}
        shape = changed(next(iter(shapes.values())), wish=wish)
        return Line(
            on_devices=numbers.get(True),
            on_cpu=numbers.get(False),
            bits=sum(1 << number for number in numbers.values()),
            shape=shape,
            ways=tuple(ways_of(shape, sorts)),
            expected_s=expected_s,
            cpu_speed=1.0 if wish is Wish.NEVER else CPU_SPEED,
        )

    def _number(self, shape: Shape) -> int:
        number = self._board.number_of(shape)
        if number in self._shapes:
            known, number = 1 << number, self._next
            self._next += 1
            self._doubles.append((known, 1 << number))
            self._doubled |= known
        self._shapes[number] = shape
        return number


def _on_each(board: NodeIndex, wanted: WantedJob) -> dict[bool, Shape]:
    """Give a job's shape on devices and that on the CPU, whichever it takes."""
    wish = wanted.requirements.wish
    found = {}
    for on_devices, unless, as_wish in ((True, Wish.NEVER, Wish.REQUIRE), (False, Wish.REQUIRE, Wish.NEVER)):
        if wish is not unless:
            asked = changed(wanted, requirements=changed(wanted.requirements, wish=as_wish))
            found[on_devices] = board.shape_of(asked)
    return found
