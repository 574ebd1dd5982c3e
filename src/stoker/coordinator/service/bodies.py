"""Room for the bodies of requests: memory within a budget, a share of it for each principal, large bodies on disk.

Room is taken when a body is first read, after the request's head was judged, for as many bytes as it announces, or may
have where it announces none. It is released when the answer begins. A principal whose share is taken waits for its own
requests, and no other principal does. A body that fits into what a connection holds anyway needs no room.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, Protocol, cast

from starlette.exceptions import HTTPException

from stoker.coordinator.service.intake import WORD_BYTES, body_pieces, judge_values, too_large
from stoker.coordinator.service.speech import Receive
from stoker.model.errors import Unavailable
from stoker.model.fleet_errors import TooLarge
from stoker.wire.codec import values_in

MOST_BYTES = 96 << 20
EACH_BYTES = 24 << 20
WORDS_BYTES = 64 << 20
WORDS_EACH_BYTES = 16 << 20
WAIT_S = 20.0
"""Less than clients wait for an answer."""
RETRY_S = 5
SPOOL_BYTES = 1 << 20
"""Of a large body, in memory; the rest is in a file."""


class Bodies:
    """One budget. Used in one event loop."""

    def __init__(self, most_bytes: int = MOST_BYTES, each_bytes: int = EACH_BYTES, *, wait_s: float = WAIT_S) -> None:
        self._most_bytes = most_bytes
        self._each_bytes = each_bytes
        self._wait_s = wait_s
        self._held: Counter[str] = Counter()
        self._waiting: list[tuple[str, int, asyncio.Future[None]]] = []

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    def take_now(self, owner: str, size_bytes: int) -> bool:
        """Take room for a principal, if there is some now."""
        is_room = self._held.total() + size_bytes <= self._most_bytes
        if not is_room or self._held[owner] + size_bytes > self._each_bytes:
            return False
        self._held[owner] += size_bytes
        return True

    async def take(self, owner: str, size_bytes: int) -> None:
        """Take room for a principal, or wait for it. Raise `Unavailable` if none becomes free for some time."""
        if self.take_now(owner, size_bytes):
            return
        waiting = (owner, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(self._wait_s):
                await waiting[2]
        except BaseException as error:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting[2].done() and not waiting[2].cancelled():
                self.release(owner, size_bytes)
            if isinstance(error, TimeoutError):
                raise no_room() from None
            raise

    def release(self, owner: str, size_bytes: int) -> None:
        """Give room back, and pass it on to those that fit, the longest waiting first."""
        self._held[owner] -= size_bytes
        if self._held[owner] <= 0:
            del self._held[owner]
        for waiting in list(self._waiting):
            owner, size_bytes, future = waiting
            # One that was cancelled removes itself when its task runs.
            if not future.done() and self.take_now(owner, size_bytes):
                self._waiting.remove(waiting)
                future.set_result(None)


def no_room() -> Unavailable:
    """Return the refusal of a body for which there is no room now."""
    hint = f"too many large requests are under way: send it again in {RETRY_S} s"
    return Unavailable("the coordinator has no room for this request now", hint=hint, retry_after_s=RETRY_S)


class Incoming:
    """The body of one request: bounded, and with room of its own from its first byte until `release`."""

    def __init__(
        self,
        receive: Receive,
        bodies: Bodies,
        owner: str,
        *,
        limit_bytes: int,
        room_bytes: int,
        is_json: bool = False,
    ) -> None:
        """Wait for a body; the values of one that `is_json` are counted as it comes."""
        self._receive = receive
        self._bodies = bodies
        self._owner = owner
        self._limit_bytes = limit_bytes
        self._room_bytes = room_bytes if room_bytes > WORD_BYTES else 0
        self._is_json = is_json
        self._held_bytes = 0
        self._size_bytes = 0
        self._values = 0

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next part of the body. Errors are of the framework's class: it may be what reads the body."""
        if self._room_bytes:
            try:
                await self._bodies.take(self._owner, self._room_bytes)
            except Unavailable as error:
                raise HTTPException(503, error.message) from None
            self._held_bytes, self._room_bytes = self._room_bytes, 0
        message = await self._receive()
        piece: bytes = message.get("body", b"")
        self._size_bytes += len(piece)
        if self._size_bytes > self._limit_bytes:
            raise HTTPException(413, str(too_large(self._limit_bytes)))
        if self._is_json:
            self._values += values_in(piece)
            try:
                judge_values(self._values)
            except TooLarge as error:
                raise HTTPException(413, error.message) from None
        return message

    def release(self) -> None:
        """Give the room back; nothing takes some any more."""
        held_bytes, self._held_bytes, self._room_bytes = self._held_bytes, 0, 0
        if held_bytes:
            self._bodies.release(self._owner, held_bytes)


class Disk(Protocol):
    """Where large bodies are kept on their way, and threads for it."""

    @property
    def folder(self) -> str: ...

    def check_room(self, coming_bytes: int) -> None:
        """Raise `NoSpace` where bytes would leave less of the disk free than stays free."""


@asynccontextmanager
async def spooled(
    receive: Receive,
    headers: dict[bytes, bytes],
    limit_bytes: int,
    *,
    disk: Disk,
    keep: Callable[..., Awaitable[Any]],
) -> AsyncIterator[BinaryIO]:
    """Receive a body that may be large, and yield it as a file, to be read in a thread.

    However slowly it comes, no more of it than `SPOOL_BYTES` is in memory before it is whole.
    """
    with SpooledTemporaryFile(SPOOL_BYTES, dir=disk.folder) as spool:

        def write(parts: list[bytes]) -> None:
            disk.check_room(sum(map(len, parts)))
            spool.writelines(parts)

        parts: list[bytes] = []
        waiting_bytes, is_on_disk = 0, False
        async for piece in body_pieces(receive, headers, limit_bytes):
            parts.append(piece)
            waiting_bytes += len(piece)
            if waiting_bytes >= SPOOL_BYTES:
                await keep(write, parts)
                parts, waiting_bytes, is_on_disk = [], 0, True
        if is_on_disk:
            await keep(write, parts)
        else:
            spool.writelines(parts)
        spool.seek(0)
        yield cast(BinaryIO, spool)
