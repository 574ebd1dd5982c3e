"""One of workers' own requests, answered by its connection itself: no task, no framework, one write.

It stands where the server keeps the request that is under way, and says of itself what the server asks there. The same
routes can be reached through the framework (`front`); what is answered is decided by `WorkerRoutes` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Protocol

from stoker.coordinator.service.access import LOCAL_WORKER, Peer
from stoker.coordinator.service.bodies import Bodies, no_room
from stoker.coordinator.service.intake import SPEECH_BYTES, WORD_BYTES, announced_bytes, too_large
from stoker.coordinator.service.speech import ALWAYS, json_bytes, known
from stoker.coordinator.service.who import owner_of
from stoker.model.principals import Principal

_HEAD = (
    b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n"
    + b"".join(b"%b: %b\r\n" % header for header in ALWAYS)
    + b"content-length: %d\r\n"
)
_DONE = _HEAD.replace(b"%d %b", b"200 OK", 1)


class Reply(Protocol):
    """Where an answer goes. Only the first counts."""

    def say(self, body: bytes) -> None:
        """Answer with JSON."""

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""

    async def gone(self) -> None:
        """Wait until whoever asked has left."""


Route = Callable[[bytes, Reply, Principal], None]
"""Answers a body of somebody's, now or later."""


class Door(Protocol):
    """Who may ask what, without a framework."""

    def find(self, path: str) -> Route | None:
        """Give what answers at a path."""

    def judge_worker(self, headers: dict[bytes, bytes], peer: Peer) -> Principal:
        """Give the worker that asks, or refuse it with the reason."""

    @property
    def words(self) -> Bodies:
        """Room for the bodies of these requests."""


class NobodyWaits:
    """Stands where the server would wake whoever waits for a body: here nobody does."""

    def set(self) -> None:
        """Do nothing."""


class Exchange:
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
        self.message_event = NobodyWaits()

    @property
    def response_started(self) -> bool:
        """Whether the client has been told anything: an answer leaves in one piece."""
        return self.response_complete

    def begin(self, door: Door, headers: dict[bytes, bytes], peer: Peer) -> None:
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
