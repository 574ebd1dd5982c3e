"""What workers say most often, without a framework between: hello, claims, renewals, and attempts' own words.

A table says what each route takes and answers; the OpenAPI document is written from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Protocol, TypeVar

from pydantic import BaseModel

from stoker.coordinator.http.access import LOCAL_WORKER, Peer, owner_of
from stoker.coordinator.http.app_state import QueueBridge
from stoker.coordinator.http.http_messages import (
    ALWAYS,
    SPEECH_BYTES,
    WORD_BYTES,
    announced_bytes,
    json_bytes,
    known,
    read_message,
    too_large,
)
from stoker.coordinator.http.long_poll import Mark, WaitingClaims
from stoker.coordinator.http.submission_body import BodyMemoryBudget, no_room
from stoker.coordinator.queue.commands import Answer, Command, Write
from stoker.core.errors import Forbidden, StokerError
from stoker.core.frozen import frozen
from stoker.core.leases import Principal
from stoker.protocol.codec import to_json
from stoker.protocol.lease_messages import (
    CancelConfirmed,
    Claim,
    ClaimResponse,
    Decline,
    Fail,
    Finish,
    Hello,
    LeaseTokenMessage,
    PointCheckpoint,
    Release,
    Renewal,
    RenewalResponse,
    Start,
    Welcome,
    WriteResponse,
)
from stoker.protocol.operator_messages import MachineReport
from stoker.protocol.tree_messages import SourcesRequest

# One of workers' own requests, answered by its connection itself: no task, no framework, one write.
#
# It stands where the server keeps the request that is under way, and says of itself what the server asks there. The
# same routes can be reached through the framework (`http_app`); what is answered is decided by `WorkerRoutes` alone.

_HEAD = (
    b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n"
    + b"".join(b"%b: %b\r\n" % header for header in ALWAYS)
    + b"content-length: %d\r\n"
)
_DONE = _HEAD.replace(b"%d %b", b"200 OK", 1)


class WorkerReply(Protocol):
    """Where an answer goes. Only the first counts."""

    def say(self, body: bytes) -> None:
        """Answer with JSON."""

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""

    async def gone(self) -> None:
        """Wait until whoever asked has left."""


Route = Callable[[bytes, WorkerReply, Principal], None]
"""Answers a body of somebody's, now or later."""


class WorkerRouter(Protocol):
    """Who may ask what, without a framework."""

    def find(self, path: str) -> Route | None:
        """Return what answers at a path."""

    def judge_worker(self, headers: dict[bytes, bytes], peer: Peer) -> Principal:
        """Return the worker that asks, or refuse it with the reason."""

    @property
    def words(self) -> BodyMemoryBudget:
        """Room for the bodies of these requests."""


class NullEvent:
    """Stands where the server would wake whoever waits for a body: here nobody does."""

    def set(self) -> None:
        """Do nothing."""


