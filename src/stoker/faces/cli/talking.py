"""A transport that tells what it does: each request with its range, each answer with its status, time and redirect.

For `--verbose`. Never a query, a credential or a header that may hold one.
"""

from __future__ import annotations

from collections.abc import Callable

from stoker.faces.view.times import span
from stoker.host.http.addresses import joined, shown
from stoker.host.http.exchange import Reply, Request, Transport
from stoker.model.clock import Clock
from stoker.model.errors import StokerError

_TOLD = ("Content-Length", "Content-Range", "Retry-After")


class TalkingTransport:
    """Another transport, and somebody who is told."""

    def __init__(self, inner: Transport, clock: Clock, tell: Callable[[str], None]) -> None:
        self._inner = inner
        self._clock = clock
        self._tell = tell

    def send(self, request: Request) -> Reply:
        ranged = request.headers.get("Range")
        asked = f"{request.method} {shown(request.url)}{f' ({ranged})' if ranged else ''}"
        began_s = self._clock.monotonic_s()
        try:
            reply = self._inner.send(request)
        except StokerError as error:
            self._tell(f"> {asked}: {error}")
            raise
        location = reply.headers.get("Location")
        to = f" to {shown(joined(request.url, location))}" if location else ""
        told = "".join(f", {name} {value}" for name in _TOLD if (value := reply.headers.get(name)))
        self._tell(f"> {asked}: {reply.status}{to}{told} in {span(self._clock.monotonic_s() - began_s)}")
        return reply

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()
