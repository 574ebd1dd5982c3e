"""What documented routes have in common: references in paths, messages as answers, and what the document says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import AfterValidator, BaseModel, Field

from stoker.coordinator.queue.commands import Done
from stoker.coordinator.service.speech import ALWAYS
from stoker.wire.asking import DoneView
from stoker.wire.codec import to_json

ENCODED_SLASH = "\ue000"
"""What stands in a path for a slash that was written as %2F: it belongs to a name (`resnet/3`) and parts nothing."""

HEADERS = {name.decode(): value.decode() for name, value in ALWAYS}
"""Of every answer."""


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
    """What every refusal looks like."""

    error: str = Field(description="A code for programs, such as `not_found`")
    exit_code: int = Field(description="What the command line leaves with")
    message: str
    hint: str = ""
    data: dict[str, Any] = {}


REFUSALS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody, "description": "Refused, and why"}}


def answer(message: BaseModel) -> Response:
    """Give a message as an answer."""
    return raw(to_json(message), "application/json")


def raw(body: bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Give bytes as an answer."""
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type=kind)


def done(what: Done) -> Response:
    """Give what a command did as an answer."""
    return answer(DoneView(changed=what.changed, notes=what.notes, data=what.data))


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Say in the document that a route reads such a message by itself."""
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
