"""One HTTP exchange as nouns, and the seam behind which a client speaks it.

A `Transport` sends exactly one request and gives the head of the answer: it follows no redirect, repeats nothing,
decodes nothing and asks for the identity encoding. Whoever wants more (redirects, attempts, ranges) decides so above
it. What breaks on the way is `NetworkFailed`, what no server may answer is `BadAnswer`; both carry `reason` (see
`host.http.failures.Reason`), `host` and `is_lasting`, which says that trying again is no use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from stoker.core.frozen import frozen


class Headers:
    """Header fields by name in any case, every value kept in order: a field given twice must not go unnoticed."""

    __slots__ = ("_values",)

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name.lower(), []).append(value)

    def get(self, name: str) -> str | None:
        """Return the first value of a field, or nothing."""
        values = self._values.get(name.lower())
        return values[0] if values else None

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def all(self, name: str) -> tuple[str, ...]:
        """Return every value of a field."""
        return tuple(self._values.get(name.lower(), ()))


class BodySource(Protocol):
    """A body that is too large to hold, or lies in a file. The same bytes each time it is asked for."""

    @property
    def length_bytes(self) -> int: ...

    def pieces(self) -> Iterator[bytes]:
        """Return all of it from the beginning, in pieces of at most a few hundred kilobytes."""


@frozen
class Request:
    """What to ask of whom. The client adds only what the protocol needs: Host, the body's length, no encoding."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str]
    body: bytes | BodySource | None = None
    is_repeatable: bool = False
    """Sent twice, it does what it does once. Then it is sent again where a kept connection turns out to have ended."""
    head_s: float | None = None
    """How long the head of the answer may take once the request is sent; nothing: as the client's settings say."""
    read_s: float | None = None
    """How long the answer's body may be silent."""


class HttpClientResponse(Protocol):
    """The head of an answer, and its body to be read once. Close it, whatever happened."""

    @property
    def url(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes, nothing at the end. A body shorter than announced is `NetworkFailed`, never an end.

        Waits for the first byte and then takes what comes within a moment: large pieces on a fast line, and never
        silence for longer than that while bytes trickle in.
        """

    def close(self) -> None:
        """Let go of the connection: kept for the next request if the body was read to its end, else cut."""

    def abort(self) -> None:
        """Cut the connection now, so that a `read` that waits in another thread fails at once (`aborted`).

        Safe in a signal handler; later reads fail too.
        """


class Transport(Protocol):
    """Where requests go. Safe to use from several threads."""

    def send(self, request: Request) -> HttpClientResponse:
        """Send one request and wait for the head of its answer."""

    def abort(self) -> None:
        """Cut everything that is under way, in whatever thread, and refuse what is sent later: nobody slips through.

        Safe in a signal handler.
        """

    def close(self) -> None:
        """Close every connection that is kept."""
