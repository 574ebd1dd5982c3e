"""What the queue promises, in a page: jobs as plain records, and what becomes of each when something is said of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from stoker.core.leases import Budgets, FleetTimes

TIMES, BUDGETS = FleetTimes(), Budgets()
LASTS_S = TIMES.lease_s + TIMES.grace_s
LIVE = ("claimed", "running")
TERMINAL = ("completed", "failed", "cancelled")
REPEATS = {
    "finish": ("completed",),
    "fail": ("failed", "cancelled"),
    "release": ("released", "cancelled"),
    "decline": ("declined", "cancelled"),
    "cancelled": ("cancelled",),
}
"""An attempt that ended so may say this again."""
Pass = tuple[str, int, int, int]
"""Job, attempt, epoch, generation."""


@dataclass(slots=True)
class Tried:
    """One attempt, as far as anybody may still speak of it."""

    epoch: int
    generation: int
    machine: str
    ending: str = ""
    tree: str = ""


@dataclass(slots=True)
class Job:
    """One job."""

    allowed: int = 1
    keeps: bool = False
    state: str = "pending"
    epoch: int = 0
    is_cancelling: bool = False
    until_s: float = 0.0
    failures: int = 0
    lost: int = 0
    went_down: set[str] = field(default_factory=set)
    """Machines that went away while they ran it."""
    tries: list[Tried] = field(default_factory=list)

    @property
    def last(self) -> Tried:
        return self.tries[-1]

    def end(self, ending: str, state: str) -> None:
        self.last.ending, self.state, self.is_cancelling = ending, state, False

    def fail(self, cause: str) -> None:
        if self.is_cancelling:
            self.end("cancelled", "cancelled")
            return
        self.failures += cause == "user"
        self.lost += cause == "lost"
        is_over = self.failures >= self.allowed if cause == "user" else cause == "lost" and self.lost >= BUDGETS.lost
        self.end("failed", "failed" if is_over else "pending")

    def lose(self) -> None:
        if self.is_cancelling:
            self.end("expired", "cancelled")
            return
        self.lost += 1
        is_poison = False
        if self.state == "running":
            self.went_down.add(self.last.machine)
            is_poison = len(self.went_down) >= BUDGETS.poisoned
        self.end("expired", "failed" if is_poison or self.lost >= BUDGETS.lost else "pending")

    def requeue(self) -> None:
        self.state, self.failures, self.lost, self.went_down = "pending", 0, 0, set()
        self.epoch += 1


class Model:
    """All of them, and the coordinator's generation."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.generation = 1
        self.started_s = 0.0
        self.incarnations: dict[str, str] = {}
        """Machine → the start of its worker that counts; empty: nobody knows."""
        self.outdated: dict[str, list[str]] = {}

    def copy(self) -> Model:
        return copy.deepcopy(self)

    def grant(self, token: Pass, machine: str, now_s: float) -> None:
        """Somebody was given a job: it must have been to be had, and the token is the next one."""
        id, attempt, epoch, generation = token
        job = self.jobs[id]
        assert job.state == "pending", f"a {job.state} job was granted"
        assert (attempt, epoch, generation) == (len(job.tries) + 1, job.epoch + 1, self.generation)
        job.state, job.epoch, job.until_s = "claimed", epoch, now_s + TIMES.start_s
        job.tries.append(Tried(epoch, generation, machine))

    def is_live(self, token: Pass) -> bool:
        id, attempt, epoch, generation = token
        job = self.jobs[id]
        held = (len(job.tries), job.epoch, job.last.generation) if job.tries else ()
        return job.state in LIVE and held == (attempt, epoch, generation)

    def say(self, token: Pass, word: str, fields: dict[str, Any], now_s: float) -> str:
        """Take a word in; gives `done`, `repeat`, `stale`, `conflict` or `illegal`."""
        job = self.jobs[token[0]]
        if not self.is_live(token):
            return self._late(job, token, word, fields)
        if word == "start":
            if job.state == "running":
                return "repeat"
            job.state, job.until_s = "running", now_s + LASTS_S
        elif word == "finish":
            job.end("completed", "completed")
            job.last.tree = fields["tree"]
        elif word == "fail":
            job.fail(fields["cause"])
        elif (word, job.state) == ("decline", "running") or (word == "cancelled" and not job.is_cancelling):
            return "illegal"
        elif word in ("release", "decline", "cancelled"):
            ending = {"release": "released", "decline": "declined"}.get(word, "")
            job.end("cancelled" if job.is_cancelling else ending, "cancelled" if job.is_cancelling else "pending")
        return "done"

    def _late(self, job: Job, token: Pass, word: str, fields: dict[str, Any]) -> str:
        _, attempt, epoch, generation = token
        tried = job.tries[attempt - 1] if attempt <= len(job.tries) else None
        if tried is None or (tried.epoch, tried.generation) != (epoch, generation):
            return "stale"
        if word == "finish" and tried.ending == "completed":
            return "repeat" if tried.tree == fields["tree"] else "conflict"
        is_newest = job.state == "pending" and job.epoch == epoch and attempt == len(job.tries)
        may_come_back = job.keeps and tried.ending == "expired" and generation == self.generation
        if word == "finish" and may_come_back and is_newest:
            job.end("completed", "completed")
            tried.tree = fields["tree"]
            return "done"
        return "repeat" if tried.ending in REPEATS.get(word, ()) else "stale"

    def renew(self, token: Pass, now_s: float) -> None:
        job = self.jobs[token[0]]
        if self.is_live(token) and job.state == "running":
            job.until_s = now_s + LASTS_S

    def sweep(self, now_s: float) -> set[str]:
        """Return the jobs whose leases end now."""
        if now_s < self.started_s + LASTS_S:
            return set()
        over = {id for id, job in self.jobs.items() if job.state in LIVE and job.until_s <= now_s}
        for id in over:
            self.jobs[id].lose()
        return over

    def greet(self, machine: str, incarnation: str) -> bool:
        """Hear a hello; gives whether it is taken."""
        known = self.incarnations.get(machine)
        if incarnation in self.outdated.get(machine, ()):
            return False
        if known is not None and known != incarnation:
            for job in self.jobs.values():
                if job.state in LIVE and job.last.machine == machine:
                    job.lose()
            self.outdated.setdefault(machine, []).append(known)
        self.incarnations[machine] = incarnation
        return True

    def restart(self, now_s: float) -> None:
        """Everybody gets a whole lease."""
        self.started_s = now_s
        for job in self.jobs.values():
            job.until_s = now_s + LASTS_S

    def restore(self, generation: int) -> None:
        """Leases of the lost past end, and nobody is to blame."""
        self.generation = generation
        self.incarnations = dict.fromkeys(self.incarnations, "")
        for job in self.jobs.values():
            if job.state in LIVE:
                job.end("expired", "cancelled" if job.is_cancelling else "pending")
