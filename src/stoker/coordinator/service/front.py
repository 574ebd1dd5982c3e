"""The door that every request comes through: who may ask, how much may be said, and where it is answered.

Workers' own words are answered right here; everything else goes on to the documented app. Whatever goes wrong is told
in one form.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import unquote

from starlette.exceptions import HTTPException

from stoker.coordinator.service.access import UNKNOWN, Access
from stoker.coordinator.service.answers import ENCODED_SLASH
from stoker.coordinator.service.bodies import (
    SPOOL_BYTES,
    WORDS_BYTES,
    WORDS_EACH_BYTES,
    Bodies,
    Incoming,
    no_room,
)
from stoker.coordinator.service.intake import (
    ARCHIVE_BYTES,
    CSR_BYTES,
    JOIN_BYTES,
    SPEECH_BYTES,
    WORD_BYTES,
    Gone,
    announced_bytes,
    read_body,
    too_large,
)
from stoker.coordinator.service.speech import App, Receive, Refusal, Scope, Send, say, say_error
from stoker.coordinator.service.who import PEER, PRINCIPAL, STILL, owner_of
from stoker.coordinator.service.worker_routes import WorkerRoutes
from stoker.model.errors import StokerError, Usage
from stoker.wire.asking import MOST_FILE_BYTES
from stoker.wire.contents import MOST_LISTING_BYTES, PACK_BYTES
from stoker.wire.orders import MOST_SUBMISSION_BYTES

STRANGERS_AT_ONCE = 4
"""Requests to join, of all that wait: each takes a millisecond of the event loop."""


class Front:
    """The app that the server runs, and the door for what its connections answer by themselves."""

    def __init__(self, access: Access, workers: WorkerRoutes, documented: App) -> None:
        self._access = access
        self._documented = documented
        self._bodies = Bodies()
        self._strangers = asyncio.Semaphore(STRANGERS_AT_ONCE)
        self.words = Bodies(WORDS_BYTES, WORDS_EACH_BYTES)
        self.find = workers.find
        self.judge_worker = access.judge_worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        route = self.find(scope["path"])
        if route is None:
            await self._pass_on(scope, receive, send, headers)
            return
        try:
            who = self._access.judge_worker(headers, scope.get(PEER, UNKNOWN))
            if scope["method"] != "POST":
                raise Refusal(Usage(f"this route takes POST, not {scope['method']}"), 405, (b"allow", b"POST"))
            answering = _Answering(receive)
            room_bytes = announced_bytes(headers, SPEECH_BYTES)
            body = Incoming(receive, self.words, owner_of(who), limit_bytes=SPEECH_BYTES, room_bytes=room_bytes)
            try:
                route(await read_body(body.receive, headers, SPEECH_BYTES), answering, who)
            finally:
                body.release()
            await say(send, await answering.answer)
        except Gone:
            return
        except HTTPException as error:
            await say_error(send, too_large(SPEECH_BYTES) if error.status_code == 413 else no_room())
        except Exception as error:  # noqa: BLE001 - here every error becomes an answer
            await say_error(send, error)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        is_begun = is_done = False
        body: Incoming | None = None

        async def note(message: MutableMapping[str, Any]) -> None:
            nonlocal is_begun, is_done
            is_begun = True
            if body is not None:
                body.release()
            is_done = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            # By the path that routes are found by: what is judged and what is asked must be the same.
            path = scope["path"] = path_of(scope["raw_path"])
            self._judge(scope, headers)
            limit_bytes = most_bytes(scope["method"], path)
            size_bytes = announced_bytes(headers, limit_bytes)
            if path in _OF_STRANGERS:
                await self._answer_stranger(scope, await read_body(receive, headers, limit_bytes), note)
                return
            if size_bytes:
                room_bytes = min(size_bytes, SPOOL_BYTES) if is_spooled(scope["method"], path) else size_bytes
                owner = owner_of(scope[PRINCIPAL])
                body = Incoming(
                    receive,
                    self._bodies,
                    owner,
                    limit_bytes=limit_bytes,
                    room_bytes=room_bytes,
                    is_json=path in _NAMING_MANY,
                )
            await self._documented(scope, receive if body is None else body.receive, note)
        except Gone:
            return
        except Exception as error:
            if is_begun and not is_done:
                # The answer can only break off; the server closes the connection.
                raise
            if not is_begun:
                await say_error(send, error)
        finally:
            if body is not None:
                body.release()

    async def _answer_stranger(self, scope: Scope, data: bytes, send: Send) -> None:
        """Answer a request that needs no credentials: a few at a time, so that a flood of them delays no other.

        The body has come and the answer has not begun to leave while others wait: slow clients keep none waiting.
        """
        told: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def keep(message: MutableMapping[str, Any]) -> None:
            told.append(message)

        async with self._strangers:
            await self._documented(scope, receive, keep)
            # It may not have waited for anything: the next one has its turn after others.
            await asyncio.sleep(0)
        for message in told:
            await send(message)

    def _judge(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        peer, access = scope.get(PEER, UNKNOWN), self._access
        method, path = scope["method"], scope["path"]

        def may_still() -> bool:
            try:
                access.judge(method, path, headers, peer)
            except (StokerError, Refusal):
                return False
            return True

        scope[PRINCIPAL] = access.judge(method, path, headers, peer)
        scope[STILL] = may_still


_OF_STRANGERS = frozenset({"/v1/join/begin", "/v1/join/finish"})
_NAMING_MANY = frozenset(
    {"/v1/jobs/cancel", "/v1/jobs/requeue", "/v1/jobs/priority", "/v1/contents/missing", "/v1/contents/fetch"}
)

_LIMITS = {
    "/v1/jobs": MOST_SUBMISSION_BYTES,
    "/v1/contents": PACK_BYTES,
    "/v1/join/begin": JOIN_BYTES,
    "/v1/join/finish": CSR_BYTES,
    **dict.fromkeys(_NAMING_MANY, SPEECH_BYTES),
}


class _Answering:
    """An answer that an app waits for."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def say(self, body: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(body)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    async def gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.fail(Gone())


def most_bytes(method: str, path: str) -> int:
    """Return how long the body of a documented route may be."""
    if path in _LIMITS:
        return _LIMITS[path]
    if path.startswith("/v1/model/"):
        # Taken as it comes, by whoever answers.
        return ARCHIVE_BYTES
    if path.startswith("/v1/trees/") and method == "PUT":
        return MOST_LISTING_BYTES
    return MOST_FILE_BYTES if method in ("PUT", "PATCH") else WORD_BYTES


def is_spooled(method: str, path: str) -> bool:
    """Say whether a body goes to disk as it comes, so that little of it is ever in memory."""
    return path == "/v1/jobs" or path.startswith("/v1/model/") or (method == "PUT" and path.startswith("/v1/trees/"))


def path_of(raw_path: bytes) -> str:
    """Give a path as routes are found by it: what was written as %2F parts nothing."""
    text = raw_path.decode("latin-1")
    if "%" not in text:
        return text
    return "/".join(unquote(part).replace("/", ENCODED_SLASH) for part in text.split("/"))