class WorkerExchange:
    """One request and its answer. `on_done` is called once the answer is written."""

    __slots__ = ("_left", "_on_done", "_parts", "_release", "_route", "_size", "_transport", "_who", "disconnected",
                 "keep_alive", "message_event", "more_body", "response_complete")  # fmt: skip

    def __init__(
        self, route: Route, transport: asyncio.Transport, *, keep_alive: bool, on_done: Callable[[], None]
    ) -> None:
        self._route = route
        self._transport = transport
        self._on_done = on_done
        self._parts: list[bytes] = []
        self._size = 0
        self._left: asyncio.Future[None] | None = None
        self._who = LOCAL_WORKER
        self._release: Callable[[], None] | None = None
        # What the server looks at.
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.message_event = NullEvent()

    @property
    def response_started(self) -> bool:
        """Whether the client has been told anything: an answer leaves in one piece."""
        return self.response_complete

    def begin(self, door: WorkerRouter, headers: dict[bytes, bytes], peer: Peer) -> None:
        """Refuse the request by its head, or wait for its body."""
        try:
            self._who = who = door.judge_worker(headers, peer)
            size_bytes = announced_bytes(headers, SPEECH_BYTES)
            if size_bytes > WORD_BYTES:
                if not door.words.take_now(owner_of(who), size_bytes):
                    raise no_room()
                self._release = partial(door.words.release, owner_of(who), size_bytes)
        except Exception as error:  # noqa: BLE001 - here every error becomes an answer
            self.fail(error)

    def take(self, body: bytes) -> None:
        """Take a part of the body; what comes after an answer is dropped."""
        if not self.response_complete:
            self._parts.append(body)
            self._size += len(body)
            if self._size > SPEECH_BYTES:
                self._parts.clear()
                self.fail(too_large(SPEECH_BYTES))

    def act(self) -> None:
        """The body is whole: answer it."""
        self.more_body = False
        if self.response_complete:
            return
        parts = self._parts
        try:
            self._route(parts[0] if len(parts) == 1 else b"".join(parts), self, self._who)
        except Exception as error:  # noqa: BLE001 - here every error becomes an answer
            self.fail(error)

    def say(self, body: bytes) -> None:
        """Answer with JSON."""
        self._write(_DONE % len(body), body)

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        told = known(error)
        body = json_bytes(told.error.to_dict())
        more = b"".join(b"%b: %b\r\n" % header for header in told.headers)
        self._write(_HEAD % (told.status, _phrase(told.status), len(body)) + more, body)

    async def gone(self) -> None:
        """Wait until whoever asked has left."""
        if not self.disconnected:
            self._left = asyncio.get_running_loop().create_future()
            await self._left

    def leave(self) -> None:
        """Hear that whoever asked has left."""
        self.disconnected = True
        self._free()
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _free(self) -> None:
        """Give the room of the body back, and the body with it."""
        if self._release is not None:
            self._release()
            self._release = None
            self._parts.clear()

    def _write(self, head: bytes, body: bytes) -> None:
        if self.response_complete:
            return
        self.response_complete = True
        self._free()
        if self.disconnected or self._transport.is_closing():
            return
        self._transport.write(head + (b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n") + body)
        if not self.keep_alive:
            self._transport.close()
        self._on_done()


def _phrase(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()


@frozen
class WorkerRouteSpec:
    """One route: its place, what it is for, what it takes and what it answers. All of them are POST."""

    path: str
    summary: str
    asks: type[BaseModel]
    answers: type[BaseModel]


HELLO = WorkerRouteSpec(path="/v1/hello", summary="A worker's start", asks=Hello, answers=Welcome)
CLAIMS = WorkerRouteSpec(
    path="/v1/claims", summary="A worker asks for work, and may wait", asks=Claim, answers=ClaimResponse
)
RENEWALS = WorkerRouteSpec(
    path="/v1/renewals", summary="One heartbeat for all leases", asks=Renewal, answers=RenewalResponse
)
_ATTEMPTS = "/v1/attempts/"
_WORDS: dict[str, tuple[type[LeaseTokenMessage], str]] = {
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
        WorkerRouteSpec(path=f"{_ATTEMPTS}{{job}}/{word}", summary=summary, asks=kind, answers=WriteResponse)
        for word, (kind, summary) in _WORDS.items()
    ),
)


class WorkerRoutes:
    """Answers them, now or once the queue has."""

    def __init__(
        self,
        counter: QueueBridge,
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
        """Return what answers at a path; nothing if it is not one of these."""
        found = self._whole.get(path)
        if found is not None or not path.startswith(_ATTEMPTS):
            return found
        job, _, word = path[len(_ATTEMPTS) :].partition("/")
        known = _WORDS.get(word)
        if known is None or not job:
            return None
        kind = known[0]

        def write(body: bytes, reply: WorkerReply, who: Principal) -> None:
            said = read_message(kind, body)
            # The table has nothing but what `Said` has.
            self._ask(Write(job=job, said=said, machine=who.name), reply, job)  # type: ignore[arg-type]

        return write

    def _ask(self, command: Command, reply: WorkerReply, job: str = "") -> None:
        def then(answer: Answer | StokerError) -> None:
            if isinstance(answer, StokerError):
                reply.fail(answer)
                return
            if job:
                self._on_settled(job)
            reply.say(to_json(answer))  # type: ignore[arg-type]  # workers' words are answered by messages

        self._counter.post(command, then)

    def _hear(self, said: Hello | Renewal, reply: WorkerReply) -> None:
        def then(answer: Answer | StokerError) -> None:
            if isinstance(answer, StokerError):
                reply.fail(answer)
                return
            self._on_heard(said)
            reply.say(to_json(self._told(said.worker, answer)))  # type: ignore[arg-type]  # workers' words are answered by messages

        self._counter.post(said, then)

    def _begin_claim(self, body: bytes, reply: WorkerReply, who: Principal) -> None:
        claim = own(read_message(Claim, body), who)
        since = self._waiting.mark()

        def then(answer: Answer | StokerError) -> None:
            if isinstance(answer, StokerError):
                reply.fail(answer)
                return
            answer = self._told(claim.worker, answer)
            if isinstance(answer, ClaimResponse) and self._waiting.holds(claim, answer):
                holding = asyncio.ensure_future(self._hold(claim, answer, since, reply))
                self._held.add(holding)
                holding.add_done_callback(self._held.discard)
            else:
                reply.say(to_json(answer))  # type: ignore[arg-type]  # workers' words are answered by messages

        # Most claims are answered at once: only one that waits is worth a task.
        self._counter.post(claim, then)

    async def _hold(self, claim: Claim, known: ClaimResponse, since: Mark, reply: WorkerReply) -> None:
        try:
            granted = await self._waiting.wait(claim, known, since, reply.gone)
        except Exception as error:  # noqa: BLE001 - here every error becomes an answer
            reply.fail(error)
        else:
            if granted is not None:
                reply.say(to_json(granted))


W = TypeVar("W", Hello, Claim, Renewal, SourcesRequest, MachineReport)


def own(said: W, who: Principal) -> W:
    """Return what a worker says in its own name, or refuse it: nobody speaks for another machine."""
    if who.name and said.worker != who.name:
        hint = "a machine speaks for itself: its name is the one in its certificate"
        raise Forbidden(f"this is {who.name}'s certificate, not {said.worker}'s", hint=hint, machine=who.name)
    return said
