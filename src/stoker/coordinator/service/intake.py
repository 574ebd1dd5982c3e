"""How requests come in: bodies within a limit, known to be too large before they are read where they say so.

How slow a client may be is watched by its connection (`connection`), not here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from stoker.coordinator.service.speech import Receive, Scope
from stoker.model.errors import BadInput, Faults
from stoker.model.faults import Fault
from stoker.model.fleet_errors import TooLarge
from stoker.model.json_text import loads
from stoker.model.units import format_size
from stoker.wire.codec import values_in

JOIN_BYTES = 2 * 1024
"""Of the first question of whoever joins, which a stranger may ask; the second has a certificate's request."""
CSR_BYTES = 20 * 1024
WORD_BYTES = 64 * 1024
"""Of a question that names things: cancel, drain, begin an upload."""
SPEECH_BYTES = 4 * 1024 * 1024
"""Of a worker's word: a capability, a heartbeat with many leases, a failure with its error."""
ARCHIVE_BYTES = 1 << 40
"""Of a result that comes in one piece, as system A's workers send it; what is kept has its own limit."""
MOST_FAULTS = 100
BYTES_PER_VALUE = 6
"""Of JSON, on average and at least, beyond as many values as `WORD_BYTES` can have."""
_STRETCH_BYTES = 1 << 20

M = TypeVar("M", bound=BaseModel)


class Gone(Exception):
    """The client went away in the middle of its request."""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Give a request's headers by name; of one that is repeated the last."""
    return dict(scope["headers"])


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit_bytes: int) -> bytes:
    """Read a body whole. `TooLarge` before the first byte if it says that it is larger, else at the first too many."""
    parts = [piece async for piece in body_pieces(receive, headers, limit_bytes)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_pieces(receive: Receive, headers: dict[bytes, bytes], limit_bytes: int) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they come. Raise `TooLarge` as `read_body` does, `Gone` if the client leaves."""
    judge_length(headers, limit_bytes)
    size_bytes, is_more = 0, True
    while is_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        piece: bytes = message.get("body", b"")
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise too_large(limit_bytes)
        yield piece
        is_more = message.get("more_body", False)


def judge_length(headers: dict[bytes, bytes], limit_bytes: int) -> int | None:
    """Give how long a body says it is; `TooLarge` if that is too much."""
    said = headers.get(b"content-length")
    if said is None:
        return None
    length = int(said) if said.isdigit() and len(said) < 20 else limit_bytes + 1
    if length > limit_bytes:
        raise too_large(limit_bytes)
    return length


def announced_bytes(headers: dict[bytes, bytes], limit_bytes: int) -> int:
    """Return how long a body is, or may be if it comes in chunks. Raise `TooLarge` if it says too much."""
    length = judge_length(headers, limit_bytes)
    if length is None:
        return limit_bytes if b"transfer-encoding" in headers else 0
    return length


def too_large(limit_bytes: int) -> TooLarge:
    """Give the refusal of a body."""
    size = format_size(limit_bytes)
    return TooLarge(f"the request is larger than {size}", hint="send less at once", limit_bytes=limit_bytes)


def judge_values(values: int, size_bytes: int = 0) -> None:
    """Raise `TooLarge` for JSON of more values than `WORD_BYTES` can have and the given size adds to them.

    Once it is read, each value takes a hundred bytes.
    """
    if values > WORD_BYTES + size_bytes // BYTES_PER_VALUE:
        raise TooLarge("the request has too many values", hint="send less at once")


def read_message(kind: type[M], body: bytes) -> M:
    """Read a message. Raise `Faults` with what is wrong with it, `TooLarge` if it has too many values."""
    values = 0
    # Stretch by stretch: a thread that counts lets others run in between.
    for start in range(0, len(body), _STRETCH_BYTES):
        values += values_in(body, start, start + _STRETCH_BYTES)
        judge_values(values, len(body))
    try:
        if b'"$' in body:
            # A tagged number: the longer way, as `wire.codec` goes it.
            return kind.model_validate(loads(body))
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise faults_of(error) from None
    except ValueError as error:
        raise BadInput(f"the request is not JSON: {error}") from None


def faults_of(error: ValidationError, place: str = "") -> Faults | BadInput:
    """Return what a message is refused for, place by place; `place` is where in the request the message stands."""
    if error.error_count() > 10 * MOST_FAULTS:
        # All of them would be made, or none.
        return Faults(f"the request can't be taken: {error.error_count()} faults", faults=(), count=error.error_count())
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found and found[0]["type"] == "json_invalid":
        return BadInput(f"the request is not JSON: {found[0]['msg'].removeprefix('Invalid JSON: ')}")
    return faults([(".".join(map(str, (*([place] if place else ()), *one["loc"]))), one["msg"]) for one in found])


def faults(found: list[tuple[str, str]]) -> Faults:
    """Give one refusal for all faults, each with its place."""
    listed = tuple(Fault(where, message[:1].lower() + message[1:]) for where, message in found[:MOST_FAULTS])
    first = str(listed[0]) if len(listed) == 1 else f"{len(found)} faults"
    return Faults(f"the request can't be taken: {first}", faults=listed, count=len(found))
