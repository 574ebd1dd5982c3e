"""The most frequent requests of workers, served without a framework: hello, claims, renewals, reports of attempts.

A table has the request and response of each route; the OpenAPI document is written from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoker.coordinator.http.access import ANONYMOUS, Judge, Peer, owner_of
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import (
    ALWAYS,
    SPEECH_BYTES,
    WORD_BYTES,
    Header,
    Refusal,
    announced_bytes,
    read_message,
    refusal_of,
    too_large,
)
from stoker.coordinator.http.submission_body import BodyMemoryBudget, no_room
from stoker.coordinator.queue.commands import Answer, Command, Write
from stoker.core.errors import Forbidden, StokerError, Usage
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
    LeaseWrite,
    PointCheckpoint,
    Release,
    Renewal,
    RenewalResponse,
    Start,
    Welcome,
    WriteResponse,
)
from stoker.protocol.operator_messages import MachineReport
from stoker.protocol.telemetry_messages import TelemetryReport
from stoker.protocol.tree_messages import SourcesRequest


@frozen
class WorkerRouteSpec:
    """One route: path, summary, request and response. All of them are POST."""

    path: str
    summary: str
    asks: type[BaseModel]
    answers: type[BaseModel]


HELLO = WorkerRouteSpec(path="/v1/hello", summary="Register a worker", asks=Hello, answers=Welcome)
CLAIMS = WorkerRouteSpec(
    path="/v1/claims", summary="Claim jobs; the request may be held open", asks=Claim, answers=ClaimResponse
)
RENEWALS = WorkerRouteSpec(
    path="/v1/renewals", summary="Renew all leases of a worker", asks=Renewal, answers=RenewalResponse
)
_ATTEMPTS = "/v1/attempts/"
_WRITES: dict[type[LeaseWrite], str] = {
    Start: "Report that the job's process runs",
    Decline: "Decline a grant",
    Release: "Release the lease; the attempt is not charged",
    Finish: "Report that the job completed; its result is uploaded",
    Fail: "Report that the job failed",
    CancelConfirmed: "Confirm that the job was stopped after a cancel request",
    PointCheckpoint: "Set the checkpoint from which the job resumes if this attempt does not finish",
}
_WRITES_BY_VERB = {message.verb: message for message in _WRITES}
SPOKEN = (
    HELLO,
    CLAIMS,
    RENEWALS,
    *(
        WorkerRouteSpec(path=f"{_ATTEMPTS}{{job}}/{message.verb}", summary=summary, asks=message, answers=WriteResponse)
        for message, summary in _WRITES.items()
    ),
)


class WorkerRoute(NamedTuple):
    """The message of one path, and its handler."""

    takes: type[BaseModel]
    act: Callable[[Any, Principal, WorkerExchange], None]
    """Answers the exchange, now or later. A callback: a task for each would cost a tenth of a cycle."""


@frozen
class WorkerTable:
    """What a connection needs to serve workers' requests."""

    find: Callable[[str], WorkerRoute | None]
    """Returns the route of a path; None: served by the app."""
    judge: Judge
    bodies: BodyMemoryBudget
    """Memory budget for large bodies of these requests."""


class WorkerRoutes:
    """Serves workers' requests by the queue. `on_recorded` gets each hello and renewal once it is recorded."""

    def __init__(self, context: ServiceContext, *, on_recorded: Callable[[Hello | Renewal], None]) -> None:
        self._context = context
        self._on_recorded = on_recorded
        self._whole = {
            HELLO.path: WorkerRoute(Hello, self._record),
            CLAIMS.path: WorkerRoute(Claim, self._claim),
            RENEWALS.path: WorkerRoute(Renewal, self._record),
        }

    def find(self, path: str) -> WorkerRoute | None:
        """Return the route of a path; None if it is not one of these."""
        found = self._whole.get(path)
        if found is not None or not path.startswith(_ATTEMPTS):
            return found
        job, _, verb = path[len(_ATTEMPTS) :].partition("/")
        message = _WRITES_BY_VERB.get(verb)
        return WorkerRoute(message, partial(self._write, job)) if message is not None and job else None

    def _write(self, job: str, said: LeaseWrite, who: Principal, exchange: WorkerExchange) -> None:
        def then(answer: Answer) -> None:
            self._context.followers.ended(job)
            exchange.say(answer)

        self._ask(Write(job=job, said=said, machine=who.name), exchange, then)

    def _record(self, message: Hello | Renewal, who: Principal, exchange: WorkerExchange) -> None:
        def then(answer: Answer) -> None:
            self._on_recorded(message)
            exchange.say(self._context.with_execs(message.worker, answer))

        check_own(message.worker, who)
        self._ask(message, exchange, then)

    def _claim(self, claim: Claim, who: Principal, exchange: WorkerExchange) -> None:
        check_own(claim.worker, who)
        waiting = self._context.waiting
        # Before the command is posted: calls until the claim waits are not missed.
        since = waiting.mark()

        def then(answer: Answer) -> None:
            answer = self._context.with_execs(claim.worker, answer)
            if isinstance(answer, ClaimResponse) and waiting.holds(claim, answer):
                exchange.say_later(waiting.wait(claim, answer, since, exchange.gone))
            else:
                exchange.say(answer)

        self._ask(claim, exchange, then)

    def _ask(self, command: Command, exchange: WorkerExchange, then: Callable[[Answer], None]) -> None:
        def settle(answer: Answer | StokerError) -> None:
            if isinstance(answer, StokerError):
                exchange.fail(answer)
            else:
                then(answer)

        self._context.counter.post(command, settle)


W = TypeVar("W", SourcesRequest, MachineReport, TelemetryReport)


