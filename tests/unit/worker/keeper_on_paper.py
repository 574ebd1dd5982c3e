"""A keeper on paper: happenings in, instructions out, without a process, a network or a clock."""

from __future__ import annotations

import hashlib
from typing import Any

from stoker.host.identity import mine
from stoker.model.leases import Token
from stoker.model.lifecycle import JobState
from stoker.wire.leasing import Do, Grant, Granted, LeaseOrder, Renewed, Welcome
from stoker.worker.keeper.deciding import Decision, decide
from stoker.worker.keeper.ending import AttemptEnd
from stoker.worker.keeper.happenings import (
    Answered,
    Began,
    Given,
    Greeted,
    Happening,
    Ticked,
)
from stoker.worker.keeper.instructions import (
    AskForWork,
    CallBack,
    Renew,
    Tell,
)
from stoker.worker.keeper.state import Keeping, Wishes

COMPLETED = AttemptEnd(state=JobState.COMPLETED, seconds=2.0)
FAILED = AttemptEnd(state=JobState.FAILED, error={"message": "exit 1"}, exit_code=1)
LISTEN = AskForWork(most=0)
STOPPED = AttemptEnd(state=JobState.CANCELLED, error={"error": "terminated"}, exit_code=143)


def grant(name: str = "a", **more: Any) -> Grant:
    fields: dict[str, Any] = {"attempt": 1, "epoch": 1, "generation": 1, "recipe": "command", **more}
    return Grant(job=hashlib.sha256(name.encode()).hexdigest(), name=name, lease_s=90.0, start_s=60.0, **fields)


class Told:
    """A keeper on paper: happenings in, instructions out."""

    def __init__(self, *, at_s: float = 1000.0, **wishes: Any) -> None:
        self.now_s = at_s
        self.keeping = Keeping(wishes=Wishes(**{"slots": 1, **wishes}))
        self.done: list[Any] = []

    def take(self, happening: Happening) -> list[Any]:
        decision: Decision = decide(self.keeping, happening)
        self.keeping = decision.keeping
        self.done = [one for one in decision.instructions if not isinstance(one, Tell) and one != LISTEN]
        self.listens = LISTEN in decision.instructions
        self.told = [one.kind for one in decision.instructions if isinstance(one, Tell)]
        return self.done

    def join(self, **more: Any) -> Told:
        welcome = Welcome(
            worker="desk", generation=1, heartbeat_s=30.0, lease_s=90.0, start_s=60.0, claim_wait_s=20.0, server_s=0.0,
            version="1", **more,
        )  # fmt: skip
        self.take(Greeted(now_s=self.now_s, welcome=welcome))
        return self

    def give(self, *grants: Grant, asked_s: float | None = None, **more: Any) -> list[Any]:
        answer = Granted(grants=grants, generation=1, **more.pop("answer", {}))
        asked_s = self.now_s if asked_s is None else asked_s
        return self.take(Given(now_s=self.now_s, asked_s=asked_s, answer=answer, **more))

    def run(self, one: Grant) -> Token:
        self.give(one)
        self.take(Began(now_s=self.now_s, token=one.token(), child=mine(), run="run-1"))
        return one.token()

    def answer(self, *orders: LeaseOrder, asked_s: float | None = None, closed: str = "") -> list[Any]:
        answer = Renewed(lease_s=90.0, heartbeat_s=30.0, generation=1, server_s=0.0, orders=orders, closed=closed)
        asked_s = self.now_s if asked_s is None else asked_s
        return self.take(Answered(now_s=self.now_s, asked_s=asked_s, tokens=tuple(self.keeping.leases), answer=answer))

    def wait(self, seconds: float) -> list[Any]:
        self.now_s += seconds
        return self.take(Ticked(now_s=self.now_s))

    def lease(self, token: Token) -> Any:
        return self.keeping.leases[token]


def running(**more: Any) -> tuple[Told, Token]:
    told = Told().join()
    return told, told.run(grant(**more))


def of_leases(done: list[Any]) -> list[Any]:
    """Leave out what is only about the next job and the next heartbeat."""
    return [one for one in done if not isinstance(one, AskForWork | CallBack | Renew)]


def order(token: Token, do: Do, why: str = "") -> LeaseOrder:
    return LeaseOrder(job=token.job, epoch=token.epoch, do=do, why=why)
