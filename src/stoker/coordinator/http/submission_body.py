"""Read a submission from its file, job by job, so that its parser does not block the coordinator.

A JSON parser holds the GIL until it is done, for seconds with a large text, and no other request is answered meanwhile.
Here a few jobs are parsed at a time. Besides the jobs only a window of the text is in memory. Sizes and counts are
checked before values are created; the jobs themselves in `queue.submission_check`.
"""

from __future__ import annotations

import asyncio
import json
import re
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, Protocol, cast

from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from stoker.coordinator.http.http_messages import (
    WORD_BYTES,
    Receive,
    body_pieces,
    faults_of,
    judge_values,
    read_message,
    too_large,
)
from stoker.core.errors import BadInput, TooLarge, Unavailable
from stoker.core.job import JobSpec
from stoker.core.jsontext import loads
from stoker.core.text import format_size
from stoker.protocol.codec import adapter_of, alike, values_in
from stoker.protocol.job_messages import (
    JOB_BODY,
    MOST_JOBS,
    MOST_JOBS_AT_ONCE,
    MOST_ORDER_BYTES,
    MOST_ORDER_VALUES,
    MOST_SUBMISSION_BYTES,
    MOST_SUBMISSION_VALUES,
    JobBody,
    Submission,
)

_PIECE_BYTES = 64 * 1024
_MOST_ORDER_MARKS = 3 * MOST_ORDER_VALUES
_MOST_FIELD_MARKS = MOST_JOBS + 1000
_SPACE = re.compile(r"[ \t\n\r]*")
_JOBS = "jobs"
_PARTS = "send it in parts, as `stoker submit` does"
_NEXT_ORDER = '},{"id":"'
_ORDERS: TypeAdapter[tuple[JobSpec, ...]] = adapter_of(tuple[JobBody, ...])
_scan = json.JSONDecoder().raw_decode


def read_submission(file: BinaryIO) -> Submission:
    """Read a submission.

    Raises `InvalidInput` for what is wrong with it, as far as the first order with a fault, `BadInput` if it is not
    JSON, and `TooLarge` for more than one submission may have.
    """
    text = _Window(file)
    if not text.next():
        return read_message(Submission, b"")
    text.take("{")
    orders: list[JobSpec] | None = None
    rest: list[str] = []
    while text.next() != "}":
        key = text.value(_MOST_FIELD_MARKS, MOST_SUBMISSION_BYTES)
        text.take(":")
        if text.next() == "[" and loads(key) == _JOBS:
            orders = _read_orders(text)
        else:
            rest.append(f"{key}:{text.value(_MOST_FIELD_MARKS, MOST_SUBMISSION_BYTES)}")
        if text.next() != "}":
            text.take(",")
            text.refuse_end("}")
    text.take("}")
    if text.next():
        raise BadInput("the request is not JSON: something follows its end")
    if orders is not None:
        rest.append(f'"{_JOBS}":[]')
    submission = read_message(Submission, f"{{{','.join(rest)}}}".encode())
    return alike(submission, {_JOBS: tuple(orders)}) if orders is not None else submission


def _read_orders(text: _Window) -> list[JobSpec]:
    orders: list[JobSpec] = []
    are_ours = True
    text.take("[")
    while text.next() != "]":
        run = text.run() if are_ours else ""
        if run and (some := _read_run(run)):
            orders += some
            text.skip(len(run))
        else:
            # One after the other, to the end: retrying for each of them would take long.
            are_ours = are_ours and not run
            place = f"{_JOBS}.{len(orders)}"
            orders.append(_read_order(text.value(_MOST_ORDER_MARKS, MOST_ORDER_BYTES, place), place))
        if len(orders) > MOST_JOBS_AT_ONCE:
            raise TooLarge(f"the submission has more than {MOST_JOBS_AT_ONCE:,} jobs", hint=_PARTS)
        if text.next() != "]":
            text.take(",")
            text.refuse_end("]")
    text.take("]")
    return orders


def _read_run(text: str) -> tuple[JobSpec, ...]:
    """Return the jobs of a text if it has only complete and valid ones; else none."""
    if '"$' in text:
        return ()
    try:
        return _ORDERS.validate_json(f"[{text}]")
    except ValidationError:
        return ()


def _read_order(text: str, place: str) -> JobSpec:
    try:
        # Has a tagged number: the slow path, as in `protocol.codec`.
        return JOB_BODY.validate_python(loads(text)) if '"$' in text else JOB_BODY.validate_json(text)
    except ValidationError as error:
        raise faults_of(error, place) from None
    except ValueError as error:
        raise BadInput(f"the request is not JSON: {place}: {error}") from None


