"""Commands inside running jobs, while they run: in memory only, few, and none for longer than somebody is there.

Workers make all connections, so a machine hears of a session as it hears of orders: in the answer to the claim that it
holds open, and to its heartbeats, until it takes the session up. A session ends with its command, its lease, or when
one of its two ends has been silent for too long; what is left of it is kept for a moment, for the operator to read.
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

# Bytes on their way through the coordinator: bounded, counted from their beginning, each taken in and given out once.
#
# Whoever sends says where its bytes begin, whoever reads says what it has: a repeat changes nothing, and a lost answer
# loses nothing. What was heard is dropped.


class ExecStream:
    """One direction of a session. Its bytes belong to streams of the command, told apart by number."""

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._pieces: deque[tuple[int, bytes]] = deque()
        self.heard = 0
        """The reader has everything before this."""
        self.end = 0
        """Up to here it was taken in."""

    @property
    def free_bytes(self) -> int:
        """How much more may be taken in."""
        return self._room_bytes - (self.end - self.heard)

    def take(self, offset: int, data: bytes, stream: int = 0) -> int:
        """Take in what is new of some bytes, as far as there is room; give up to where there is something now."""
        if offset > self.end:
            raise Conflict(f"bytes are missing before {offset}", hint=f"go on at {self.end}", offset=self.end)
        fresh = data[self.end - offset :][: self.free_bytes]
        if fresh:
            self._pieces.append((stream, fresh))
            self.end += len(fresh)
        return self.end

    def give(self, offset: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Return what comes from an offset on; what is before it goes."""
        if not self.heard <= offset <= self.end:
            raise BadInput(f"there is nothing at {offset}: from {self.heard} to {self.end} there is", offset=self.heard)
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
"""A machine that listens hears of a session at once, any other with its next heartbeat."""
GONE_S = 60.0
"""An end that has said nothing for so long is gone."""
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
    """The job's."""
    by: str
    """As it is recorded."""
    person: str
    """The name that was verified; only that one may use it. Empty: whoever has the operator's token."""


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
        """When the operator, the worker, and any byte were last heard of."""
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.ended_s is not None

    def wake(self) -> None:
        """Let everybody look again who waits for something to happen."""
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def wait(self, until: Callable[[], bool], wait_s: float) -> None:
        """Wait until something is so, or for so long."""
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
        """Make it; `is_current` says whether a lease is a machine's own now."""
        self._clock = clock
        self._is_current = is_current
        self._sessions: dict[str, ExecSessionState] = {}
        self._features: dict[str, tuple[str, ...]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.on_end: Callable[[ExecSessionState], None] = lambda _: None

    def hear(self, said: Hello | Renewal) -> None:
        """Hear what a worker says of itself."""
        if isinstance(said, Hello):
            self._features[said.worker] = said.features

    def told(self, worker: str, answer: A) -> A:
        """Give an answer to a worker with the sessions that it is to take up."""
        if not self._sessions or not isinstance(answer, ClaimResponse | RenewalResponse):
            return answer
        calls = tuple(
            one.call
            for one in self._sessions.values()
            if one.opened.machine == worker and not one.is_taken and not one.is_over
        )
        return cast("A", answer.model_copy(update={"execs": calls})) if calls else answer

    def check(self, job: str, machine: str = "") -> None:
        """Refuse what can't be opened."""
        live = [one for one in self._sessions.values() if not one.is_over]
        if sum(one.call.job == job for one in live) >= MOST_PER_JOB:
            hint = "end one of them: exit its shell, or press Ctrl-C"
            raise RateLimited(f"{MOST_PER_JOB} commands run inside this job already", hint=hint, retry_after_s=5)
        if len(live) >= MOST:
            raise RateLimited(f"{MOST} commands run inside jobs already", hint="end some of them", retry_after_s=5)
        known = self._features.get(machine)
        if known is not None and EXEC not in known:
            hint = "update it: pip install --upgrade stoker there, then start it again"
            raise VersionSkew(f"the worker of {machine} is too old to run commands inside jobs", hint=hint)

    def open(self, call: ExecCall, opened: ExecSessionInfo) -> ExecSessionState:
        """Begin a session."""
        session = self._sessions[call.id] = ExecSessionState(call, opened, self._clock.monotonic_s())
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_on())
        return session

    def of_operator(self, id: str, person: str) -> ExecSessionState:
        """Return the session that an operator means, if it is its own."""
        found = self._sessions.get(id)
        if found is None or found.opened.person != person:
            raise NotFound("there is no such session", hint="it ended, or the coordinator was restarted: begin anew")
        found.operator_s = self._clock.monotonic_s()
        return found

    def of_worker(self, id: str, token: AttemptToken, machine: str) -> ExecSessionState:
        """Return the session that a worker speaks for. Raises `StaleLease` unless its lease is the worker's own now."""
        found = self._sessions.get(id)
        if found is None or found.call.token() != token or machine not in ("", found.opened.machine):
            raise NotFound("there is no such session", hint="end its command")
        if not self._is_current(token, machine):
            raise StaleLease(f"attempt {token.attempt} of job {token.job[:12]} is over", hint="end its command")
        found.worker_s = self._clock.monotonic_s()
        if not found.is_taken:
            found.is_taken = True
            found.wake()
        return found

    def send(self, session: ExecSessionState, offset: int, data: bytes, *, is_eof: bool) -> int:
        """Take what a command is to read."""
        end = session.inward.take(offset, data)
        session.is_eof = session.is_eof or (is_eof and end == offset + len(data))
        self._note(session)
        return end

    async def listen(self, session: ExecSessionState, said: ExecListen) -> ExecInput:
        """Return what a command is to read, or what else has happened, once there is something."""
        offset, inward = said.offset, session.inward
        inward.give(offset, 0)
        session.wake()

        def is_news() -> bool:
            is_sized = session.size != (said.rows, said.columns)
            return inward.end > offset or is_sized or session.is_over or (session.is_eof and not said.is_eof)

        await session.wait(is_news, said.wait_s)
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
        """Take what a command wrote; wait for room if there is none."""
        outward = session.outward
        await session.wait(lambda: outward.free_bytes > 0 or session.is_over, wait_s)
        if session.is_over:
            raise NotFound(f"the session is over: {session.why}", hint="end its command")
        end = outward.take(offset, data, stream)
        self._note(session)
        session.worker_s = session.busy_s
        return end

    async def read(self, session: ExecSessionState, offset: int, wait_s: float) -> ExecOutput:
        """Return what a command wrote, once there is something, or how it ended once everything was read."""
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
        """Take the new size of the operator's terminal."""
        session.size = (rows, columns)
        session.wake()

    def end(self, session: ExecSessionState, why: str, exit_code: int | None = None) -> None:
        """End a session. Only the first end counts."""
        if session.is_over:
            return
        session.why, session.exit_code = why, exit_code
        session.ended_s = self._clock.monotonic_s()
        session.wake()
        self.on_end(session)

    def close(self) -> None:
        """Let everybody go who waits."""
        for session in list(self._sessions.values()):
            self.end(session, "the coordinator is stopping")
        if self._looking is not None:
            self._looking.cancel()

    def look(self) -> None:
        """End what nobody wants or can do any more, and forget what ended a while ago."""
        now_s = self._clock.monotonic_s()
        for id, session in list(self._sessions.items()):
            if session.ended_s is not None:
                if now_s - session.ended_s > KEPT_S:
                    del self._sessions[id]
            elif why := self._why_over(session, now_s):
                self.end(session, why)

    def _why_over(self, session: ExecSessionState, now_s: float) -> str:
        opened = session.opened
        if not self._is_current(session.call.token(), ""):
            return f"{opened.name} has ended, or its lease has"
        if not session.is_taken:
            late = now_s - session.worker_s > TAKEN_WITHIN_S
            return f"{opened.machine} did not take it up: it is away, or its worker is too old for it" if late else ""
        if now_s - session.worker_s > GONE_S:
            return f"{opened.machine} has been silent for {GONE_S:.0f} s"
        if now_s - session.operator_s > GONE_S:
            return "whoever began it is gone"
        if now_s - session.busy_s > IDLE_S:
            return f"nothing was typed or printed for {IDLE_S / 3600:.0f} h"
        return ""

    def _note(self, session: ExecSessionState) -> None:
        session.busy_s = self._clock.monotonic_s()
        session.wake()

    async def _look_on(self) -> None:
        while self._sessions:
            await asyncio.sleep(_LOOK_EVERY_S)
            # While the queue reads its rows again nobody can say whose a lease is.
            with suppress(StokerError):
                self.look()
