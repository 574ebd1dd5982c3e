"""Numeric axes whose points are computed on access.

    range:START:STOP[:STEP]   from START in steps; STOP itself is left out, as in Python; range:STOP begins at 0
    lin:FIRST:LAST:COUNT      evenly spaced, both ends in; a COUNT of 1 is FIRST alone
    log:FIRST:LAST:COUNT      evenly spaced on a logarithmic scale, both ends in

Every point is the float nearest to the exact number (ranges of whole numbers give whole numbers), computed without a
machine's floating point, so a point is the same text everywhere: `log:1e-4:1e-1:4` is 0.0001, 0.001, 0.01, 0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal
from typing import Any

from stoker.config.sweep import AxisValue, AxisValues
from stoker.config.values import scalar
from stoker.core.frozen import frozen, frozen_by_position
from stoker.core.text import whole_number

MOST_POINTS = 10**18
_LEAST_EXPONENT, _MOST_EXPONENT = -400, 307
_SMALL = 10**18
_PRECISE = Context(prec=50)


class BadSpacing(ValueError):
    """Numbers that make no axis; `part` is the index of the wrong one, if it is one."""

    def __init__(self, message: str, *, hint: str = "", part: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.part = part


@frozen_by_position
class DecimalNumber:
    """A finite decimal number, exactly: `digits` × 10 ** `exponent`; `value` is what the fixed rules read."""

    digits: int
    exponent: int
    value: int | float

    @property
    def is_whole(self) -> bool:
        return type(self.value) is int

    def scaled(self, exponent: int) -> int:
        """Return it as a multiple of 10 ** `exponent`, which is not above its own."""
        return int(self.digits * 10 ** (self.exponent - exponent))

    def exactly(self) -> Decimal:
        return Decimal(self.digits).scaleb(self.exponent, _PRECISE)


@frozen
class LinearSpacing:
    """Points `start + index × step`, in multiples of one over `per`."""

    start: int
    step: int
    per: int
    count: int
    gives_whole: bool

    def at(self, index: int) -> AxisValue:
        numerator = self.start + index * self.step
        # Dividing whole numbers gives the nearest float, however long they are.
        return _computed(numerator // self.per if self.gives_whole else numerator / self.per)

    def __iter__(self) -> Iterator[AxisValue]:
        return map(self.at, _counted(self.count))

    def indexes_of(self, value: Any) -> Sequence[int]:
        return _search(self, value, falls=self.step < 0)


@frozen
class LogSpacing:
    """Points `first × (last / first) ** (index / (count - 1))`."""

    first: DecimalNumber
    last: DecimalNumber
    count: int

    def at(self, index: int) -> AxisValue:
        if index == 0:
            return _computed(float(self.first.value))
        if index == self.count - 1:
            return _computed(float(self.last.value))
        first = self.first.exactly()
        share = _PRECISE.divide(Decimal(index), Decimal(self.count - 1))
        ratio = _PRECISE.divide(self.last.exactly(), first)
        return _computed(float(_PRECISE.multiply(first, _PRECISE.power(ratio, share))))

    def __iter__(self) -> Iterator[AxisValue]:
        return map(self.at, _counted(self.count))

    def indexes_of(self, value: Any) -> Sequence[int]:
        return _search(self, value, falls=self.first.value > self.last.value)


def spaced(name: str, texts: Sequence[str]) -> AxisValues:
    """Make the points of `range`, `lin` or `log` from numbers as typed; `BadSpacing` if they are invalid."""
    least, most, says, make = _MAKERS[name]
    if not least <= len(texts) <= most:
        raise BadSpacing(f"{name} takes {says}, here are {len(texts)} numbers", hint=_EXAMPLES[name])
    return make([_number(text, part) for part, text in enumerate(texts)])


def _range(numbers: list[DecimalNumber]) -> AxisValues:
    start, stop, step = _ZERO, numbers[0], _ONE
    if len(numbers) > 1:
        start, stop = numbers[0], numbers[1]
    if len(numbers) > 2:
        step = numbers[2]
    if step.digits == 0:
        raise BadSpacing("a step of 0 never reaches the end", part=2, hint=_EXAMPLES["range"])
    exponent = min(start.exponent, stop.exponent, step.exponent, 0)
    first, end, by = start.scaled(exponent), stop.scaled(exponent), step.scaled(exponent)
    count = -((first - end) // by)
    if count < 1:
        span = f"from {start.value} to {stop.value} in steps of {step.value}"
        if first == end:
            raise BadSpacing(f"range {span} is empty", hint="the end itself is left out")
        raise BadSpacing(f"range {span} has the wrong direction", hint=f"swap the ends, or step by {_turned(step)}")
    gives_whole = start.is_whole and stop.is_whole and step.is_whole
    return LinearSpacing(start=first, step=by, per=10**-exponent, count=_bounded(count), gives_whole=gives_whole)


def _lin(numbers: list[DecimalNumber]) -> AxisValues:
    first, last, count = numbers[0], numbers[1], _count(numbers[2])
    exponent = min(first.exponent, last.exponent, 0)
    start, end, steps = first.scaled(exponent), last.scaled(exponent), max(count - 1, 1)
    return LinearSpacing(
        start=start * steps, step=end - start, per=steps * 10**-exponent, count=count, gives_whole=False
    )


def _log(numbers: list[DecimalNumber]) -> AxisValues:
    for part, number in enumerate(numbers[:2]):
        if number.value <= 0:
            message = f"a logarithmic scale has no {number.value}"
            raise BadSpacing(message, part=part, hint="both ends are above 0; lin takes any")
    return LogSpacing(first=numbers[0], last=numbers[1], count=_count(numbers[2]))


def _count(number: DecimalNumber) -> int:
    count = whole_number(number.value)
    if count is None or count < 1:
        raise BadSpacing(f"the count of points is a whole number from 1, not {number.value}", part=2)
    return _bounded(count)


def _bounded(count: int) -> int:
    if count > MOST_POINTS:
        raise BadSpacing("it has more than 10^18 points")
    return count


def _number(text: str, part: int) -> DecimalNumber:
    value = scalar(text)
    if type(value) not in (int, float):
        raise BadSpacing(
            f"{text!r} is not a number that a float can hold" if text else "a number is missing", part=part
        )
    if value - value != 0:
        raise BadSpacing(f"{text} is not a finite number", part=part)
    if type(value) is int and -_SMALL < value < _SMALL:
        return DecimalNumber(value, 0, value)
    exact = Decimal(text)
    sign, digits, exponent = exact.as_tuple()
    if exact.adjusted() > _MOST_EXPONENT:
        raise BadSpacing(f"{text} is larger than any float", part=part)
    if not isinstance(exponent, int) or exponent < _LEAST_EXPONENT:
        raise BadSpacing(f"{text} has too many digits after the point", part=part)
    mantissa = int("".join(map(str, digits)))
    return DecimalNumber(-mantissa if sign else mantissa, exponent, value)


def _computed(value: float) -> AxisValue:
    return AxisValue(repr(value), value)


def _counted(count: int) -> Iterator[int]:
    return iter(range(count))


def _turned(step: DecimalNumber) -> int | float:
    return -step.value


def _search(choices: LinearSpacing | LogSpacing, value: Any, *, falls: bool) -> Sequence[int]:
    """Find a value among points that only rise or only fall, by bisection."""
    if type(value) not in (int, float) or value - value != 0:
        return ()
    wanted = -value if falls else value

    def reaches(index: int, *, beyond: bool) -> bool:
        found = -choices.at(index).value if falls else choices.at(index).value
        return bool(found > wanted if beyond else found >= wanted)

    first = _first_index(choices.count, lambda index: reaches(index, beyond=False))
    return range(first, _first_index(choices.count, lambda index: reaches(index, beyond=True)))


def _first_index(count: int, holds: Callable[[int], bool]) -> int:
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


_ZERO, _ONE = DecimalNumber(0, 0, 0), DecimalNumber(1, 0, 1)
_MAKERS: dict[str, tuple[int, int, str, Callable[[list[DecimalNumber]], AxisValues]]] = {
    "range": (1, 3, "START, STOP and STEP", _range),
    "lin": (3, 3, "FIRST, LAST and COUNT", _lin),
    "log": (3, 3, "FIRST, LAST and COUNT", _log),
}
_EXAMPLES = {
    "range": "such as range:1:10:2, which is 1, 3, 5, 7, 9",
    "lin": "such as lin:0:1:5, which is 0, 0.25, 0.5, 0.75, 1",
    "log": "such as log:1e-4:1e-1:4, which is 0.0001, 0.001, 0.01, 0.1",
}
