"""A keeper on paper: happenings in, instructions out, without a process, a network or a clock."""

from __future__ import annotations

import hashlib
from typing import Any

from stoker.core.job import JobState
from stoker.core.leases import AttemptToken
from stoker.host.identity import mine
from stoker.protocol.lease_messages import (
    ClaimResponse,
    Grant,
    LeaseInstruction,
    LeaseInstructionKind,
    RenewalResponse,
    Welcome,
)
from stoker.worker.assignment import AttemptEnd
from stoker.worker.state_machine import decide
from stoker.worker.worker_state import (
    AttemptStarted,
    ClaimAnswered,
    ClaimJobs,
    ClockTick,
    Happening,
    HelloAnswered,
    LogLine,
    Renew,
    RenewalAnswered,
    WithdrawClaim,
    WorkerPolicy,
    WorkerShutdownMode,
    WorkerState,
)
from tests.fakes.grants import grant_of

COMPLETED = AttemptEnd(state=JobState.COMPLETED, seconds=2.0)
FAILED = AttemptEnd(state=JobState.FAILED, error={"message": "exit 1"}, exit_code=1)
LISTEN = ClaimJobs(most=0)
STOPPED = AttemptEnd(state=JobState.CANCELLED, error={"error": "terminated"}, exit_code=143)


def grant(name: str = "a", **more: Any) -> Grant:
    fields: dict[str, Any] = {"attempt": 1, "epoch": 1, "generation": 1, "recipe": "command", **more}
    return grant_of(job=hashlib.sha256(name.encode()).hexdigest(), name=name, lease_s=90.0, start_s=60.0, **fields)


class Told:
    """A keeper on paper: happenings in, instructions out."""

    def __init__(self, *, at_s: float = 1000.0, **wishes: Any) -> None:
        self.now_s = at_s
        self.keeping = WorkerState(wishes=WorkerPolicy(**{"slots": 1, **wishes}))
        self.done: list[Any] = []

    def take(self, happening: Happening) -> list[Any]:
        self.keeping, instructions = decide(self.keeping, happening)
        self.done = [one for one in instructions if not isinstance(one, LogLine) and one != LISTEN]
        self.listens = LISTEN in instructions
        self.lines = [one for one in instructions if isinstance(one, LogLine)]
        self.told = [one.kind for one in self.lines]
        return self.done

    def is_leaving(self) -> bool:
        return self.keeping.leaving is WorkerShutdownMode.SOFTLY

    def join(self, **more: Any) -> Told:
        welcome = Welcome(
            worker="desk", generation=1, heartbeat_s=30.0, lease_s=90.0, start_s=60.0, claim_wait_s=20.0, server_s=0.0,
            version="1", **more,
        )  # fmt: skip
        self.take(HelloAnswered(now_s=self.now_s, welcome=welcome))
        return self

    def give(self, *grants: Grant, asked_s: float | None = None, **more: Any) -> list[Any]:
        answer = ClaimResponse(grants=grants, generation=1, **more.pop("answer", {}))
        asked_s = self.now_s if asked_s is None else asked_s
        listens = self.keeping.asking is None and self.keeping.is_listening
        given = ClaimAnswered(now_s=self.now_s, asked_s=asked_s, answer=answer, was_listening=listens, **more)
        return self.take(given)

    def run(self, one: Grant) -> AttemptToken:
        self.give(one)
        self.take(AttemptStarted(now_s=self.now_s, token=one.token(), child=mine(), run="run-1"))
        return one.token()

    def answer(self, *orders: LeaseInstruction, asked_s: float | None = None, **more: Any) -> list[Any]:
        answer = RenewalResponse(lease_s=90.0, heartbeat_s=30.0, generation=1, server_s=0.0, orders=orders, **more)
        asked_s = self.now_s if asked_s is None else asked_s
        return self.take(
            RenewalAnswered(now_s=self.now_s, asked_s=asked_s, tokens=tuple(self.keeping.leases), answer=answer)
        )

    def wait(self, seconds: float) -> list[Any]:
        self.now_s += seconds
        return self.take(ClockTick(now_s=self.now_s))

    def lease(self, token: AttemptToken) -> Any:
        return self.keeping.leases[token]


def running(**more: Any) -> tuple[Told, AttemptToken]:
    told = Told().join()
    return told, told.run(grant(**more))


def of_leases(done: list[Any]) -> list[Any]:
    """Leave out what is only about the next job and the next heartbeat."""
    return [one for one in done if not isinstance(one, ClaimJobs | WithdrawClaim | Renew)]


def order(token: AttemptToken, do: LeaseInstructionKind, why: str = "") -> LeaseInstruction:
    return LeaseInstruction(job=token.job, epoch=token.epoch, do=do, why=why)
