"""Reading of requests and writing of responses: body limits, errors, JSON, common parameters.

A body that announces too many bytes is refused before it is read. Slow clients are handled by `http_connection`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from functools import cached_property
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from fastapi import Path, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from starlette.routing import BaseRoute, Match

from stoker.coordinator.queue.commands import QueueCommandResult
from stoker.core import jsontext
from stoker.core.errors import (
    BadInput,
    Diagnostic,
    InternalError,
    InvalidInput,
    StokerError,
    TooLarge,
)
from stoker.core.jsontext import loads
from stoker.core.text import format_size
from stoker.protocol.codec import VERSION, VERSION_HEADER, to_json, values_in
from stoker.protocol.refusals import status_of
from stoker.protocol.view_messages import DoneView

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

LOG = logging.getLogger("stoker.serve")


class Refusal(Exception):
    """An error response with status and headers. `status` is given if it is not that of the error's class."""

    def __init__(self, error: StokerError, status: int = 0, *headers: Header) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status or status_of(error)
        self.headers = headers
        if self.status in {429, 503}:
            wait_s = error.data.get("retry_after_s")
            self.headers = ((b"retry-after", b"%d" % wait_s if isinstance(wait_s, int) else b"1"), *headers)
        elif self.status == 401:
            self.headers = ((b"www-authenticate", b"X-Operator-Token"), *headers)

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return json_bytes(self.error.to_dict())


def refusal_of(error: BaseException) -> Refusal:
    """Return the response to an exception. One that is not ours is a bug: its trace is logged and not sent."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, StokerError):
        return Refusal(error)
    LOG.error("internal error in a request", exc_info=error)
    hint = "the coordinator's log has the trace; please report it"
    return Refusal(InternalError(f"internal error in the coordinator: {type(error).__name__}", hint=hint))


# Responses: JSON with its length, all errors in one form, not cacheable.

ALWAYS: tuple[Header, ...] = (
    (VERSION_HEADER.lower().encode(), str(VERSION).encode()),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_JSON: tuple[Header, ...] = ((b"content-type", b"application/json"), *ALWAYS)


async def say(send: Send, body: bytes, *, status: int = 200, headers: tuple[Header, ...] = ()) -> None:
    """Send a JSON response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*_JSON, *headers, length]})
    await send({"type": "http.response.body", "body": body})


async def say_error(send: Send, error: BaseException) -> None:
    """Send an error response."""
    refusal = refusal_of(error)
    await say(send, refusal.body, status=refusal.status, headers=refusal.headers)


def json_bytes(value: object) -> bytes:
    """Return a plain value as JSON."""
    return jsontext.dumps(value).encode()


JOIN_BYTES = 2 * 1024
"""Of the first request of a join, which needs no credentials; the second has a certificate request."""
CSR_BYTES = 20 * 1024
WORD_BYTES = 64 * 1024
"""Of a small request: cancel, drain, begin an upload."""
SPEECH_BYTES = 4 * 1024 * 1024
"""Of a worker's message: a capability, a heartbeat with many leases, a failure with its error."""
ARCHIVE_BYTES = 1 << 40
"""Of a result in one piece, as system A's workers send it; storage has its own limit."""
MOST_FAULTS = 100
BYTES_PER_VALUE = 6
"""Minimum average of JSON, beyond as many values as `WORD_BYTES` can have."""
_STRETCH_BYTES = 1 << 20

M = TypeVar("M", bound=BaseModel)


