"""What `stoker ui` answers requests of its pages with: the routes of a coordinator, forwarded or of this machine.

Only paths below `/v1/` are forwarded, to one coordinator, with the user's token and over verified TLS. Cookies stay
here; the token never reaches the browser.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from stoker.core.errors import BadInput, StokerError
from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps
from stoker.host.http.exchange import HttpClientResponse
from stoker.protocol.transport import CoordinatorRequest, CoordinatorTransport

JSON = "application/json"
EVENTS = "text/event-stream"


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
_PIECE_BYTES = 64 * 1024
_SILENCE_S = 60.0
"""Longer than the pause between two beats of a stream."""


class ForwardingBackend(UiBackend):
    """Sends every request to one coordinator."""

    def __init__(self, transport: CoordinatorTransport) -> None:
        self._transport = transport.retrying(0.0)
        self._open: set[HttpClientResponse] = set()

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
            body=self._pieces(response),
        )

    def close(self) -> None:
        """Cut all streams."""
        for response in tuple(self._open):
            response.abort()

    def _pieces(self, response: HttpClientResponse) -> Iterator[bytes]:
        self._open.add(response)
        try:
            while piece := self._transport.read(response, _PIECE_BYTES):
                yield piece
        except StokerError:
            # The head has been sent: the page sees a response that ends, and asks again.
            return
        finally:
            self._open.discard(response)
            response.close()
