"""What `stoker ui` answers requests of its pages with: the routes of a coordinator, forwarded or of this machine.

Only paths below `/v1/` are forwarded, to one coordinator, with the user's token and over verified TLS. Cookies stay
here; the token never reaches the browser.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from stoker.core.errors import BadInput, StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps
from stoker.host.http.exchange import HttpClientResponse
from stoker.protocol.transport import CoordinatorRequest, CoordinatorTransport

JSON = "application/json"
EVENTS = "text/event-stream"
_PIECE_BYTES = 64 * 1024


@frozen
class UiRequest:
    """One request of a page."""

    method: str
    path: str
    """Escaped, with its query: `/v1/jobs?state=running`."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""


@frozen
class UiAnswer:
    """One response to a page."""

    status: int = 200
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | Iterator[bytes] = b""
    """An iterator is sent piece by piece, and closed."""


class FileBody(Iterator[bytes]):
    """The first bytes of an open file, in pieces. The sender closes it."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._left = size_bytes

    def __next__(self) -> bytes:
        piece = self._file.read(min(_PIECE_BYTES, self._left))
        if not piece:
            raise StopIteration
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class UiBackend(ABC):
    """Answers requests of pages. Every method blocks, and may be called from any thread."""

    @abstractmethod
    def answer(self, request: UiRequest) -> UiAnswer:
        """Answer a request below `/v1/`. Raises the error that a coordinator would answer with."""

    @abstractmethod
    def close(self) -> None:
        """End responses that are still being sent."""


def json_answer(value: object, status: int = 200) -> UiAnswer:
    """Return a plain value as a response."""
    return UiAnswer(status=status, body=dumps(value).encode())


_PATH = re.compile(r"/v1/[\x21-\x7e]*")
_PARENT = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_SENT = ("Accept", "Content-Type", "Last-Event-ID", "Range")
_RETURNED = (
    "cache-control",
    "content-disposition",
    "content-range",
    "x-stoker-size",
    "x-stoker-over",
    "x-stoker-attempt",
)
_SILENCE_S = 60.0
"""Longer than the pause between two beats of a stream."""


class _OpenResponses:
    """Responses that are being sent. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._all: set[HttpClientResponse] = set()

    def add(self, response: HttpClientResponse) -> None:
        with self._guard:
            self._all.add(response)

    def discard(self, response: HttpClientResponse) -> None:
        with self._guard:
            self._all.discard(response)

    def abort(self) -> None:
        with self._guard:
            found = tuple(self._all)
        for response in found:
            response.abort()


class _ForwardedBody(Iterator[bytes]):
    """The bytes of a coordinator's response. The sender closes it, also if nothing was read."""

    def __init__(self, transport: CoordinatorTransport, response: HttpClientResponse, sent: _OpenResponses) -> None:
        self._transport = transport
        self._response = response
        self._sent = sent
        sent.add(response)

    def __next__(self) -> bytes:
        try:
            piece = self._transport.read(self._response, _PIECE_BYTES)
        except StokerError:
            # The head has been sent: the page sees a response that ends, and asks again.
            piece = b""
        if not piece:
            raise StopIteration
        return piece

    def close(self) -> None:
        """End the response."""
        self._sent.discard(self._response)
        self._response.close()


class ForwardingBackend(UiBackend):
    """Sends every request to one coordinator."""

    def __init__(self, transport: CoordinatorTransport) -> None:
        self._transport = transport.retrying(0.0)
        self._open = _OpenResponses()

    def answer(self, request: UiRequest) -> UiAnswer:
        """Forward a request, and return the coordinator's response."""
        path = request.path.partition("?")[0]
        if not _PATH.fullmatch(request.path) or "#" in request.path or "\\" in path or _PARENT.search(path):
            raise BadInput(f"{path[:100]!r} is not a path of a coordinator")
        question = CoordinatorRequest(
            path=request.path,
            method=request.method,
            headers={name: value for name in _SENT if (value := request.headers.get(name.lower())) is not None},
            body=request.body or None,
            silence_s=_SILENCE_S,
        )
        response = self._transport.open(question)
        headers = [(name, value) for name in _RETURNED if (value := response.headers.get(name)) is not None]
        if (length := response.headers.get("content-length")) is not None:
            headers.append(("content-length", length))
        return UiAnswer(
            status=response.status,
            kind=response.headers.get("content-type") or JSON,
            headers=tuple(headers),
            body=_ForwardedBody(self._transport, response, self._open),
        )

    def close(self) -> None:
        """Cut all streams."""
        self._open.abort()
