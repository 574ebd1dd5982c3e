"""Requests of the pages of `stoker ui`, forwarded to a coordinator with the user's token, over verified TLS.

Only paths below `/v1/` are forwarded, to that one coordinator. Cookies stay here; the token never reaches the browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.core.errors import BadInput, StokerError
from stoker.host.http.exchange import HttpClientResponse
from stoker.protocol.transport import CoordinatorRequest, CoordinatorTransport
from stoker.web.backend import JSON, UiAnswer, UiBackend, UiRequest

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
