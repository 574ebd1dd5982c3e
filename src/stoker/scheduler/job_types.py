"""Job types, and estimates of their durations.

A type is jobs that require the same and are expected to take about as long; the policy decides between types. A type
has a bit for its placement on devices, a bit for that on the CPU, or both, for jobs that prefer devices. Which types
could start on a machine is a mask over these bits, made from the mask over shapes that `NodeIndex` returns.

`Durations` estimates how long jobs of a class take, in seconds of a device of speed 1. The class's own finished jobs
count before the submitter's estimate, and that before other jobs of the same recipe or program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import exp, log
from operator import itemgetter
from statistics import median

from stoker.core.frozen import changed
from stoker.core.machine import DevicePreference, SchedulableJob
from stoker.scheduler.fit import PlacementShape
from stoker.scheduler.node_index import NodeIndex
from stoker.scheduler.prices import RunOption
from stoker.scheduler.score import CPU_SPEED

ENOUGH = 3
"""So many finished jobs make an estimate."""
STATED = "stated by its submitter"
_KEPT = 15
_NEWS = 1.5
"""An estimate that changes by less than this factor stays as it is: durations differ by that much anyway."""


class _Class:
    __slots__ = ("expected_s", "like", "seen", "stated_s", "took_s")

    def __init__(self, like: str, stated_s: float | None) -> None:
        self.like = like
        self.stated_s = stated_s
        self.took_s: deque[float] = deque(maxlen=_KEPT)
        self.seen = 0
        self.expected_s: float | None = stated_s


class Durations:
    """Estimates by class."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._likes: dict[str, deque[float]] = {}
        self._waiting: dict[str, set[int]] = {}
        """Classes without an estimate, by what they are like."""
        self._changed: list[int] = []

    def put_class(self, class_id: int, like: str, stated_s: float | None) -> None:
        """Learn of a class; what is known of its like counts at once."""
        known = self._classes.get(class_id)
        if known is None:
            known = self._classes[class_id] = _Class(like, stated_s)
        known.like, known.stated_s = like, stated_s
        known.expected_s = self._estimate(known)
        if known.expected_s is None and like:
            self._waiting.setdefault(like, set()).add(class_id)

    def expected_s(self, class_id: int) -> float | None:
        """Return the expected duration of a job of a class on a device of speed 1; None: unknown."""
        known = self._classes.get(class_id)
        return None if known is None else known.expected_s

    def like(self, class_id: int) -> str:
        """Return what a class is like: its recipe or program."""
        known = self._classes.get(class_id)
        return "" if known is None else known.like

    def likes(self) -> dict[str, float]:
        """Return how long runs of each recipe or program take, where enough have finished."""
        return {like: median(took_s) for like, took_s in self._likes.items() if len(took_s) >= ENOUGH}

    def based_on(self, class_id: int) -> str:
        """Return what the estimate is from."""
        known = self._classes.get(class_id)
        if known is None or known.expected_s is None:
            return ""
        if len(known.took_s) >= ENOUGH:
            return f"median of {len(known.took_s)} runs"
        return STATED if known.stated_s is not None else f"runs of {known.like}"

    def learn(self, class_id: int, took_s: float) -> bool:
        """Take in a finished job; return whether an estimate changed (`changed`)."""
        known = self._classes.get(class_id)
        if known is None or took_s <= 0.0:
            return False
        known.took_s.append(took_s)
        known.seen += 1
        if known.like:
            self._learn_like(known.like, took_s)
        if known.seen <= _KEPT or not known.seen % _KEPT:
            self._update(class_id, known)
        return bool(self._changed)

    def changed(self) -> list[int]:
        """Return the classes whose estimates changed since this was last asked."""
        changed, self._changed = self._changed, []
        return changed

    def _learn_like(self, like: str, took_s: float) -> None:
        likes = self._likes.get(like)
        if likes is None:
            likes = self._likes[like] = deque(maxlen=_KEPT)
        likes.append(took_s)
        if len(likes) >= ENOUGH and like in self._waiting:
            for class_id in sorted(self._waiting.pop(like)):
                self._update(class_id, self._classes[class_id])

    def _update(self, class_id: int, known: _Class) -> None:
        found = self._estimate(known)
        before = known.expected_s
        if found is None or (before is not None and before / _NEWS <= found <= before * _NEWS):
            return
        known.expected_s = found
        self._changed.append(class_id)

    def _estimate(self, known: _Class) -> float | None:
        if len(known.took_s) >= ENOUGH:
            return median(known.took_s)
        if known.stated_s is not None:
            return known.stated_s
        likes = self._likes.get(known.like, ()) if known.like else ()
        return median(likes) if len(likes) >= ENOUGH else None


