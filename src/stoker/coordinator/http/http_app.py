"""The HTTP app: access checks, body limits, the documented routes; and the coordinator's service.

Workers' own requests do not come here: their connection answers them (`worker_routes`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from stoker.coordinator.auth import Enrolment
from stoker.coordinator.http.access import PEER, PRINCIPAL, STILL, UNKNOWN, Access, Judge, Peer, Rules, owner_of
from stoker.coordinator.http.app_state import CoordinatorInfo, ServiceContext
from stoker.coordinator.http.file_routes import ExecRoutes, FileRoutes, RetentionRoutes
from stoker.coordinator.http.fleet_routes import FleetRoutes, HealthRoutes, MachineRoutes, WebhookRoutes
from stoker.coordinator.http.http_messages import (
    ARCHIVE_BYTES,
    CSR_BYTES,
    JOIN_BYTES,
    SPEECH_BYTES,
    WORD_BYTES,
    App,
    ErrorBody,
    Gone,
    Receive,
    Refusal,
    RouteTable,
    Scope,
    Send,
    announced_bytes,
    faults,
    path_of,
    raw,
    read_body,
    refusal_of,
    say_error,
)
from stoker.coordinator.http.job_routes import CodeGate, JobRoutes
from stoker.coordinator.http.launch_routes import LaunchRoutes
from stoker.coordinator.http.member_routes import EnrolmentRoutes, TokenRoutes
from stoker.coordinator.http.overview import Explanations
from stoker.coordinator.http.pages import HARMLESS, AnswerPage, Headers, is_page, without_prefix
from stoker.coordinator.http.reload import CoordinatorFiles, lines_of, trouble_of
from stoker.coordinator.http.run_routes import RunRoutes
from stoker.coordinator.http.screen_routes import ScreenRoutes, TelemetryRoutes
from stoker.coordinator.http.sent_routes import SentRoutes
from stoker.coordinator.http.session_routes import SessionRoutes
from stoker.coordinator.http.sessions import Sessions
from stoker.coordinator.http.submission_body import (
    SPOOL_BYTES,
    WORDS_BYTES,
    WORDS_EACH_BYTES,
    BodyMemoryBudget,
    ServiceRequestBody,
    no_room,
)
from stoker.coordinator.http.sweep_routes import SweepRoutes
from stoker.coordinator.http.system_a import SystemARoutes
from stoker.coordinator.http.tree_routes import ContentRoutes, TreeLocator
from stoker.coordinator.http.worker_routes import SPOKEN, WorkerRoutes, WorkerRouteSpec, WorkerTable
from stoker.coordinator.notify import Notifier
from stoker.coordinator.queue.writer import Queue
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.coordinator.storage.tree_storage import CoordinatorTrees, QueueTrees
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, NotFound, StokerError, TooLarge, Usage
from stoker.core.frozen import frozen
from stoker.protocol.codec import build_messages
from stoker.protocol.job_messages import MOST_SUBMISSION_BYTES, Submission
from stoker.protocol.lease_messages import Hello, Renewal
from stoker.protocol.sent_messages import MOST_MANIFEST_BYTES, ManifestRequest
from stoker.protocol.tree_messages import MOST_LISTING_BYTES, PACK_BYTES
from stoker.protocol.view_messages import MOST_FILE_BYTES

# The documented app: all routes of users in one OpenAPI document, errors in our form.

_LEFT = 499
_REF = "#/components/schemas/{model}"


def documented_app(tables: Sequence[RouteTable], *, version: str) -> FastAPI:
    """Return the app of these routes."""
    app = FastAPI(
        title="Stoker's coordinator",
        version=version,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    routes = [route for table in tables for route in table.routes]
    app.router.routes.extend(routes)
    for kind in (StokerError, Refusal, Exception):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(Gone, _gone)
    app.add_exception_handler(RequestValidationError, _faulty)
    app.add_exception_handler(HTTPException, _by_status)
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(_document(app, [deferred.documented for deferred in routes]))
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # as the framework documents it
    return app


async def _refused(_request: Request, error: Exception) -> Response:
    return _response(error)


async def _gone(_request: Request, _error: Exception) -> Response:
    """Return a response that is not sent: the client disconnected in the middle, which is not an error of ours."""
    return Response(None, _LEFT)


async def _faulty(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it was registered for nothing else
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return _response(BadInput("the request is not JSON"))
    kind = request.headers.get("content-type", "")
    if "json" not in kind and any(tuple(one["loc"]) == ("body",) for one in found):
        said = f"the request is {kind}" if kind else "the request does not say what it is"
        return _response(BadInput(said, hint="send JSON, with Content-Type: application/json"))
    return _response(faults([(".".join(map(str, one["loc"])), one["msg"]) for one in found]))


async def _by_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it was registered for nothing else
    status, path = error.status_code, request.url.path
    known: StokerError | Refusal
    if status == 404:
        known = NotFound(f"there is nothing at {path}", hint="GET /v1/openapi.json lists the routes")
    elif status == 405:
        known = Refusal(Usage(f"{path} does not take {request.method}"), 405)
    elif status == 413:
        known = TooLarge(str(error.detail))
    elif status == 503:
        known = no_room()
    else:
        known = Refusal(BadInput(str(error.detail)), status)
    return _response(known, error.headers)


def _response(error: Exception, headers: Mapping[str, str] | None = None) -> Response:
    refusal = refusal_of(error)
    own = {name.decode(): value.decode() for name, value in refusal.headers}
    return raw(refusal.body, "application/json", refusal.status, {**own, **(headers or {})})


def _document(app: FastAPI, routes: Sequence[APIRoute]) -> dict[str, Any]:
    """Return the OpenAPI document: the framework's routes, and those of `WorkerRoutes`."""
    made = get_openapi(title=app.title, version=app.version, routes=routes)
    spoken_models = [kind for spoken in SPOKEN for kind in (spoken.asks, spoken.answers)]
    models: dict[type[BaseModel], None] = dict.fromkeys((*spoken_models, Submission, ManifestRequest, ErrorBody))
    _, shared = models_json_schema([(kind, "validation") for kind in models], ref_template=_REF)
    components = made.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in shared["$defs"].items():
        components.setdefault(name, schema)
    for spoken in SPOKEN:
        made["paths"].setdefault(spoken.path, {})["post"] = _operation(spoken)
    return made


