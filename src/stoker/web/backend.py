"""What `stoker ui` answers requests of its pages with: the routes of a coordinator, forwarded or of this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from stoker.core.frozen import frozen
from stoker.core.jsontext import dumps

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
