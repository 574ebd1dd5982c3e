"""Exec sessions: commands inside running jobs. In memory only, few, and only while an operator is connected.

Workers make all connections, so a machine receives a session like an instruction: in the response to its open claim and
to its heartbeats, until it starts the session. A session ends with its command, its lease, or when operator or worker
was silent for too long; its remaining output is kept for a moment, for the operator to read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from stoker.core.clock import Clock
from stoker.core.errors import BadInput, Conflict, NotFound, RateLimited, StaleLease, StokerError, VersionSkew
from stoker.core.frozen import frozen
from stoker.core.leases import AttemptToken
from stoker.protocol.lease_messages import ClaimResponse, ExecCall, Hello, Renewal, RenewalResponse
from stoker.protocol.operator_messages import EXEC, READ_BYTES, ExecInput, ExecListen, ExecOutput, ExecPiece


class ExecStream:
    """One direction of a session: bytes of the command's numbered streams, bounded, each delivered once.

    The sender gives the offset of its bytes, the reader the offset that it has: a repeat changes nothing, and a lost
    response loses nothing. Acknowledged bytes are dropped.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._pieces: deque[tuple[int, bytes]] = deque()
        self.heard = 0
        """The reader has all bytes before this."""
        self.end = 0
        """Bytes up to here were received."""

    @property
    def free_bytes(self) -> int:
        """How many more bytes are accepted."""
        return self._room_bytes - (self.end - self.heard)

    def take(self, offset: int, data: bytes, stream: int = 0) -> int:
        """Store the new ones of some bytes, as far as there is space; return the new end."""
        if offset > self.end:
            raise Conflict(f"bytes are missing before {offset}", hint=f"continue at {self.end}", offset=self.end)
        fresh = data[self.end - offset :][: self.free_bytes]
        if fresh:
            self._pieces.append((stream, fresh))
            self.end += len(fresh)
        return self.end

    def give(self, offset: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Return bytes from an offset on; those before it are dropped."""
        if not self.heard <= offset <= self.end:
            raise BadInput(f"offset {offset} is not between {self.heard} and {self.end}", offset=self.heard)
        while self._pieces and self.heard < offset:
            stream, data = self._pieces.popleft()
            known = min(len(data), offset - self.heard)
            self.heard += known
            if known < len(data):
                self._pieces.appendleft((stream, data[known:]))
        given: list[tuple[int, bytes]] = []
        for stream, data in self._pieces:
            given.append((stream, data[:most_bytes]))
            most_bytes -= len(data)
            if most_bytes <= 0:
                break
        return given


MOST_PER_JOB = 4
MOST = 64
IN_BYTES = 256 * 1024
OUT_BYTES = 1024 * 1024
TAKEN_WITHIN_S = 20.0
"""A machine with an open claim receives a session at once, any other with its next heartbeat."""
GONE_S = 60.0
"""Timeout of a silent operator or worker."""
IDLE_S = 4 * 3600.0
"""Without a byte in either direction."""
KEPT_S = 60.0
_LOOK_EVERY_S = 1.0

A = TypeVar("A")


@frozen
class ExecSessionInfo:
    """Who opened a session, and where."""

    machine: str
    name: str
    """Of the job."""
    by: str
    """As recorded."""
    person: str
    """The verified user; only this one may use the session. Empty: the operator's token."""


class ExecSessionState:
    """One command."""

    def __init__(self, call: ExecCall, opened: ExecSessionInfo, now_s: float) -> None:
        self.call = call
        self.opened = opened
        self.inward = ExecStream(IN_BYTES)
        self.outward = ExecStream(OUT_BYTES)
        self.size = (call.rows, call.columns)
        self.is_eof = False
        self.is_taken = False
        self.exit_code: int | None = None
        self.why = ""
        self.ended_s: float | None = None
        self.operator_s = self.worker_s = self.busy_s = now_s
        """Times of the last request of the operator, of the worker, and of the last byte."""
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.ended_s is not None

    def wake(self) -> None:
        """Wake all waiting requests, so that they check their condition."""
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def wait(self, until: Callable[[], bool], wait_s: float) -> None:
        """Wait until a condition holds, or for so long."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while not until() and (left_s := until_s - loop.time()) > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                return


class ExecSessions:
    """All sessions of one coordinator. Everything here happens in its event loop."""

    def __init__(self, clock: Clock, *, is_current: Callable[[AttemptToken, str], bool]) -> None:
        """Create an empty set; `is_current` returns True if a machine holds a lease."""
        self._clock = clock
        self._is_current = is_current
        self.sessions: dict[str, ExecSessionState] = {}
        self._features: dict[str, tuple[str, ...]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.on_end: Callable[[ExecSessionState], None] = lambda _: None

    def note_features(self, message: Hello | Renewal) -> None:
        """Store the features of a worker."""
        if isinstance(message, Hello):
            self._features[message.worker] = message.features

    def with_calls(self, worker: str, answer: A) -> A:
        """Return an answer to a worker with the sessions that it has to start."""
        if not isinstance(answer, ClaimResponse | RenewalResponse):
            return answer
        calls = tuple(
            one.call
            for one in self.sessions.values()
            if one.opened.machine == worker and not one.is_taken and not one.is_over
        )
        return cast("A", answer.model_copy(update={"execs": calls})) if calls else answer

    def check(self, job: str, machine: str = "") -> None:
        """Raise if no session can be opened: too many, or the worker does not support them."""
        live = [one for one in self.sessions.values() if not one.is_over]
        if sum(one.call.job == job for one in live) >= MOST_PER_JOB:
            hint = "end one of them: exit its shell, or press Ctrl-C"
            raise RateLimited(f"{MOST_PER_JOB} commands run inside this job already", hint=hint, retry_after_s=5)
        if len(live) >= MOST:
            raise RateLimited(f"{MOST} commands run inside jobs already", hint="end some of them", retry_after_s=5)
        known = self._features.get(machine)
        if known is not None and EXEC not in known:
            hint = "update it: pip install --upgrade stoker there, then restart it"
            raise VersionSkew(f"the worker of {machine} is too old for commands inside jobs", hint=hint)

    def open(self, call: ExecCall, opened: ExecSessionInfo) -> ExecSessionState:
        """Begin a session."""
        session = self.sessions[call.id] = ExecSessionState(call, opened, self._clock.monotonic_s())
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_on())
        return session

    def of_operator(self, id: str, person: str) -> ExecSessionState:
        """Return an operator's own session. Raises `NotFound`."""
        found = self.sessions.get(id)
        if found is None or found.opened.person != person:
            raise NotFound(f"session {id} not found", hint="it ended, or the coordinator restarted: start a new one")
        found.operator_s = self._clock.monotonic_s()
        return found

    def of_worker(self, id: str, token: AttemptToken, machine: str) -> ExecSessionState:
        """Return a session of a worker. Raises `StaleLease` unless the worker holds its lease."""
        found = self.sessions.get(id)
        if found is None or found.call.token() != token or machine not in ("", found.opened.machine):
            raise NotFound(f"session {id} not found", hint="stop its command")
        if not self._is_current(token, machine):
            raise StaleLease(f"attempt {token.attempt} of job {token.job[:12]} has ended", hint="stop its command")
        found.worker_s = self._clock.monotonic_s()
        if not found.is_taken:
            found.is_taken = True
            found.wake()
        return found

    def send(self, session: ExecSessionState, offset: int, data: bytes, *, is_eof: bool) -> int:
        """Store input of a command."""
        end = session.inward.take(offset, data)
        session.is_eof = session.is_eof or (is_eof and end == offset + len(data))
        self._note(session)
        return end

    async def listen(self, session: ExecSessionState, request: ExecListen) -> ExecInput:
        """Return input of a command, or another change, once there is one."""
        offset, inward = request.offset, session.inward
        inward.give(offset, 0)
        session.wake()

        def is_news() -> bool:
            is_sized = session.size != (request.rows, request.columns)
            return inward.end > offset or is_sized or session.is_over or (session.is_eof and not request.is_eof)

        await session.wait(is_news, request.wait_s)
        session.worker_s = self._clock.monotonic_s()
        data = b"".join(piece for _, piece in inward.give(offset, READ_BYTES))
        rows, columns = session.size
        return ExecInput(
            data_base64=ExecPiece.of(0, data).data_base64,
            is_eof=session.is_eof and offset + len(data) == inward.end,
            rows=rows,
            columns=columns,
            over=(session.why or "its command has ended") if session.is_over else "",
        )

    async def put(self, session: ExecSessionState, offset: int, data: bytes, *, stream: int, wait_s: float) -> int:
        """Store output of a command; wait for space if there is none."""
        outward = session.outward
        await session.wait(lambda: outward.free_bytes > 0 or session.is_over, wait_s)
        if session.is_over:
            raise NotFound(f"session has ended: {session.why}", hint="stop its command")
        end = outward.take(offset, data, stream)
        self._note(session)
        session.worker_s = session.busy_s
        return end

    async def read(self, session: ExecSessionState, offset: int, wait_s: float) -> ExecOutput:
        """Return output of a command once there is some, or its end once all output was read."""
        outward = session.outward
        outward.give(offset, 0)
        session.wake()
        await session.wait(lambda: outward.end > offset or session.is_over, wait_s)
        session.operator_s = self._clock.monotonic_s()
        pieces = tuple(ExecPiece.of(*piece) for piece in outward.give(offset, READ_BYTES))
        is_over = session.is_over and not pieces
        code = session.exit_code if session.exit_code is not None else 1
        return ExecOutput(
            pieces=pieces,
            is_taken=session.is_taken,
            exit_code=code if is_over else None,
            why=session.why if is_over else "",
        )

    def resize(self, session: ExecSessionState, rows: int, columns: int) -> None:
        """Store the new size of the operator's terminal."""
        session.size = (rows, columns)
        session.wake()

    def end(self, session: ExecSessionState, why: str, exit_code: int | None = None) -> None:
        """End a session; later calls have no effect."""
        if session.is_over:
            return
        session.why, session.exit_code = why, exit_code
        session.ended_s = self._clock.monotonic_s()
        session.wake()
        self.on_end(session)

    def close(self) -> None:
        """End all sessions, and answer all waiting requests."""
        for session in list(self.sessions.values()):
            self.end(session, "the coordinator is stopping")
        if self._looking is not None:
            self._looking.cancel()

    def expire(self) -> None:
        """End sessions without a lease, operator or worker, and delete those that ended a while ago."""
        now_s = self._clock.monotonic_s()
        for id, session in list(self.sessions.items()):
            if session.ended_s is not None:
                if now_s - session.ended_s > KEPT_S:
                    del self.sessions[id]
            elif why := self._why_over(session, now_s):
                self.end(session, why)

    def _why_over(self, session: ExecSessionState, now_s: float) -> str:
        opened = session.opened
        if not self._is_current(session.call.token(), ""):
            return f"{opened.name} has ended, or its lease expired"
        if not session.is_taken:
            late = now_s - session.worker_s > TAKEN_WITHIN_S
            return f"{opened.machine} did not start it: it is away, or its worker is too old" if late else ""
        if now_s - session.worker_s > GONE_S:
            return f"{opened.machine} has been silent for {GONE_S:.0f} s"
        if now_s - session.operator_s > GONE_S:
            return "the operator disconnected"
        if now_s - session.busy_s > IDLE_S:
            return f"no input or output for {IDLE_S / 3600:.0f} h"
        return ""

    def _note(self, session: ExecSessionState) -> None:
        session.busy_s = self._clock.monotonic_s()
        session.wake()

    async def _look_on(self) -> None:
        while self.sessions:
            await asyncio.sleep(_LOOK_EVERY_S)
            # While the queue reads its state again, holders of leases are unknown.
            with suppress(StokerError):
                self.expire()
