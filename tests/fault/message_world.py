"""A fleet in one thread: the real queue, workers that decide as real keepers do, and a link that may do anything.

Messages travel as their real bytes. The link loses, delays, doubles and so reorders them; workers stand still, die and
come back; the coordinator restarts and its wall clock jumps. Time is a number and chance a seed, so that every run can
be had again. What must never happen is looked for while it runs: a job that two workers execute at once, a second
result of one wish, an epoch that returns.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from stoker.coordinator.queue.commands import CancelJobs, RequeueJobs, Sweep, Write
from stoker.core.errors import InternalError, StokerError, Unavailable
from stoker.core.job import JobSpec
from stoker.protocol.codec import from_json, to_json
from stoker.protocol.lease_messages import (
    Claim,
    ClaimResponse,
    Finish,
    Hello,
    Renewal,
    RenewalResponse,
    Welcome,
    WriteResponse,
)
from tests.contract.queue_driving import Driven
from tests.fault.message_worker import Courier, MessageWorker

ANSWERS: dict[type, type] = {Hello: Welcome, Claim: ClaimResponse, Renewal: RenewalResponse}
ANSWER_S = 20.0
LOOK_AGAIN_S = 2.0
SWEEP_EVERY_S = 5.0
Then = Callable[[Any], None]


@dataclass(slots=True)
class Weather:
    """How bad it is. Times are means; none of that sort happens where there is none."""

    loss: float = 0.08
    doubling: float = 0.08
    delay_s: float = 0.4
    long_delay: float = 0.03
    """How often something takes up to some minutes: longer than leases last."""
    pause_every_s: float | None = 15.0
    crash_every_s: float | None = 30.0
    restart_every_s: float | None = 150.0
    jump_every_s: float | None = 60.0
    cancel_every_s: float | None = 30.0

    @property
    def bad(self) -> tuple[tuple[float | None, str], ...]:
        return (
            (self.pause_every_s, "pause"),
            (self.crash_every_s, "crash"),
            (self.restart_every_s, "restart"),
            (self.jump_every_s, "jump"),
            (self.cancel_every_s, "cancel"),
        )


@dataclass(slots=True)
class Seen:
    """What happened, for whoever wants to know that something did."""

    messages: int = 0
    stale: int = 0
    repeats: int = 0
    done: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bad things, by name."""