def own(said: W, who: Principal) -> W:
    """Return a worker's message if it is in its own name. Raises `Forbidden`."""
    check_own(said.worker, who)
    return said


def check_own(worker: str, who: Principal) -> None:
    """Raise `Forbidden` if a machine uses the name of another one."""
    if who.name not in ("", worker):
        hint = "a machine must use the name in its certificate"
        raise Forbidden(f"the certificate is for {who.name}, not for {worker}", hint=hint, machine=who.name)


_HEAD = (
    b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n"
    + b"".join(b"%b: %b\r\n" % header for header in ALWAYS)
    + b"content-length: %d\r\n"
)
_DONE = _HEAD.replace(b"%d %b", b"200 OK", 1)


class WorkerExchange:
    """One request of a worker and its response, without a task and a framework, in place of the server's own cycle.

    That saves an eighth of the coordinator's CPU time for a cycle of claim, start and finish.
    """

    __slots__ = (
        "_connection", "_gone", "_headers", "_is_begun", "_method", "_path", "_peer", "_pieces", "_release", "_route",
        "_size_bytes", "_table", "_task", "_who", "disconnected", "keep_alive", "more_body", "response_complete",
    )  # fmt: skip

    def __init__(
        self, connection: HttpToolsProtocol, table: WorkerTable, route: WorkerRoute, path: str, peer: Peer
    ) -> None:
        self._connection = connection
        self._table = table
        self._route = route
        self._path = path
        self._method = connection.parser.get_method().decode("ascii")
        self._headers = dict(connection.headers)
        self._peer = peer
        self._who = ANONYMOUS
        self._is_begun = False
        self._gone: asyncio.Future[None] | None = None
        self._release: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = connection.parser.get_http_version() != "1.0" and connection.parser.should_keep_alive()

    @property
    def response_started(self) -> bool:
        """True if anything was sent: a response is sent in one piece."""
        return self.response_complete

    @property
    def message_event(self) -> WorkerExchange:
        """The object that the server sets when the client disconnected."""
        return self

    def begin(self) -> None:
        """Refuse the request by its head, or answer it once its body is complete."""
        self._is_begun = True
        try:
            self._who = who = self._table.judge(self._method, self._path, self._headers, self._peer)
            if self._method != "POST":
                raise Refusal(Usage(f"this route supports POST, not {self._method}"), 405, (b"allow", b"POST"))
            size_bytes = announced_bytes(self._headers, SPEECH_BYTES)
            if size_bytes > WORD_BYTES:
                if not self._table.bodies.take_now(owner_of(who), size_bytes):
                    raise no_room()
                self._release = partial(self._table.bodies.release, owner_of(who), size_bytes)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            self.fail(error)
            return
        if not self.more_body:
            self._act()
            return
        self._connection.flow.resume_reading()
        if self._connection.expect_100_continue:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def run_asgi(self, _app: object) -> None:
        """Begin: the response to the request before was sent."""
        self.begin()

    def take(self, body: bytes) -> None:
        """Receive a part of the body. Before its turn, when it is not yet checked, little of it is read."""
        self._pieces.append(body)
        self._size_bytes += len(body)
        if not self._is_begun:
            if self._size_bytes > WORD_BYTES:
                self._connection.flow.pause_reading()
        elif self._size_bytes > SPEECH_BYTES:
            self.fail(too_large(SPEECH_BYTES))

    def complete(self) -> None:
        """Answer: the whole body arrived."""
        self.more_body = False
        if self._is_begun and not self.response_complete:
            self._act()

    def set(self) -> None:
        """Stop: the client disconnected."""
        if self.disconnected:
            self._free()
            if self._gone is not None and not self._gone.done():
                self._gone.set_result(None)

    def say(self, answer: Answer) -> None:
        """Answer with a message."""
        self._write(200, to_json(answer))  # type: ignore[arg-type]  # workers are answered by messages

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        refusal = refusal_of(error)
        self._write(refusal.status, refusal.body, refusal.headers)

    def say_later(self, answering: Coroutine[Any, Any, ClaimResponse | None]) -> None:
        """Answer with the result of a coroutine; None: the client disconnected."""
        self._task = self._connection.loop.create_task(self._say_later(answering))

    async def gone(self) -> None:
        """Wait until the client disconnects."""
        if not self.disconnected:
            self._gone = self._connection.loop.create_future()
            await self._gone

    def _act(self) -> None:
        try:
            pieces = self._pieces
            message = read_message(self._route.takes, pieces[0] if len(pieces) == 1 else b"".join(pieces))
            self._free()
            self._route.act(message, self._who, self)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            self.fail(error)

    async def _say_later(self, answering: Coroutine[Any, Any, ClaimResponse | None]) -> None:
        try:
            answer = await answering
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            self.fail(error)
        else:
            if answer is not None:
                self.say(answer)

    def _free(self) -> None:
        """Release the body and its memory budget."""
        self._pieces = []
        if self._release is not None:
            self._release()
            self._release = None

    def _write(self, status: int, body: bytes, headers: tuple[Header, ...] = ()) -> None:
        if self.response_complete:
            return
        self.response_complete = True
        self._free()
        transport = self._connection.transport
        if self.disconnected or transport.is_closing():
            return
        if status == 200:
            head = _DONE % len(body)
        else:
            head = _HEAD % (status, HTTPStatus(status).phrase.encode(), len(body))
            head += b"".join(b"%b: %b\r\n" % header for header in headers)
        head += b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        transport.write(head if self._method == "HEAD" else head + body)
        if not self.keep_alive:
            transport.close()
        self._connection.on_response_complete()
