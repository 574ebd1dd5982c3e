"""A small fleet with a queue and a clock around a scheduler, which checks what has to hold after every step."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from heapq import heappop, heappush

from hypothesis import strategies as st

from stoker.core.device import GIB
from stoker.core.frozen import changed, frozen
from stoker.core.machine import DevicePreference, Gpu, Node, Requirements, SchedulableJob, UserPolicy
from stoker.protocol.lease_messages import WorkerMeasurements
from stoker.scheduler.leases import HoldDecision, HoldReason, StartDecision
from stoker.scheduler.machine_index import LeaseAllocation, MatchableMachine
from stoker.scheduler.offers import NodeOffer, offer_of
from stoker.scheduler.scheduler import Scheduler

NAMES = ("a", "b", "c", "d", "e")
KINDS: dict[str, tuple[tuple[str, ...], int, int]] = {
    "fast": (("H100",), 80, 0),
    "pair": (("A100", "A100"), 40, 0),
    "desk": (("RTX 4090",), 24, 0),
    "wanted": (("RTX 4090",), 24, 3),
    "small": (("RTX 4090",), 8, 0),
    "board": (("Jetson Nano",), 24, 0),
    "mixed": (("RTX 4090", "Jetson Nano"), 24, 0),
    "box": ((), 0, 0),
}
"""Kinds of machines: devices, their memory in GiB, priority."""
ASKS: dict[str, Requirements] = {
    "small": Requirements(wish=DevicePreference.REQUIRE, vram_bytes=4 * GIB, ram_bytes=GIB, cores=1),
    "large": Requirements(wish=DevicePreference.REQUIRE, vram_bytes=20 * GIB, ram_bytes=GIB, cores=1),
    "two": Requirements(wish=DevicePreference.REQUIRE, device_count=2, vram_bytes=8 * GIB, ram_bytes=GIB, cores=1),
    "either": Requirements(wish=DevicePreference.PREFER, vram_bytes=8 * GIB, ram_bytes=GIB, cores=2),
    "shared": Requirements(wish=DevicePreference.REQUIRE, vram_bytes=6 * GIB, ram_bytes=GIB, may_share=True),
    "adapter": Requirements(
        wish=DevicePreference.REQUIRE,
        vram_bytes=6 * GIB,
        ram_bytes=GIB,
        may_share=True,
        base="llama",
        base_bytes=4 * GIB,
    ),
    "cpu": Requirements(ram_bytes=GIB, cores=2),
    "wide": Requirements(ram_bytes=GIB, cores=14),
    "nowhere": Requirements(wish=DevicePreference.REQUIRE, vram_bytes=500 * GIB, ram_bytes=GIB),
}
MOST_STEPS = 3000


@frozen
class Class:
    """What jobs of one class ask for, and how long they really take on a device of speed 1."""

    asks: str
    user: str = "ada"
    stated_s: float | None = None
    true_s: float = 600.0
    preferred: tuple[str, ...] = ()

    def wanted(self) -> SchedulableJob:
        return SchedulableJob(name="job", requirements=ASKS[self.asks], preferred_hosts=self.preferred)


def offer(name: str, kind: str, *, shares: bool | None = None, slots: int | None = None) -> NodeOffer:
    types, vram_gib, priority = KINDS[kind]
    gpus = tuple(Gpu(uuid=f"{name}-{at}", type=one, vram_mb=vram_gib * 1024) for at, one in enumerate(types))
    known = {} if slots is None else {"slots": slots}
    return offer_of(
        Node(
            name=name,
            host=name,
            gpus=gpus,
            cpu_cores=16,
            ram_mb=65536,
            shares_devices=shares,
            priority=priority,
            **known,  # type: ignore[arg-type]
        )
    )


@frozen
class Spec:
    """A machine in few words."""

    name: str
    kind: str
    shares: bool | None = None
    slots: int | None = None
    left_s: float | None = None
    """For how long it stays; None: for ever."""

    def offer(self) -> NodeOffer:
        return offer(self.name, self.kind, shares=self.shares, slots=self.slots)


class World:
    """Machines that ask, jobs that come and end, and a clock."""

    def __init__(self, classes: list[Class], *, tells: bool = True) -> None:
        """Begin with no machines; with `tells` every hold has to name its reasons."""
        self.now_s = 1.8e9
        self.tells = tells
        self.classes = classes
        self.scheduler = Scheduler(nth=self._nth)
        self.offers: dict[str, NodeOffer] = {}
        self.silent: set[str] = set()
        """Machines that do not answer a call."""
        self.declining: set[str] = set()
        self.slowness: dict[str, float] = {}
        """How many times as long as it says a machine takes."""
        self.ready: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.running: list[tuple[float, int, LeaseAllocation]] = []
        self.job_of: dict[int, tuple[int, int]] = {}
        """Class and priority of each job."""
        self.started: list[int] = []
        self.grants: list[tuple[int, str]] = []
        for class_id, one in enumerate(classes):
            self.put_class(class_id, one)

    # -- what happens

    def put_class(self, class_id: int, one: Class) -> None:
        self.scheduler.put_class(class_id, one.wanted(), user=one.user, like=one.asks, expected_s=one.stated_s)

    def come(self, at: int, count: int = 1, priority: int = 0) -> None:
        """Let jobs of a class come."""
        class_id = at % len(self.classes)
        for _ in range(count):
            seq = len(self.job_of)
            self.job_of[seq] = (class_id, priority)
            self.ready[class_id, priority].append(seq)
        self._tell(class_id, priority)

    def join(self, spec: Spec) -> None:
        name = spec.name
        self.offers[name] = spec.offer()
        ends_s = None if spec.left_s is None else self.now_s + spec.left_s
        self.scheduler.put_machine(MatchableMachine(self.offers[name], ends_s=ends_s))
        self.silent.discard(name)
        self.declining.discard(name)
        self.ask(name)

    def leave(self, name: str) -> None:
        """Let a machine go away; its jobs are ready again."""
        if name in self.offers:
            del self.offers[name]
            self.scheduler.remove_machine(name)
            self.lose(name)

    def lose(self, name: str) -> None:
        """Let all jobs on a machine end without a result."""
        lost = [one for one in self.running if one[2].machine == name]
        self.running = [one for one in self.running if one[2].machine != name]
        self.running.sort()
        for _, seq, allocation in lost:
            self.scheduler.release(allocation, self.now_s)
            self._return(seq)

    def close(self, name: str, closed: bool) -> None:
        """Let the owner of a machine pause it, or let it go on."""
        if name in self.offers:
            self.scheduler.measure(name, WorkerMeasurements(closed={"": "paused"} if closed else {}))
            self.ask(name)

    def silence(self, name: str) -> None:
        """Let a machine answer no more."""
        self.silent.add(name)

    def decline(self, name: str) -> None:
        """Let a machine decline what it is granted."""
        self.declining.add(name)

    def slow(self, name: str, factor: float) -> None:
        """Let a machine take another time than it says."""
        self.slowness[name] = factor

    def report(self, at: int, left_s: float) -> None:
        """Let a running job say in how long it ends, whatever the truth is."""
        if self.running:
            _, _, allocation = self.running[at % len(self.running)]
            self.scheduler.leases.expect(allocation, self.now_s + left_s, self.now_s)

    def limit(self, user: str, jobs: int | None, devices: int | None) -> None:
        """Let the operator limit a user."""
        policy = UserPolicy(most_jobs=jobs, most_devices=devices)
        self.scheduler.set_policies({**self.scheduler.shares.policies, user: policy})

    def state(self, at: int, stated_s: float | None) -> None:
        """Let the submitter of a class state another estimate."""
        class_id = at % len(self.classes)
        self.classes[class_id] = changed(self.classes[class_id], stated_s=stated_s)
        self.put_class(class_id, self.classes[class_id])

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.now_s + seconds
        while self.running and self.running[0][0] <= until_s:
            self.end()
        self.now_s = until_s

    def jump(self, seconds: float) -> None:
        """Let the clock jump; what runs takes as long as before."""
        self.now_s += seconds
        self.running = [(end_s + seconds, seq, allocation) for end_s, seq, allocation in self.running]

    def ask(self, name: str) -> bool:
        """Let a machine ask until it gets nothing; return whether it got anything."""
        if name in self.silent or name not in self.offers:
            return False
        has_any = False
        while True:
            decision = self.scheduler.choose(name, self.now_s, tells=self.tells)
            if isinstance(decision, HoldDecision):
                assert HoldReason.ORDER not in decision.waiting, (name, decision.waiting)
                return has_any
            if self.tells:
                self.check_grant(decision)
            if name in self.declining:
                # What a machine declined is ready again, and it does not ask for a while.
                self.scheduler.grant(decision, self.now_s)
                self._take(decision)
                self.scheduler.release(decision.allocation, self.now_s)
                self.scheduler.doubt(name, is_doubted=True)
                self._return(decision.head.seq)
                self.silent.add(name)
                return True
            self.start(decision)
            has_any = True

    def start(self, decision: StartDecision) -> None:
        self.scheduler.grant(decision, self.now_s)
        seq = self._take(decision)
        self.started.append(seq)
        self.grants.append((seq, decision.allocation.machine))
        lease = self.scheduler.machines.machines[decision.allocation.machine].leases[-1]
        takes_s = self.classes[decision.head.class_id].true_s / lease.work_rate
        end_s = self.now_s + takes_s * self.slowness.get(decision.allocation.machine, 1.0)
        heappush(self.running, (end_s, seq, decision.allocation))

    def end(self) -> None:
        """Let the next job end, when it does; its machine asks again."""
        if not self.running:
            return
        end_s, _, allocation = heappop(self.running)
        self.now_s = max(self.now_s, end_s)
        self.scheduler.release(allocation, self.now_s, is_completed=True)
        self.ask(allocation.machine)

    def answer(self) -> None:
        """Let every machine that is called ask, until none is called."""
        idle_rounds = 0
        while called := self.scheduler.calls(self.now_s):
            got = [self.ask(name) for name in called]
            idle_rounds = 0 if any(got) else idle_rounds + 1
            assert idle_rounds <= MOST_STEPS // 100, f"calls without end: {called}"

    def step(self) -> bool:
        """Go on to what happens next; return whether anything does."""
        self.answer()
        call_s = self.scheduler.next_call_s
        if self.running and (call_s is None or self.running[0][0] <= call_s):
            self.end()
        elif call_s is not None:
            self.now_s = max(self.now_s, call_s)
        else:
            return False
        return True

    def drain(self) -> None:
        """Let everything go on until nothing happens any more."""
        for _ in range(MOST_STEPS):
            if not self.step():
                return
        message = f"no end: {len(self.running)} run, {self.waiting} wait, next call {self.scheduler.next_call_s}"
        raise AssertionError(message)

    # -- what has to hold

    @property
    def waiting(self) -> dict[tuple[int, int], list[int]]:
        return {key: jobs for key, jobs in self.ready.items() if jobs}

    def check_grant(self, grant: StartDecision) -> None:
        """A grant is the first ready job of its class, it fits, and the limits of its user leave room."""
        key = (grant.head.class_id, grant.head.priority)
        assert self.ready[key][0] == grant.head.seq
        one = self.classes[key[0]]
        is_open, devices = self.scheduler.shares.room(one.user)
        assert is_open
        assert devices is None or len(grant.allocation.devices) <= devices
        machine = self.scheduler.machines.machines[grant.allocation.machine]
        for (class_id, priority), jobs in self.waiting.items():
            if priority > key[1]:
                self._check_not_passed(machine, class_id, priority, jobs[0])

    def _check_not_passed(self, machine: MatchableMachine, class_id: int, priority: int, seq: int) -> None:
        """A job that is passed by one of lower priority does not fit, is held for a reason, or has a better machine."""
        scheduler = self.scheduler
        one = scheduler.ready.classes[class_id].type
        here = scheduler.index.choice(machine.name, one.shape)
        if here is None or not scheduler.machines.fits(machine) & one.bits:
            return
        best = scheduler.index.best(one.shape)
        if best is not None and best[1] > here.key:
            return
        queue = scheduler.ready.levels[priority][self.classes[class_id].user]
        reason = scheduler.policy.hold_reason(machine, queue, one, self.now_s)
        assert reason is not HoldReason.ORDER, f"job {seq} was passed on {machine.name}"

    def check_idle(self) -> None:
        """A machine that waits to be called would get nothing if it asked, and there is a reason for each job.

        Not while a machine is called that does not answer: until then jobs wait for it.
        """
        if any(one.is_called for one in self.scheduler.machines.machines.values()):
            return
        for name in self.offers:
            machine = self.scheduler.machines.machines[name]
            if not machine.is_parked or machine.is_called or name in self.silent:
                continue
            decision = self.scheduler.choose(name, self.now_s, tells=True)
            assert isinstance(decision, HoldDecision), f"{name} was not called for {decision.head} ({decision.why})"
            assert HoldReason.ORDER not in decision.waiting

    def check_books(self) -> None:
        """Everything that is counted equals what is counted from scratch."""
        scheduler, ready = self.scheduler, self.scheduler.ready
        of_type: Counter[int] = Counter()
        bits = 0
        cost: dict[int, float] = defaultdict(float)
        for (class_id, priority), jobs in self.waiting.items():
            one = ready.classes[class_id].type
            of_type[one.index] += len(jobs)
            bits |= one.bits
            queue = ready.levels[priority][self.classes[class_id].user]
            assert queue.heads[one.index][class_id] == jobs[0]
            assert queue.bits & one.bits == one.bits
            if one.index < len(scheduler.work._costs_s):
                cost[priority] += len(jobs) * scheduler.work._costs_s[one.index]
        assert ready.count == sum(of_type.values())
        assert {at: count for at, count in enumerate(ready.type_counts) if count} == of_type
        assert ready.bits == bits
        assert sorted(-at for at in ready.priorities) == sorted({priority for _, priority in self.waiting})
        for users in ready.levels.values():
            for queue in users.values():
                assert queue.count == sum(queue.counts)
                for index, machines in queue.kept.items():
                    assert len(machines) <= queue.counts[index]
                    for machine in machines:
                        assert scheduler.machines.machines[machine.name] is machine  # type: ignore[attr-defined]
                        assert machine.kept.queue is queue
                        assert machine.kept.type.index == index
        self._check_running(cost)

    def _check_running(self, cost: dict[int, float]) -> None:
        scheduler = self.scheduler
        leases = list(scheduler.machines.leases())
        assert Counter(lease.allocation for lease in leases) == Counter(one for _, _, one in self.running)
        assert scheduler.work.running == len(leases)
        ready_s = sum(cost.values())
        ends_s = sum(lease.cost_rate * (lease.until_s - self.now_s) for lease in leases)
        assert abs(scheduler.work.both_s(self.now_s)[1] - max(0.0, ready_s) - max(0.0, ends_s)) < 1e-3
        views = scheduler.shares.views({one.user for one in self.classes}, self.now_s)
        for user, view in views.items():
            mine = [lease for lease in leases if lease.user == user]
            assert (view.jobs, view.devices) == (len(mine), sum(len(one.allocation.devices) for one in mine))
        for name, machine in scheduler.machines.machines.items():
            assert machine.busy_until_s == max((lease.until_s for lease in machine.leases), default=0.0)
            if not machine.leases:
                assert scheduler.index.offer(name) == machine.idle()

    def check_done(self) -> None:
        """When nothing happens any more, only jobs wait that no machine which still asks may start."""
        assert not self.running
        for name in set(self.offers) - self.silent:
            machine = self.scheduler.machines.machines[name]
            decision = self.scheduler.choose(name, self.now_s, tells=True)
            assert isinstance(decision, HoldDecision), f"{name} was not called for {decision.head} ({decision.why})"
            for reason in decision.waiting:
                assert reason in (HoldReason.ENDS, HoldReason.LIMIT) or reason not in set(HoldReason), (name, decision)
            assert machine.kept is None

    # -- inside

    def _take(self, grant: StartDecision) -> int:
        key = (grant.head.class_id, grant.head.priority)
        seq = self.ready[key].pop(0)
        assert seq == grant.head.seq
        self._tell(*key)
        return seq

    def _return(self, seq: int) -> None:
        key = self.job_of[seq]
        insort(self.ready[key], seq)
        self._tell(*key)

    def _tell(self, class_id: int, priority: int) -> None:
        jobs = self.ready[class_id, priority]
        self.scheduler.ready.set_head(class_id, priority, jobs[0] if jobs else 0, len(jobs))

    def _nth(self, class_id: int, priority: int, place: int) -> int | None:
        jobs = self.ready[class_id, priority]
        return jobs[place] if place < len(jobs) else None


# -- random ones

users = st.sampled_from(["ada", "bob", "eve"])


@st.composite
def classes(draw: st.DrawFn) -> Class:
    """A class whose estimate is right, wrong by a hundred times either way, or missing."""
    true_s = draw(st.sampled_from([30.0, 600.0, 7200.0]))
    error = draw(st.sampled_from([None, 1.0, 1.0, 100.0, 0.01]))
    return Class(
        asks=draw(st.sampled_from(sorted(ASKS))),
        user=draw(users),
        stated_s=None if error is None else true_s * error,
        true_s=true_s,
        preferred=draw(st.sampled_from([(), (), ("a",), ("b", "c"), ("gone",)])),
    )


def machines(name: str) -> st.SearchStrategy[Spec]:
    return st.builds(
        Spec,
        name=st.just(name),
        kind=st.sampled_from(sorted(KINDS)),
        shares=st.sampled_from([None, True, False]),
        slots=st.sampled_from([None, None, 1, 4]),
        left_s=st.sampled_from([None, None, None, 1500.0, 20000.0]),
    )


_names = st.sampled_from(NAMES)
_at = st.integers(0, 4)


def _step(what: str, *given: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(st.just(what), *given)


_coming = _step("come", _at, st.integers(1, 6), st.sampled_from([0, 0, 0, 5]))
_ending = _step("end")
steps = st.one_of(
    _coming,
    _coming,
    _coming,
    _ending,
    _ending,
    _step("answer"),
    _step("wait", st.sampled_from([1.0, 10.0, 700.0, 100_000.0])),
    _step("jump", st.sampled_from([-1e7, -5000.0, -0.5, 5000.0, 1e9])),
    _step("join", _names.flatmap(machines)),
    _step("leave", _names),
    _step("close", _names, st.booleans()),
    _step("silence", _names),
    _step("decline", _names),
    _step("slow", _names, st.sampled_from([0.01, 100.0])),
    _step("lose", _names),
    _step("report", _at, st.sampled_from([-1e300, 0.0, 60.0, 1e5, 1e300])),
    _step("limit", users, st.sampled_from([None, 1, 2]), st.sampled_from([None, 1])),
    _step("state", _at, st.sampled_from([None, 10.0, 600.0, 60_000.0])),
)
"""Things that happen: the name of a method of `World`, and what it is called with."""