UNKNOWN_S = 600.0
"""How long a job without any estimate is taken to last where amounts of work are compared."""
LEAST_PROGRESS_S = 120.0
"""A job that has saved a checkpoint makes progress in this time: it starts, loads the checkpoint, and trains."""
_STEP = log(1.1)
"""Estimates closer than this factor are one type."""
_LEAST_S, _MOST_S = 1e-3, 1e9
"""Estimates beyond these count as these."""
_MASKS_KNOWN = 50_000
_FEW = 40


def least_time_s(takes_s: float | None, *, has_checkpoint: bool) -> float:
    """Return for how long a machine must still take part so that a job may start there.

    Without a checkpoint that is the whole duration, as far as it is known. A job that has saved one continues
    elsewhere, and only has to make progress. Saving at the end is not part of it: machines stop that much earlier.
    """
    if takes_s is None:
        return 0.0
    return min(takes_s, LEAST_PROGRESS_S) if has_checkpoint else takes_s


def rounded_s(expected_s: float) -> float:
    """Return the duration that stands for all durations of one type."""
    # The same on every machine: the last digits of an exponential are not.
    return float(f"{exp(_bucket(expected_s) * _STEP):.3g}")


def _bucket(expected_s: float) -> int:
    return round(log(min(max(expected_s, _LEAST_S), _MOST_S)) / _STEP)


Picker = Callable[[Sequence[int]], tuple[int, ...]]


class JobType:
    """Jobs that ask for the same and take about as long."""

    __slots__ = (
        "bits", "cpu_number", "cpu_shape", "cpu_speed", "device_count", "device_number", "device_shape",
        "expected_s", "has_checkpoint", "index", "is_known", "options", "shape",
    )  # fmt: skip

    def __init__(
        self, index: int, shape: PlacementShape, expected_s: float, *, is_known: bool, has_checkpoint: bool
    ) -> None:
        self.index = index
        self.shape = shape
        self.expected_s = expected_s
        """How long one takes on a device of speed 1."""
        self.is_known = is_known
        """True if it is an estimate; otherwise it is unknown."""
        self.has_checkpoint = has_checkpoint
        self.device_number: int | None = None
        self.cpu_number: int | None = None
        self.device_shape: PlacementShape | None = None
        self.cpu_shape: PlacementShape | None = None
        self.bits = 0
        """Both."""
        self.options: list[RunOption] = []
        self.cpu_speed = 1.0 if shape.wish is DevicePreference.NEVER else CPU_SPEED
        self.device_count = shape.device_count if shape.takes_devices else 0

    def least_s(self, speed: float) -> float:
        """Return for how long a machine of a speed must still take part so that a job may start there."""
        return least_time_s(self.expected_s / speed if self.is_known else None, has_checkpoint=self.has_checkpoint)

    def placed_shape(self, *, on_devices: bool) -> PlacementShape:
        """Return as what a job is placed that has devices, or has none."""
        return (self.device_shape if on_devices else self.cpu_shape) or self.shape

    def number(self, option: RunOption) -> int:
        """Return the bit number of a job that is run this way."""
        number = self.device_number if option.on_devices else self.cpu_number
        if number is None:
            message = "a job type is asked for a placement that it does not have"
            raise ValueError(message)
        return number


