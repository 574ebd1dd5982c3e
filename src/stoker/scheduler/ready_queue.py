"""Job types, estimates of their durations, and the queue of ready jobs.

A type is jobs that require the same and are expected to take about as long; the policy decides between types. A type
has a bit for its placement on devices, a bit for that on the CPU, or both, for jobs that prefer devices. Which types
could start on a machine is a mask over these bits, made from the mask over shapes that `NodeIndex` returns.

`Durations` estimates how long jobs of a class take, in seconds of a device of speed 1. The class's own finished jobs
count before the submitter's estimate, and that before other jobs of the same recipe or program.

`ReadyQueue` has ready jobs by priority, user and job type, so that the next one is found without reading all of them.
Its owner sets the first ready job and the number of jobs of every class at every priority (`set_head`). A class is jobs
of one type and one user, so there are as many first jobs as types that wait, however many jobs wait.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from operator import itemgetter
from statistics import median

from stoker.core.frozen import changed, frozen_by_position
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
_STEP = log(1.1)
"""Estimates closer than this factor are one type."""
_LEAST_S, _MOST_S = 1e-3, 1e9
"""Estimates beyond these count as these."""
_MASKS_KNOWN = 50_000
_FEW = 40


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
        "expected_s", "index", "is_known", "options", "shape",
    )  # fmt: skip

    def __init__(self, index: int, shape: PlacementShape, expected_s: float, *, is_known: bool) -> None:
        self.index = index
        self.shape = shape
        self.expected_s = expected_s
        """How long one takes on a device of speed 1."""
        self.is_known = is_known
        """True if it is an estimate; otherwise it is unknown."""
        self.device_number: int | None = None
        self.cpu_number: int | None = None
        self.device_shape: PlacementShape | None = None
        self.cpu_shape: PlacementShape | None = None
        self.bits = 0
        """Both."""
        self.options: list[RunOption] = []
        self.cpu_speed = 1.0 if shape.wish is DevicePreference.NEVER else CPU_SPEED
        self.device_count = shape.device_count if shape.takes_devices else 0

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
        self._known: dict[tuple[PlacementShape, int | None], JobType] = {}
        self._by_shape: dict[int, int] = {}
        self._expanded: dict[int, int] = {}
        self._pickers: dict[int, Picker] = {}
        self._next = 0

    def of(self, wanted: SchedulableJob, expected_s: float | None) -> tuple[JobType, bool]:
        """Return the type of a job, and whether it is new. Without an estimate jobs of one shape are one type."""
        shape = self._index.shape_of(wanted)
        bucket = None if expected_s is None else _bucket(expected_s)
        known = self._known.get((shape, bucket))
        if known is not None:
            return known, False
        lasts_s = UNKNOWN_S if bucket is None else exp(bucket * _STEP)
        made = self._known[shape, bucket] = JobType(len(self.types), shape, lasts_s, is_known=bucket is not None)
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


NONE_READY = 1 << 120
"""The rank of a type of which no job is ready: after all others."""
_TYPE_BITS = 24
_MOST_TIMES = 8
"""Since how many different times types of one queue are remembered to be held back."""

Nth = Callable[[int, int, int], int | None]
"""Returns the number of the n-th ready job of a class and priority, from 0; None if there are fewer."""


@frozen_by_position
class ReadyHead:
    """The first ready job of a class at one priority."""

    class_id: int
    priority: int
    seq: int
    count: int = 1
    """How many jobs of this class and priority are ready, itself included."""


class JobClass:
    """Jobs of one type and one user."""

    __slots__ = ("class_id", "type", "user")

    def __init__(self, class_id: int, job_type: JobType, user: str) -> None:
        self.class_id = class_id
        self.type = job_type
        self.user = user


def type_of(rank: int) -> int:
    """Return the index of the job type that a rank was made of."""
    return rank & ((1 << _TYPE_BITS) - 1)


def places(count: int) -> int:
    """Return the difference between ranks of jobs that are so many jobs apart."""
    return count << _TYPE_BITS


class UserQueue:
    """The ready jobs of one user at one priority."""

    __slots__ = (
        "bits", "count", "counts", "floor", "floor_age", "heads", "kept", "passes", "priority", "ranks", "since",
        "unkept", "user",
    )  # fmt: skip

    def __init__(self, user: str, priority: int, types: int) -> None:
        self.user = user
        self.priority = priority
        self.bits = 0
        """What is ready at all."""
        self.count = 0
        self.ranks = [NONE_READY] * (types + 1)
        """Of each type the rank of its first job: number and type in one integer. The last entry is no type's."""
        self.counts = [0] * types
        self.heads: list[dict[int, int]] = [{} for _ in range(types)]
        """Of each type: class → number of its first job."""
        self.kept: dict[int, list[object]] = {}
        """Machines that are kept for the next jobs of a type."""
        self.unkept = self.ranks
        """As `ranks`, of the first job for which no machine is kept."""
        self.floor = -NONE_READY
        """No job without a kept machine is before this rank; looked up now and then, since ranks grow."""
        self.floor_age = 0
        self.passes = 0
        """How often jobs of users further back were started on a machine that one of these waits for."""
        self.since: list[tuple[float, int]] = []
        """Since when which types are held back for a faster machine, without any of them having started."""

    def widen(self, types: int) -> None:
        """Make room for more types."""
        more = types - len(self.counts)
        if more > 0:
            is_same = self.unkept is self.ranks
            self.ranks[-1:] = [NONE_READY] * (more + 1)
            if not is_same:
                self.unkept[-1:] = [NONE_READY] * (more + 1)
            self.counts += [0] * more
            self.heads += [{} for _ in range(more)]


