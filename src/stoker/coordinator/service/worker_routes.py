"""What workers say most often, without a framework between: hello, claims, renewals, and attempts' own words.

A table says what each route takes and answers; the OpenAPI document is written from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel

from stoker.coordinator.queue.commands import Answer, Command, Write
from stoker.coordinator.service.counter import Counter
from stoker.coordinator.service.exchange import Reply, Route
from stoker.coordinator.service.intake import read_message
from stoker.coordinator.service.waiting import Mark, WaitingClaims
from stoker.model.errors import StokerError
from stoker.model.fleet_errors import NotAllowed
from stoker.model.frozen import frozen
from stoker.model.principals import Principal
from stoker.wire.codec import to_json
from stoker.wire.contents import SourcesAsk
from stoker.wire.health import MachineReport
from stoker.wire.leasing import (
    CancelConfirmed,
    Claim,
    Decline,
    Fail,
    Finish,
    Granted,
    Hello,
    PointCheckpoint,
    Release,
    Renewal,
    Renewed,
    Settled,
    Start,
    Tokened,
    Welcome,
)


@frozen
class Spoken:
    """One route: its place, what it is for, what it takes and what it answers. All of them are POST."""

    path: str
    summary: str
    asks: type[BaseModel]
    answers: type[BaseModel]


HELLO = Spoken(path="/v1/hello", summary="A worker's start", asks=Hello, answers=Welcome)
CLAIMS = Spoken(path="/v1/claims", summary="A worker asks for work, and may wait", asks=Claim, answers=Granted)
RENEWALS = Spoken(path="/v1/renewals", summary="One heartbeat for all leases", asks=Renewal, answers=Renewed)
_ATTEMPTS = "/v1/attempts/"
_WORDS: dict[str, tuple[type[Tokened], str]] = {
    "start": (Start, "The job's process runs"),
    "decline": (Decline, "The worker looked again and will not start it"),
    "release": (Release, "Given back, attempt not charged"),
    "finish": (Finish, "It completed; its bundle lies with the coordinator"),
    "fail": (Fail, "It failed"),
    "cancelled": (CancelConfirmed, "It was stopped, as was wanted"),
    "checkpoint": (PointCheckpoint, "The job goes on from here, should this attempt not finish"),
}
SPOKEN = (
    HELLO,
    CLAIMS,
    RENEWALS,
    *(
        Spoken(path=f"{_ATTEMPTS}{{job}}/{word}", summary=summary, asks=kind, answers=Settled)
        for word, (kind, summary) in _WORDS.items()
    ),
)


class WorkerRoutes:
    """Answers them, now or once the queue has."""

    def __init__(
        self,
        counter: Counter,
        waiting: WaitingClaims,
        on_settled: Callable[[str], None],
        *,
        on_heard: Callable[[Hello | Renewal], None] = lambda _: None,
        told: Callable[[str, Answer], Answer] = lambda _worker, answer: answer,
    ) -> None:
        """Answer by the queue; `on_settled` hears of jobs, `on_heard` what a machine said of itself, once it counts.

        `told` adds to a worker's answer what else it is to hear.
        """
        self._counter = counter
        self._waiting = waiting
        self._on_settled = on_settled
        self._on_heard = on_heard
        self._told = told
        self._held: set[asyncio.Task[None]] = set()
        self._whole: dict[str, Route] = {
            HELLO.path: lambda body, reply, who: self._hear(own(read_message(Hello, body), who), reply),
            CLAIMS.path: self._begin_claim,
            RENEWALS.path: lambda body, reply, who: self._hear(own(read_message(Renewal, body), who), reply),
        }

    def find(self, path: str) -> Route | None:
        """Give what answers at a path; nothing if it is not one of these."""
        found = self._whole.get(path)
        if found is not None or not path.startswith(_ATTEMPTS):
            return found
        job, _, word = path[len(_ATTEMPTS) :].partition("/")
        known = _WORDS.get(word)
        if known is None or not job:
            return None
        kind = known[0]

        def write(body: bytes, reply: Reply, who: Principal) -> None:
            said = read_message(kind, body)
            # The table has nothing but what `Said` has.
            self._ask(Write(job=job, said=said, machine=who.name), reply, job)  # type: ignore[arg-type]

        return write

    def _ask(self, command: Command, reply: Reply, job: str = "") -> None:
        def then(answer: Answer | StokerError) -> None:
            if isinstance(answer, StokerError):
                reply.fail(answer)
                return
            if job:
                self._on_settled(job)
            reply.say(to_json(answer))  # type: ignore[arg-type]  # workers' words are answered by messages

        self._counter.post(command, then)

    def _hear(self, said: Hello | Renewal, reply: Reply) -> None:
        def then(answer: Answer | StokerError) -> None:
            if isinstance(answer, StokerError):
                reply.fail(answer)
                return
            self._on_heard(said)
            reply.say(to_json(self._told(said.worker, answer)))  # type: ignore[arg-type]  # workers' words are answered by messages

        self._counter.post(said, then)

    def _begin_claim(self, body: bytes, reply: Reply, who: Principal) -> None:
        claim = own(read_message(Claim, body), who)
        since = self._waiting.mark()

        def then(answer: Answer | StokerError) -> None:
            if isinstance(answer, StokerError):
                reply.fail(answer)
                return
            answer = self._told(claim.worker, answer)
            if isinstance(answer, Granted) and self._waiting.holds(claim, answer):
                holding = asyncio.ensure_future(self._hold(claim, answer, since, reply))
                self._held.add(holding)
                holding.add_done_callback(self._held.discard)
            else:
                reply.say(to_json(answer))  # type: ignore[arg-type]  # workers' words are answered by messages

        # Most claims are answered at once: only one that waits is worth a task.
        self._counter.post(claim, then)

    async def _hold(self, claim: Claim, known: Granted, since: Mark, reply: Reply) -> None:
        try:
            granted = await self._waiting.wait(claim, known, since, reply.gone)
        except Exception as error:  # noqa: BLE001 - here every error becomes an answer
            reply.fail(error)
        else:
            if granted is not None:
                reply.say(to_json(granted))


W = TypeVar("W", Hello, Claim, Renewal, SourcesAsk, MachineReport)


def own(said: W, who: Principal) -> W:
    """Give what a worker says in its own name, or refuse it: nobody speaks for another machine."""
    if who.name and said.worker != who.name:
        hint = "a machine speaks for itself: its name is the one in its certificate"
        raise NotAllowed(f"this is {who.name}'s certificate, not {said.worker}'s", hint=hint, machine=who.name)
    return said
