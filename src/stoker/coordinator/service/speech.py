"""How answers leave the coordinator: JSON with its length, every error in one form, nothing that a cache may keep."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from stoker.coordinator.service.statuses import Told, told
from stoker.model import json_text
from stoker.model.errors import Bug, StokerError
from stoker.wire.protocol import VERSION, VERSION_HEADER

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

LOG = logging.getLogger("stoker.serve")

ALWAYS: tuple[Header, ...] = (
    (VERSION_HEADER.lower().encode(), str(VERSION).encode()),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_JSON: tuple[Header, ...] = ((b"content-type", b"application/json"), *ALWAYS)


async def say(send: Send, body: bytes, *, status: int = 200, headers: tuple[Header, ...] = ()) -> None:
    """Send a whole answer of JSON."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*_JSON, *headers, length]})
    await send({"type": "http.response.body", "body": body})


async def say_error(send: Send, error: BaseException) -> None:
    """Send an error as the answer. What nobody foresaw is a bug: its trace is logged, and not told."""
    answer = known(error)
    await say(send, json_bytes(answer.error.to_dict()), status=answer.status, headers=answer.headers)


def known(error: BaseException) -> Told:
    """Give an exception as what is told of it."""
    if isinstance(error, Refusal):
        return error.told
    if isinstance(error, StokerError):
        return told(error)
    LOG.error("a request met a bug", exc_info=error)
    hint = "the coordinator's log has the trace; please send it to us"
    return told(Bug(f"a bug in the coordinator: {type(error).__name__}", hint=hint))


class Refusal(Exception):
    """An error whose status is not the one of its class: a method that a route does not take, a missing token."""

    def __init__(self, error: StokerError, status: int, *headers: Header) -> None:
        super().__init__(str(error))
        plain = told(error, status)
        self.told = Told(error=error, status=plain.status, headers=(*plain.headers, *headers))


def json_bytes(value: object) -> bytes:
    """Give a plain value as JSON."""
    return json_text.dumps(value).encode()