def _operation(spoken: WorkerRouteSpec) -> dict[str, Any]:
    parameters = []
    if "{job}" in spoken.path:
        schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
        parameters = [{"name": "job", "in": "path", "required": True, "schema": schema, "description": "A job's id"}]
    word = spoken.path.rpartition("/")[2]
    return {
        "tags": ["workers"],
        "summary": spoken.summary,
        "operationId": f"worker_{word}",
        "parameters": parameters,
        "requestBody": {"required": True, "content": _json(spoken.asks.__name__)},
        "responses": {
            "200": {"description": "Done, and durable", "content": _json(spoken.answers.__name__)},
            "default": {"description": "Refused, and why", "content": _json(ErrorBody.__name__)},
        },
    }


def _json(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}


STRANGERS_AT_ONCE = 4
"""Pending requests to join: each takes a millisecond of the event loop."""


class ServiceApp:
    """The app of the server: checks each request by its head, and passes it to the documented app."""

    def __init__(self, judge: Judge, documented: App, *, pages: AnswerPage | None = None, prefix: str = "") -> None:
        """Without `pages` there are none; `prefix` is that of the public address."""
        self._pages = pages
        self._prefix = prefix
        self._judge = judge
        self._documented = documented
        self._bodies = BodyMemoryBudget()
        self._strangers = asyncio.Semaphore(STRANGERS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        outgoing = _Outgoing(send)
        try:
            # By the path of routing: the checked and the served path must be the same.
            method, path = scope["method"], without_prefix(path_of(scope["raw_path"]), self._prefix)
            headers, peer = dict(scope["headers"]), scope.get(PEER, UNKNOWN)
            if path and path == self._prefix and self._pages is not None:
                # Links of the pages are relative to the folder.
                await _send_to_folder(path, outgoing.send)
                return
            scope["path"], scope[PRINCIPAL] = path, self._judge(method, path, headers, peer)
            if self._pages is not None and is_page(path):
                # With headers of their own.
                outgoing.more = ()
                await _send_page(self._pages, method, path, headers, outgoing.send)
                return
            scope[STILL] = partial(self._may_still, method, path, headers, peer)
            await self._answer_documented(scope, headers, receive, outgoing)
        except Gone:
            return
        except Exception as error:
            if outgoing.is_begun and not outgoing.is_done:
                # The response can only end early; the server closes the connection.
                raise
            if not outgoing.is_begun:
                with suppress(Gone):
                    await say_error(outgoing.send, error)
        finally:
            outgoing.release()

    async def _answer_documented(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, outgoing: _Outgoing
    ) -> None:
        method, path = scope["method"], scope["path"]
        limit_bytes = most_bytes(method, path)
        size_bytes = announced_bytes(headers, limit_bytes)
        if path in _OF_STRANGERS:
            await self._answer_stranger(scope, await read_body(receive, headers, limit_bytes), outgoing.send)
            return
        if size_bytes:
            outgoing.body = ServiceRequestBody(
                receive,
                self._bodies,
                owner_of(scope[PRINCIPAL]),
                limit_bytes=limit_bytes,
                room_bytes=min(size_bytes, SPOOL_BYTES) if is_spooled(method, path) else size_bytes,
                is_json=path in _NAMING_MANY,
            )
            receive = outgoing.body.receive
        await self._documented(scope, receive, outgoing.send)

    async def _answer_stranger(self, scope: Scope, data: bytes, send: Send) -> None:
        """Answer a request without credentials: a few at a time, so that a flood of them delays no other.

        The body has come and the answer has not begun to leave while others wait: slow clients keep none waiting.
        """
        messages: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def keep(message: MutableMapping[str, Any]) -> None:
            messages.append(message)

        async with self._strangers:
            await self._documented(scope, receive, keep)
            # It may not have yielded: let other requests run before the next one.
            await asyncio.sleep(0)
        for message in messages:
            await send(message)

    def _may_still(self, method: str, path: str, headers: Mapping[bytes, bytes], peer: Peer) -> bool:
        """Return True if an allowed request would still be allowed."""
        try:
            self._judge(method, path, headers, peer)
        except (StokerError, Refusal):
            return False
        return True


async def _send_page(pages: AnswerPage, method: str, path: str, headers: Mapping[bytes, bytes], send: Send) -> None:
    page = pages(method, path, headers)
    await send({"type": "http.response.start", "status": page.status, "headers": list(page.headers)})
    await send({"type": "http.response.body", "body": page.body})


async def _send_to_folder(path: str, send: Send) -> None:
    headers = [(b"location", f"{path}/".encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 308, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class _Outgoing:
    """A response of the documented app. The memory of its request's body is released when it begins."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.body: ServiceRequestBody | None = None
        self.more: Headers = HARMLESS
        self.is_begun = self.is_done = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *self.more]
        self.is_begun = True
        self.release()
        self.is_done = message["type"] == "http.response.body" and not message.get("more_body")
        try:
            await self._send(message)
        except RuntimeError as error:
            if str(error).endswith("the handler is closed"):
                # Of the event loop: the client disconnected. The server learns it in the loop's next turn.
                await asyncio.sleep(0)
                raise Gone from error
            raise

    def release(self) -> None:
        if self.body is not None:
            self.body.release()


_OF_STRANGERS = frozenset({"/v1/join/begin", "/v1/join/finish"})
_NAMING_MANY = frozenset(
    {"/v1/jobs/cancel", "/v1/jobs/requeue", "/v1/jobs/priority", "/v1/contents/missing", "/v1/contents/fetch"}
)

_LIMITS = {
    "/v1/jobs": MOST_SUBMISSION_BYTES,
    "/v1/manifests": MOST_MANIFEST_BYTES,
    "/v1/contents": PACK_BYTES,
    "/v1/join/begin": JOIN_BYTES,
    "/v1/join/finish": CSR_BYTES,
    **dict.fromkeys(_NAMING_MANY, SPEECH_BYTES),
}


def most_bytes(method: str, path: str) -> int:
    """Return the body limit of a documented route."""
    if path in _LIMITS:
        return _LIMITS[path]
    if path.startswith("/v1/model/"):
        # Read piece by piece by the route.
        return ARCHIVE_BYTES
    if path.startswith("/v1/trees/") and method == "PUT":
        return MOST_LISTING_BYTES
    return MOST_FILE_BYTES if method in ("PUT", "PATCH") else WORD_BYTES


def is_spooled(method: str, path: str) -> bool:
    """Return True if a body is written to disk as it arrives, so that little of it is in memory."""
    return path == "/v1/jobs" or path.startswith("/v1/model/") or (method == "PUT" and path.startswith("/v1/trees/"))


# The coordinator's HTTP service: the app of a server, with reload and shutdown. Created inside its event loop.


@frozen
class CoordinatorParts:
    """The parts of a coordinator."""

    queue: Queue
    keeping: CoordinatorStorage
    files: CoordinatorFiles
    about: CoordinatorInfo
    clock: Clock
    enrolment: Enrolment | None = None
    """None: it listens on loopback only, without joining."""
    code_gate: CodeGate | None = None
    """None: it accepts any code."""
    notifier: Notifier | None = None
    """None: no webhooks."""
    pages: AnswerPage | None = None
    """None: no web pages."""
    sessions: Sessions | None = None
    """Of web pages; None: no cookie is accepted."""


class CoordinatorService:
    """One coordinator, served."""

    def __init__(self, parts: CoordinatorParts, rules: Rules, *, say: Callable[[str], None]) -> None:
        build_messages()
        self._parts = parts
        self._say = say
        self._context = context = ServiceContext(
            queue=parts.queue,
            keeping=parts.keeping,
            views=Explanations(
                parts.queue,
                parts.clock,
                parts.about.times,
                parts.about.version,
                is_reachable=parts.enrolment is not None,
                measured=parts.keeping.telemetry.latest,
            ),
            about=parts.about,
            clock=parts.clock,
            reload=parts.files.read_again,
        )
        contents = CoordinatorTrees(parts.keeping, QueueTrees(parts.queue, parts.queue.reader.database))
        sources = TreeLocator(parts.clock)
        access = Access(
            rules,
            standing=parts.queue.standing,
            clock=parts.clock,
            on_use=context.note_token,
            sessions=parts.sessions,
        )
        telemetry = TelemetryRoutes(context)

        async def on_forgotten(machine: str) -> None:
            sources.forget(machine)
            await telemetry.forget(machine)

        jobs = JobRoutes(context, parts.code_gate)
        routers = (
            telemetry.router,
            jobs.router,
            SentRoutes(context, contents, jobs).router,
            FileRoutes(context, contents).router,
            RunRoutes(context, contents).router,
            SweepRoutes(context).router,
            MachineRoutes(context, on_forgotten=on_forgotten).router,
            FleetRoutes(context).router,
            ScreenRoutes(context).router,
            RetentionRoutes(context, contents).router,
            ContentRoutes(context, contents, sources).router,
            SystemARoutes(context, contents, rules.token or secrets.token_bytes(32)).router,
            EnrolmentRoutes(context, parts.enrolment).router,
            TokenRoutes(context).router,
            LaunchRoutes(context, parts.enrolment, on_forgotten=on_forgotten).router,
            ExecRoutes(context).router,
            WebhookRoutes(context, parts.notifier).router,
            HealthRoutes(context).router,
            SessionRoutes(access, parts.sessions, rules.public).router,
        )

        self._leaving: set[asyncio.Task[None]] = set()

        async def on_left(machine: str) -> None:
            # Allocations' workers are removed with their goodbye; other machines stay, and may come back.
            if not await context.read(context.reader.machines, machine):
                await on_forgotten(machine)

        def on_recorded(message: Hello | Renewal) -> None:
            sources.hear(message)
            context.execs.note_features(message)
            if isinstance(message, Renewal) and message.is_leaving:
                task = asyncio.get_running_loop().create_task(on_left(message.worker))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

        self.app: App = ServiceApp(
            access.judge,
            documented_app(routers, version=parts.about.version),
            pages=parts.pages,
            prefix=rules.public.prefix if rules.public is not None else "",
        )
        self.workers = WorkerTable(
            find=WorkerRoutes(context, on_recorded=on_recorded).find,
            judge=access.judge,
            bodies=BodyMemoryBudget(WORDS_BYTES, WORDS_EACH_BYTES),
        )

    def close(self) -> None:
        """Answer all open requests."""
        self._context.close()

    def end(self) -> None:
        """Shut down the thread pools; call after the last request."""
        self._context.end()

    async def reload(self) -> None:
        """Reload the files, and log the result."""
        try:
            done = await self._context.reload(dry_run=False)
        except StokerError as error:
            lines = trouble_of(error)
        else:
            lines = lines_of(done)
        for line in lines:
            self._say(f"reload: {line}")