class ReadyQueue:
    """All users' queues at all priorities."""

    def __init__(self, types: JobTypes, nth: Nth) -> None:
        self._types = types
        self.nth = nth
        self.classes: dict[int, JobClass] = {}
        self.levels: dict[int, dict[str, UserQueue]] = {}
        """By priority, then by user: only those with ready jobs."""
        self.priorities: list[int] = []
        """Negated, so that the highest comes first."""
        self.bits = 0
        """What is ready at any priority."""
        self.count = 0
        self.type_counts: list[int] = []
        """How many jobs of each type are ready."""
        self.arrived = 0
        """What became ready since this was last set to 0."""
        self.came = 0
        """The same, of jobs that are new: not those whose type changed."""
        self.on_change: Callable[[int, int, int], None] = lambda _type, _priority, _more: None
        """Called with type, priority and how many jobs more."""
        self.holding: dict[UserQueue, None] = {}
        """Queues of which some types are held back for a faster machine."""
        self.freed: list[object] = []
        """Machines that were kept for jobs which are no longer ready."""
        self._seqs: dict[tuple[int, int], tuple[int, int]] = {}

    def heads(self) -> Iterator[ReadyHead]:
        """Return the first job of every class and priority, in the order of priority and number."""
        for negated in self.priorities:
            found = [(seq, class_id) for (class_id, at), (seq, _) in self._seqs.items() if at == -negated]
            for seq, class_id in sorted(found):
                yield ReadyHead(class_id=class_id, priority=-negated, seq=seq, count=self._seqs[class_id, -negated][1])

    def head(self, class_id: int, priority: int) -> ReadyHead | None:
        """Return the first job of a class and priority."""
        known = self._seqs.get((class_id, priority))
        return None if known is None else ReadyHead(class_id, priority, *known)

    def is_lowest(self, priority: int) -> bool:
        """Return whether nothing of a lower priority is ready."""
        return bool(self.priorities) and -self.priorities[-1] >= priority

    def bits_of(self, user: str) -> int:
        """Return what is ready of a user, at any priority."""
        found = 0
        for users in self.levels.values():
            queue = users.get(user)
            if queue is not None:
                found |= queue.bits
        return found

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Return how many jobs are ready by type index and priority."""
        for priority, users in self.levels.items():
            for queue in users.values():
                for index, count in enumerate(queue.counts):
                    if count:
                        yield index, priority, count

    def set_head(self, class_id: int, priority: int, seq: int, count: int) -> None:
        """Let this be the first job of its class and priority, and this many ready; 0: none is."""
        key = (class_id, priority)
        known = self._seqs.get(key)
        before = known[1] if known is not None else 0
        if not count:
            if known is None:
                return
            del self._seqs[key]
        else:
            self._seqs[key] = (seq, count)
        job_class = self.classes[class_id]
        index = job_class.type.index
        queue = self._queue(job_class.user, priority)
        heads = queue.heads[index]
        if count:
            heads[class_id] = seq
        else:
            heads.pop(class_id, None)
        if count != before:
            self._count(queue, job_class.type, count - before)
        bits = job_class.type.bits
        if heads:
            # One more class of the type: the others are as they were.
            is_more = known is None and len(heads) > 1
            first = min(seq, queue.ranks[index] >> _TYPE_BITS) if is_more else min(heads.values())
            queue.ranks[index] = rank = (first << _TYPE_BITS) + index
            # A job that is ready again is older than those that came since.
            queue.floor = min(queue.floor, rank)
            queue.bits |= bits
            self.bits |= bits
        else:
            queue.ranks[index] = NONE_READY
            queue.bits &= ~bits
            if not self.type_counts[index]:
                self.bits &= ~bits
        if queue.kept:
            self._trim(queue, index)
        if not queue.count:
            self._remove(queue)

    def hold(self, queue: UserQueue, held: int, now_s: float) -> None:
        """Remember since when types are held back."""
        held &= queue.bits
        for _, mask in queue.since:
            held &= ~mask
        if not held:
            return
        since = queue.since
        self.holding[queue] = None
        since.append((now_s, held))
        if len(since) > _MOST_TIMES:
            # The two that are closest to each other count as the earlier one.
            at = min(range(len(since) - 1), key=lambda at: since[at + 1][0] - since[at][0])
            since[at : at + 2] = [(since[at][0], since[at][1] | since[at + 1][1])]

    def unhold(self, queue: UserQueue, bits: int) -> None:
        """Forget that types were held back: one of their jobs starts."""
        for _, mask in queue.since:
            if mask & bits:
                break
        else:
            return
        queue.since = [(since_s, left) for since_s, mask in queue.since if (left := mask & ~bits)]
        if not queue.since:
            self.holding.pop(queue, None)

    def widen(self) -> None:
        """Make room for types that are new, in all queues."""
        types = len(self._types.types)
        self.type_counts += [0] * (types - len(self.type_counts))
        for users in self.levels.values():
            for queue in users.values():
                queue.widen(types)

    def take_class(self, class_id: int) -> list[tuple[int, int, int]]:
        """Take out all ready jobs of a class; return (priority, number, count) of each first job."""
        heads = [(at, *self._seqs[class_id, at]) for at in self.levels if (class_id, at) in self._seqs]
        for priority, seq, _ in heads:
            self.set_head(class_id, priority, seq, 0)
        return heads

    def first_class(self, queue: UserQueue, index: int) -> int:
        """Return the class of a type's first job."""
        heads = queue.heads[index]
        if len(heads) == 1:
            return next(iter(heads))
        return min(heads, key=heads.__getitem__)

    def first(self, queue: UserQueue, mask: int) -> int:
        """Return the rank of the first job of the types in a mask."""
        return min(self._types.picker(mask)(queue.ranks))

    def rank_at(self, queue: UserQueue, index: int, place: int) -> int:
        """Return the rank of the n-th job of a type, from 0; `NONE_READY` if there are fewer."""
        if place >= queue.counts[index]:
            return NONE_READY
        if not place:
            return queue.ranks[index]
        seq = self.nth(self.first_class(queue, index), queue.priority, place)
        # Further jobs may be of another class: then the first of those after this one stands for them.
        known = max(queue.heads[index].values()) + place if seq is None else seq
        return (known << _TYPE_BITS) + index

    def keep(self, queue: UserQueue, index: int, machine: object) -> None:
        """Keep a machine for the next job of a type."""
        queue.kept.setdefault(index, []).append(machine)
        self.count_kept(queue, index)

    def unkeep(self, queue: UserQueue, index: int, machine: object) -> None:
        """Keep it no longer."""
        machines = queue.kept.get(index, [])
        if machine in machines:
            machines.remove(machine)
            if not machines:
                del queue.kept[index]
            self.count_kept(queue, index)

    def is_kept(self, queue: UserQueue, index: int, machine: object) -> bool:
        """Return whether a machine is kept for the next jobs of a type."""
        return machine in queue.kept.get(index, ())

    def replace_kept(self, queue: UserQueue, index: int, before: object, after: object) -> bool:
        """Let a machine take the place of another that is kept for a type; return whether the other one is."""
        machines = queue.kept.get(index, [])
        if before not in machines:
            return False
        machines[machines.index(before)] = after
        return True

    def count_kept(self, queue: UserQueue, index: int) -> None:
        """Find the first job of a type for which no machine is kept."""
        if not queue.kept:
            queue.unkept = queue.ranks
            queue.floor = -NONE_READY
            return
        if queue.unkept is queue.ranks:
            queue.unkept = list(queue.ranks)
        rank = self.rank_at(queue, index, len(queue.kept.get(index, ())))
        queue.unkept[index] = rank
        queue.floor = min(queue.floor, rank)

    def clear(self) -> list[tuple[int, int, int, int]]:
        """Forget all ready jobs and classes; return (class, priority, number, count) of each first job."""
        known = [(*key, *value) for key, value in self._seqs.items()]
        self.classes.clear()
        self.levels.clear()
        self.priorities.clear()
        self._seqs.clear()
        self.holding.clear()
        self.type_counts.clear()
        self.bits = self.arrived = self.came = self.count = 0
        return known

    def _trim(self, queue: UserQueue, index: int) -> None:
        """Keep no more machines for a type than jobs of it are ready."""
        machines = queue.kept.get(index)
        if machines is not None and len(machines) > queue.counts[index]:
            self.freed += machines[queue.counts[index] :]
            del machines[queue.counts[index] :]
            if not machines:
                del queue.kept[index]
        self.count_kept(queue, index)

    def _queue(self, user: str, priority: int) -> UserQueue:
        users = self.levels.get(priority)
        if users is None:
            users = self.levels[priority] = {}
            insort(self.priorities, -priority)
        queue = users.get(user)
        if queue is None:
            queue = users[user] = UserQueue(user, priority, len(self._types.types))
        return queue

    def _remove(self, queue: UserQueue) -> None:
        users = self.levels[queue.priority]
        del users[queue.user]
        self.holding.pop(queue, None)
        if not users:
            del self.levels[queue.priority]
            self.priorities.remove(-queue.priority)

    def _count(self, queue: UserQueue, one: JobType, more: int) -> None:
        queue.counts[one.index] += more
        queue.count += more
        self.count += more
        self.type_counts[one.index] += more
        self.on_change(one.index, queue.priority, more)
        if more > 0:
            self.arrived |= one.bits
            self.came |= one.bits
