"""The queue of ready jobs, by priority, user and job type, so that the next one is found without reading all of them.

Its owner sets the first ready job and the number of jobs of every class at every priority (`set_head`). A class is jobs
of one type and one user, so there are as many first jobs as types that wait, however many jobs wait.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from stoker.core.frozen import frozen_by_position
from stoker.scheduler.job_types import JobType, JobTypes

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

    def all_heads(self) -> Iterator[ReadyHead]:
        """Return the first job of every class and priority, in no order."""
        for (class_id, priority), (seq, count) in self._seqs.items():
            yield ReadyHead(class_id, priority, seq, count)

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