class MessageWorld:
    """All of it."""

    def __init__(self, fleet: Driven, *, seed: int, workers: int, jobs: tuple[JobSpec, ...], weather: Weather) -> None:
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.weather, self.seen = weather, Seen()
        self.now_s = 0.0
        self.is_calm = False
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._boot = 0
        self._is_up = True
        self._wishes: dict[str, int] = {}
        """How often each job was wanted: its submission and every requeue."""
        self._completed: defaultdict[str, int] = defaultdict(int)
        self._granted: dict[tuple[str, int, int], str] = {}
        self._executing: defaultdict[str, set[Courier]] = defaultdict(set)
        self.waiting: dict[str, int] = {}
        """Why jobs wait, as the last claim that got nothing was told."""
        self._wishes = {one.id: 1 for one in fleet.submit(*jobs).jobs}
        self.workers = [MessageWorker(self, f"w{number}") for number in range(workers)]
        for worker in self.workers:
            self.later(self.chance.uniform(0, 10), worker.start)
        self.later(SWEEP_EVERY_S, self._sweep)
        for every_s, what in weather.bad:
            if every_s is not None:
                self._plan(every_s, what)

    def later(self, after_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now_s + after_s, next(self._numbers), act))

    def new_number(self) -> int:
        return next(self._numbers)

    def run(self, until_s: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Let things happen until a time, or until something is so."""
        while self._later and self._later[0][0] <= until_s and not unless():
            at_s, _, act = heapq.heappop(self._later)
            self.fleet.clock.advance(max(0.0, at_s - self.now_s))
            self.now_s = max(self.now_s, at_s)
            act()

    def calm_down(self) -> None:
        """From now on everything works."""
        self.is_calm = True
        if not self._is_up:
            self._come_back()
        for worker in self.workers:
            worker.wake()

    def call(self, sender: MessageWorker, asked: Any, then: Then) -> None:
        """Send a message; `then` hears the first answer, or that none came."""
        job = asked.job if isinstance(asked, Write) else ""
        message: Any = asked.said if isinstance(asked, Write) else asked
        data, kind = to_json(message), type(message)
        is_open = True

        def answer(given: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                then(given)

        def arrive(boot: int | None = None, waited_s: float = 0.0) -> None:
            if not self._is_up or boot not in (None, self._boot):
                self._travel(lambda: answer(Unavailable("nobody answers")))
                return
            said = from_json(kind, data)
            given = self._ask(sender, Write(job=job, said=said) if job else said)
            is_empty = (
                isinstance(said, Claim) and isinstance(given, ClaimResponse) and not (given.grants or given.orders)
            )
            if is_empty and sender.is_alive and waited_s < said.wait_s:
                again_boot = self._boot
                self.later(LOOK_AGAIN_S, lambda: arrive(again_boot, waited_s + LOOK_AGAIN_S))
                return
            if not isinstance(given, StokerError):
                given = from_json(ANSWERS.get(kind, WriteResponse), to_json(given))
            self._travel(lambda: answer(given))

        for _ in range(1 + (not self.is_calm and self.chance.random() < self.weather.doubling)):
            self._travel(arrive)
        # A question that may be held open is waited for longer.
        patience_s = ANSWER_S + (message.wait_s if isinstance(message, Claim) else 0.0)
        self.later(patience_s, lambda: answer(Unavailable("no answer in time")))

    def begins(self, courier: Courier) -> None:
        """Somebody executes a job from now on. Nobody else may, but those who do not know that they stood still."""
        others = {one for one in self._executing[courier.token.job] if not one.stood_still}
        assert not others or courier.stood_still or courier.grant.spec.on_partition == "keep", (
            f"{courier.grant.spec.name} is executed twice at {self.now_s:.1f} s: {courier.token}, "
            f"and {[one.token for one in others]}"
        )
        self._executing[courier.token.job].add(courier)

    def ends(self, courier: Courier) -> None:
        self._executing[courier.token.job].discard(courier)

    def _travel(self, arrive: Callable[[], None]) -> None:
        weather, chance = self.weather, self.chance
        if self.is_calm:
            self.later(0.01, arrive)
        elif chance.random() >= weather.loss:
            is_long = chance.random() < weather.long_delay
            self.later(chance.uniform(1, 300) if is_long else chance.expovariate(1 / weather.delay_s), arrive)

    def _ask(self, sender: MessageWorker, command: Any) -> Any:
        self.seen.messages += 1
        try:
            given = self.fleet.queue.ask(command)
        except StokerError as error:
            if isinstance(error, InternalError):
                raise
            self.seen.stale += error.code == "stale_lease"
            return error
        if isinstance(given, ClaimResponse):
            self._see_grants(command, given)
        if isinstance(given, WriteResponse):
            self.seen.repeats += given.is_repeat
            if isinstance(command.said, Finish) and not given.is_repeat:
                self._completed[command.job] += 1
                assert self._completed[command.job] <= self._wishes[command.job], "a second result of one wish"
        return given

    def _see_grants(self, claim: Claim, given: ClaimResponse) -> None:
        if not given.grants:
            self.waiting = dict(given.waiting)
        for grant in given.grants:
            holder = self._granted.setdefault((grant.job, grant.generation, grant.epoch), claim.incarnation)
            assert holder == claim.incarnation, "one epoch was given to two workers"

    def _sweep(self) -> None:
        if self._is_up:
            self._ask(self.workers[0], Sweep())
        self.later(SWEEP_EVERY_S, self._sweep)

    def _plan(self, every_s: float, what: str) -> None:
        def happen() -> None:
            if not self.is_calm:
                self.seen.done[what] += 1
                getattr(self, f"_{what}")()
                self._plan(every_s, what)

        self.later(self.chance.expovariate(1 / every_s), happen)

    def _pause(self) -> None:
        """A worker stands still, often for longer than its leases last."""
        worker = self.chance.choice(self.workers)
        worker.pause()
        self.later(self.chance.uniform(1, 400), worker.wake)

    def _crash(self) -> None:
        worker = self.chance.choice(self.workers)
        worker.die()
        self.later(self.chance.uniform(1, 300), worker.start)

    def _restart(self) -> None:
        if self._is_up:
            self._is_up = False
            self._boot += 1
            self.fleet.close()
            self.later(self.chance.uniform(1, 60), self._come_back)

    def _come_back(self) -> None:
        if not self._is_up:
            self.fleet.open()
            self._is_up = True

    def _jump(self) -> None:
        self.fleet.clock.jump(self.chance.choice([-3600.0, -60.0, 60.0, 3600.0]))

    def _cancel(self) -> None:
        """Somebody wants a job no longer, or again."""
        if not self._is_up:
            return
        job = self.chance.choice(sorted(self._wishes))
        if self.chance.random() < 0.5:
            self._ask(self.workers[0], CancelJobs(jobs=(job,)))
            return
        done = self._ask(self.workers[0], RequeueJobs(jobs=(job,)))
        if not isinstance(done, StokerError):
            self._wishes[job] += len(done.changed)