class JobTypes:
    """All types that are known."""

    def __init__(self, index: NodeIndex) -> None:
        self._index = index
        self.types: list[JobType] = []
        self.shape_of: dict[int, PlacementShape] = {}
        """By bit number."""
        self.type_of: dict[int, JobType] = {}
        """By bit number."""
        self.devices = 0
        """The bits of placements on devices."""
        self._known: dict[tuple[PlacementShape, int | None, bool], JobType] = {}
        self._by_shape: dict[int, int] = {}
        self._expanded: dict[int, int] = {}
        self._pickers: dict[int, Picker] = {}
        self._next = 0

    def of(self, wanted: SchedulableJob, expected_s: float | None) -> tuple[JobType, bool]:
        """Return the type of a job, and whether it is new. Without an estimate jobs of one shape are one type."""
        shape = self._index.shape_of(wanted)
        bucket = None if expected_s is None else _bucket(expected_s)
        key = (shape, bucket, wanted.has_checkpoint)
        known = self._known.get(key)
        if known is not None:
            return known, False
        lasts_s = UNKNOWN_S if bucket is None else exp(bucket * _STEP)
        made = self._known[key] = JobType(
            len(self.types), shape, lasts_s, is_known=bucket is not None, has_checkpoint=wanted.has_checkpoint
        )
        self.types.append(made)
        for on_devices, unless, wish in (
            (True, DevicePreference.NEVER, DevicePreference.REQUIRE),
            (False, DevicePreference.REQUIRE, DevicePreference.NEVER),
        ):
            if shape.wish is not unless:
                as_asked = changed(wanted, requirements=changed(wanted.requirements, wish=wish))
                self._add_placement(made, self._index.shape_of(as_asked), on_devices=on_devices)
        self._expanded.clear()
        self._pickers.clear()
        return made, True

    def expand(self, fits: int) -> int:
        """Return the bits of the types whose shapes are in a mask of the node index."""
        found = self._expanded.get(fits)
        if found is None:
            if len(self._expanded) >= _MASKS_KNOWN:
                self._expanded.clear()
            found, left, by_shape = 0, fits, self._by_shape
            while left:
                lowest = left & -left
                found |= by_shape.get(lowest.bit_length() - 1, 0)
                left ^= lowest
            self._expanded[fits] = found
        return found

    def picker(self, mask: int) -> Picker:
        """Return what picks, from a list with one entry for each type and one more, those of the types in a mask."""
        picker = self._pickers.get(mask)
        if picker is None:
            if len(self._pickers) >= _MASKS_KNOWN:
                self._pickers.clear()
            places = self.in_mask(mask) or [-1]
            picker = self._pickers[mask] = itemgetter(*places, places[0])
        return picker

    def in_mask(self, mask: int) -> list[int]:
        """Return the indexes of the types in a mask, in order. A negative mask has all bits but a few."""
        if mask < 0 or mask.bit_count() > _FEW:
            return [one.index for one in self.types if one.bits & mask]
        found = set()
        while mask:
            lowest = mask & -mask
            one = self.type_of.get(lowest.bit_length() - 1)
            if one is not None:
                found.add(one.index)
            mask ^= lowest
        return sorted(found)

    def wider_than(self, devices: int) -> int:
        """Return the placements that take more devices than that."""
        return sum(
            1 << one.device_number for one in self.types if one.device_number is not None and one.device_count > devices
        )

    def _add_placement(self, made: JobType, shape: PlacementShape, *, on_devices: bool) -> None:
        number = self._next
        self._next += 1
        bit = 1 << number
        made.bits |= bit
        self.shape_of[number] = shape
        self.type_of[number] = made
        at = self._index.number_of(shape)
        self._by_shape[at] = self._by_shape.get(at, 0) | bit
        if on_devices:
            made.device_number, made.device_shape = number, shape
            self.devices |= bit
        else:
            made.cpu_number, made.cpu_shape = number, shape
