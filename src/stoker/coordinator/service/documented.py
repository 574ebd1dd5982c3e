"""The app behind the door: every route that people use, all of them in one OpenAPI document, errors in our form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from stoker.coordinator.service.answers import REFUSALS, ErrorBody, raw
from stoker.coordinator.service.bodies import no_room
from stoker.coordinator.service.intake import Gone, faults
from stoker.coordinator.service.speech import Refusal, json_bytes, known
from stoker.coordinator.service.statuses import Told
from stoker.coordinator.service.worker_routes import SPOKEN, Spoken
from stoker.model.errors import BadInput, NotFound, StokerError, Usage
from stoker.model.fleet_errors import TooLarge
from stoker.wire.orders import Submission

_LEFT = 499
_REF = "#/components/schemas/{model}"


def documented_app(routers: Sequence[APIRouter], *, version: str) -> FastAPI:
    """Make the app of these routes."""
    app = FastAPI(
        title="Stoker's coordinator",
        version=version,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=REFUSALS,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}".replace(" ", "_"),
    )
    for router in routers:
        app.include_router(router)
    for kind in (StokerError, Refusal, Exception):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(Gone, _gone)
    app.add_exception_handler(RequestValidationError, _faulty)
    app.add_exception_handler(HTTPException, _by_status)
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(_document(app))
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # as the framework documents it
    return app


async def _refused(_request: Request, error: Exception) -> Response:
    return _told(known(error))


async def _gone(_request: Request, _error: Exception) -> Response:
    """Answer nobody: whoever asked left in the middle, and it is no bug of ours."""
    return Response(None, _LEFT)


async def _faulty(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it was registered for nothing else
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return _told(known(BadInput("the request is not JSON")))
    kind = request.headers.get("content-type", "")
    if "json" not in kind and any(tuple(one["loc"]) == ("body",) for one in found):
        said = f"the request is {kind}" if kind else "the request does not say what it is"
        return _told(known(BadInput(said, hint="send JSON, with Content-Type: application/json")))
    return _told(known(faults([(".".join(map(str, one["loc"])), one["msg"]) for one in found])))


async def _by_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it was registered for nothing else
    status = error.status_code
    if status == 404:
        told = known(NotFound(f"there is nothing at {request.url.path}", hint="GET /v1/openapi.json lists the routes"))
    elif status == 405:
        told = known(Refusal(Usage(f"{request.url.path} does not take {request.method}"), 405))
    elif status == 413:
        told = known(TooLarge(str(error.detail)))
    elif status == 503:
        told = known(no_room())
    else:
        told = known(Refusal(BadInput(str(error.detail)), status))
    more = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    return _told(Told(error=told.error, status=told.status, headers=(*told.headers, *more)))


def _told(told: Told) -> Response:
    answer = raw(json_bytes(told.error.to_dict()), "application/json", told.status)
    for name, value in told.headers:
        answer.headers[name.decode()] = value.decode()
    return answer


def _document(app: FastAPI) -> dict[str, Any]:
    """Write the document: the framework's routes, and those that are answered in front of it."""
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    spoken_models = [kind for spoken in SPOKEN for kind in (spoken.asks, spoken.answers)]
    models: dict[type[BaseModel], None] = dict.fromkeys((*spoken_models, Submission, ErrorBody))
    _, shared = models_json_schema([(kind, "validation") for kind in models], ref_template=_REF)
    components = made.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in shared["$defs"].items():
        components.setdefault(name, schema)
    for spoken in SPOKEN:
        made["paths"].setdefault(spoken.path, {})["post"] = _operation(spoken)
    return made


def _operation(spoken: Spoken) -> dict[str, Any]:
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