class Gone(Exception):
    """The client disconnected in the middle of its request."""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return a request's headers by name; of repeated ones the last."""
    return dict(scope["headers"])


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit_bytes: int) -> bytes:
    """Return a whole body. Raises `TooLarge` before the first byte if it announces more, else at the first too many."""
    parts = [piece async for piece in body_pieces(receive, headers, limit_bytes)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_pieces(receive: Receive, headers: dict[bytes, bytes], limit_bytes: int) -> AsyncIterator[bytes]:
    """Yield the parts of a body. Raises `TooLarge` like `read_body`, `Gone` if the client disconnects."""
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
    """Return the announced length of a body. Raises `TooLarge` if that is too much."""
    text = headers.get(b"content-length")
    if text is None:
        return None
    length = int(text) if text.isdigit() and len(text) < 20 else limit_bytes + 1
    if length > limit_bytes:
        raise too_large(limit_bytes)
    return length


def announced_bytes(headers: dict[bytes, bytes], limit_bytes: int) -> int:
    """Return the length of a body, or the limit if it is chunked. Raises `TooLarge` if it announces too much."""
    length = judge_length(headers, limit_bytes)
    if length is None:
        return limit_bytes if b"transfer-encoding" in headers else 0
    return length


def too_large(limit_bytes: int) -> TooLarge:
    """Return the error for a large body."""
    size = format_size(limit_bytes)
    return TooLarge(f"the request is larger than {size}", hint="send less at once", limit_bytes=limit_bytes)


def judge_values(values: int, size_bytes: int = 0) -> None:
    """Raise `TooLarge` for JSON with more values than `WORD_BYTES` and the given size allow.

    Each parsed value takes about a hundred bytes.
    """
    if values > WORD_BYTES + size_bytes // BYTES_PER_VALUE:
        raise TooLarge("the request has too many values", hint="send less at once")


def read_message(kind: type[M], body: bytes) -> M:
    """Return a message. Raises `InvalidInput` with its errors, `TooLarge` if it has too many values."""
    values = 0
    # In steps: a thread that counts lets others run in between.
    for start in range(0, len(body), _STRETCH_BYTES):
        values += values_in(body, start, start + _STRETCH_BYTES)
        judge_values(values, len(body))
    try:
        if b'"$' in body:
            # Has a tagged number: the slow path, as in `protocol.codec`.
            return kind.model_validate(loads(body))
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise faults_of(error) from None
    except ValueError as error:
        raise BadInput(f"the request is not JSON: {error}") from None


def faults_of(error: ValidationError, place: str = "") -> InvalidInput | BadInput:
    """Return the errors of a message, each with its place; `place` is that of the message in the request."""
    if error.error_count() > 10 * MOST_FAULTS:
        # pydantic returns all of them or none.
        return InvalidInput(
            f"the request is invalid: {error.error_count()} errors", faults=(), count=error.error_count()
        )
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found and found[0]["type"] == "json_invalid":
        return BadInput(f"the request is not JSON: {found[0]['msg'].removeprefix('Invalid JSON: ')}")
    return faults([(".".join(map(str, (*([place] if place else ()), *one["loc"]))), one["msg"]) for one in found])


def faults(found: list[tuple[str, str]]) -> InvalidInput:
    """Return one error for all faults, each with its place."""
    listed = tuple(Diagnostic(where, message[:1].lower() + message[1:]) for where, message in found[:MOST_FAULTS])
    first = str(listed[0]) if len(listed) == 1 else f"{len(found)} errors"
    return InvalidInput(f"the request is invalid: {first}", faults=listed, count=len(found))


# Common parts of documented routes: path parameters, responses, and their documentation.

ENCODED_SLASH = "\ue000"
"""Replaces a slash that was written as %2F: it is part of a name (`resnet/3`) and no separator."""


def path_of(raw_path: bytes) -> str:
    """Return a decoded path for routing: %2F is no separator."""
    text = raw_path.decode("latin-1")
    if "%" not in text:
        return text
    return "/".join(unquote(part).replace("/", ENCODED_SLASH) for part in text.split("/"))


HEADERS = {name.decode(): value.decode() for name, value in ALWAYS}
"""Of every response."""


def _with_slashes(text: str) -> str:
    return text.replace(ENCODED_SLASH, "/")


Ref = Annotated[
    str,
    Path(description="A job: its name, `name%2F3`, the beginning of its id, or `last`", min_length=1, max_length=300),
    AfterValidator(_with_slashes),
]
FilePath = Annotated[
    str, Path(description="A file of an attempt's folder, such as `logs/train.log`"), AfterValidator(_with_slashes)
]
MachineName = Annotated[
    str, Path(description="A machine's name", min_length=1, max_length=200), AfterValidator(_with_slashes)
]


class ErrorBody(BaseModel):
    """Every error response."""

    error: str = Field(description="A code for programs, such as `not_found`")
    exit_code: int = Field(description="The exit code of the command line")
    message: str
    hint: str = ""
    data: dict[str, Any] = {}


REFUSALS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody, "description": "Error"}}


class RouteTable:
    """The routes of one subject."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.routes: list[DeferredRoute] = []

    def add(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a route, with the options of an `APIRoute`."""
        options["responses"] = {**REFUSALS, **options.get("responses", {})}
        self.routes.append(DeferredRoute(path, endpoint, {**options, "tags": [self._tag]}))


class DeferredRoute(BaseRoute):
    """A route that is built for its first request: to build all of them takes longer than the rest of the start.

    Endpoints return `Response` objects, so models of responses serve the document alone.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._path = path
        self._endpoint = endpoint
        self._options = options
        self._segments = path.split("/")
        self._is_open = ":path}" in path

    @cached_property
    def documented(self) -> APIRoute:
        """The route with all that the document says of it."""
        return self._build(self._options)

    @cached_property
    def _served(self) -> APIRoute:
        return self._build({**self._options, "response_model": None, "responses": None})

    def _build(self, options: Mapping[str, Any]) -> APIRoute:
        return APIRoute(self._path, self._endpoint, generate_unique_id_function=_operation, **options)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return how the route matches a request."""
        if scope["type"] != "http" or not self._may_match(scope["path"].split("/")):
            return Match.NONE, {}
        return self._served.matches(scope)

    def _may_match(self, segments: list[str]) -> bool:
        """Return False if a path has other segments: the route then need not be built to see that."""
        own = self._segments
        if len(segments) < len(own) if self._is_open else len(segments) != len(own):
            return False
        return all(one == other or other.startswith("{") for one, other in zip(segments, own, strict=False))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._served.handle(scope, receive, send)


def _operation(route: APIRoute) -> str:
    return f"{route.tags[0]}_{route.name}".replace(" ", "_")


def answer(message: BaseModel) -> Response:
    """Return a message as a response."""
    return raw(to_json(message), "application/json")


def raw(body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return bytes as a response."""
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type=kind)


def attachment(path: str) -> str:
    """Return the `Content-Disposition` by which a browser saves a file, whatever is in it, and shows it nowhere."""
    return f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2][:200], safe='')}"


def done(what: QueueCommandResult) -> Response:
    """Return the result of a command as a response."""
    return answer(DoneView(changed=what.changed, notes=what.notes, data=what.data))


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI part of a route that reads such a message itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


BYTES_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
BYTES_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