class _Window:
    """The text of a file; only the part that is being read is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = 0
        self._values = 0
        self._is_whole = False

    def next(self) -> str:
        """Move to the next character that is not a space, and return it; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_on():
                return ""

    def take(self, mark: str) -> None:
        """Move past a mark. Raises `BadInput` if something else is next."""
        if (found := self.next()) != mark:
            raise BadInput(f"the request is not JSON: {mark!r} expected, found {found!r}")
        self._at += 1

    def refuse_end(self, mark: str) -> None:
        """Raise `BadInput` if a mark follows a comma."""
        if self.next() == mark:
            raise BadInput(f"the request is not JSON: a comma before {mark!r}")

    def run(self) -> str:
        """Return the text in memory up to the last place where one of our clients may have begun another job.

        It need not be the end of one: what else begins with an id, inside of an order, looks the same.
        """
        end = self._text.rfind(_NEXT_ORDER, self._at)
        return self._text[self._at : end + 1] if end >= 0 else ""

    def skip(self, length: int) -> None:
        """Move past so much text."""
        self._at += length

    def value(self, most_marks: int, most_bytes: int, place: str = "a field of the submission") -> str:
        """Return the text of the next value, and move past it.

        Raises `TooLarge` if it has more than so many values, as `values_in` counts them, or characters.
        """
        too_large = TooLarge(f"{place} has more than {format_size(most_bytes)}, or more than {most_marks:,} values")
        self.next()
        piece_bytes, end, why = _PIECE_BYTES, -1, ""
        while True:
            try:
                _, end = _scan(self._text, self._at)
            except RecursionError:
                raise BadInput("the request is not JSON: nested too deeply") from None
            except json.JSONDecodeError as error:
                # Unless the text is not read to its end.
                end, why = -1, error.msg
            except ValueError as error:
                end, why = -1, str(error)
            # A number may continue in unread text.
            if end >= 0 and (end < len(self._text) or self._is_whole):
                break
            # All text in memory belongs to this value.
            if len(self._text) - self._at > most_bytes or _marks_in(self._text, self._at) > most_marks:
                raise too_large
            # Twice as much each time: a long value is not scanned often.
            if not self._read_on(piece_bytes) and end < 0:
                raise BadInput(f"the request is not JSON: {why}")
            piece_bytes *= 2
        text, self._at = self._text[self._at : end], end
        if len(text) > most_bytes or (len(text) > most_marks and _marks_in(text) > most_marks):
            raise too_large
        return text

    def _read_on(self, size_bytes: int = _PIECE_BYTES) -> bool:
        """Read another piece of the file, and drop what was used. Return False at the end of the file."""
        piece = self._file.read(size_bytes)
        self._values += values_in(piece)
        if self._values > MOST_SUBMISSION_VALUES:
            raise TooLarge(f"the submission has more than {MOST_SUBMISSION_VALUES:,} values", hint=_PARTS)
        was_whole, self._is_whole = self._is_whole, not piece
        try:
            self._text = self._text[self._at :] + self._decode(piece, not piece)
        except UnicodeDecodeError:
            raise BadInput("the request is not JSON: it is not UTF-8") from None
        self._at = 0
        return not (was_whole or self._is_whole)


def _marks_in(text: str, start: int = 0) -> int:
    return sum(text.count(mark, start) for mark in "[{,")


MOST_BYTES = 96 << 20
EACH_BYTES = 24 << 20
WORDS_BYTES = 64 << 20
WORDS_EACH_BYTES = 16 << 20
WAIT_S = 20.0
"""Less than the timeout of clients."""
RETRY_S = 5
SPOOL_BYTES = 1 << 20
"""Part of a large body in memory; the rest is in a file."""


class BodyMemoryBudget:
    """Memory for the bodies of requests in one event loop, with a share for each client; large bodies are on disk.

    Memory is reserved when a body is first read, after the request's head was checked, for its announced bytes, or for
    the limit if there are none. It is released when the response begins. A client that has used its share waits for its
    own requests, and no other client does. A body that fits into a connection's buffer needs no reservation.
    """

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
        """Reserve memory for a client if there is some now."""
        is_room = self._held.total() + size_bytes <= self._most_bytes
        if not is_room or self._held[owner] + size_bytes > self._each_bytes:
            return False
        self._held[owner] += size_bytes
        return True

    async def take(self, owner: str, size_bytes: int) -> None:
        """Reserve memory for a client, or wait for it. Raises `Unavailable` after some time."""
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
        """Release memory, and pass it to waiting requests that fit, the oldest first."""
        self._held[owner] -= size_bytes
        if self._held[owner] <= 0:
            del self._held[owner]
        for waiting in list(self._waiting):
            owner, size_bytes, future = waiting
            # A cancelled one removes itself when its task runs.
            if not future.done() and self.take_now(owner, size_bytes):
                self._waiting.remove(waiting)
                future.set_result(None)


def no_room() -> Unavailable:
    """Return the error for a body without free memory."""
    hint = f"too many large requests at once: send it again in {RETRY_S} s"
    return Unavailable("the coordinator has no free memory for this request", hint=hint, retry_after_s=RETRY_S)


class ServiceRequestBody:
    """The body of one request: bounded, with reserved memory from its first byte until `release`."""

    def __init__(
        self,
        receive: Receive,
        bodies: BodyMemoryBudget,
        owner: str,
        *,
        limit_bytes: int,
        room_bytes: int,
        is_json: bool = False,
    ) -> None:
        """Create it without reading; the values of a body that `is_json` are counted as it arrives."""
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
        """Return the next part of the body. Errors are of the framework's class: the framework may read the body."""
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
        """Release the memory; no more is reserved."""
        held_bytes, self._held_bytes, self._room_bytes = self._held_bytes, 0, 0
        if held_bytes:
            self._bodies.release(self._owner, held_bytes)


class BodySpool(Protocol):
    """Temporary storage of large bodies, and its threads."""

    @property
    def folder(self) -> str: ...

    def check_room(self, coming_bytes: int) -> None:
        """Raise `NoSpace` if bytes would exceed the free disk space above the reserve."""


@asynccontextmanager
async def spooled(
    receive: Receive,
    headers: dict[bytes, bytes],
    limit_bytes: int,
    *,
    disk: BodySpool,
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
