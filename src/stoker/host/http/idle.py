"""Connections that wait for their next request, by the way they lead. The one used last is used first."""

from __future__ import annotations

import ssl
import threading
import time
from typing import TYPE_CHECKING

from stoker.host.http.routes import Route
from stoker.host.http.wire import Line

if TYPE_CHECKING:
    from stoker.host.http.connections import Connection

LONGEST_IDLE_S = 50.0
"""Many servers and boxes on the way forget a silent connection after a minute, and not all of them say so."""


class IdleConnections:
    """At most so many for each way. Safe to use from several threads."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._lock = threading.Lock()
        self._by_route: dict[Route, list[Connection]] = {}
        self._is_closed = False

    def take(self, route: Route, trust: ssl.SSLContext | None) -> Connection | None:
        """Give one that still stands, as far as can be seen from here, and was made under the same trust."""
        while True:
            with self._lock:
                waiting = self._by_route.get(route)
                connection = waiting.pop() if waiting else None
            if connection is None:
                return None
            is_fresh = connection.trust is trust and time.monotonic() - connection.idle_since_s < LONGEST_IDLE_S
            # One that speaks unasked is as useless as one that ended: its words would be taken for the next answer.
            if is_fresh and connection.wire.look() is Line.QUIET:
                return connection
            connection.close()

    def put(self, connection: Connection) -> None:
        """Keep one, or close it where enough are kept."""
        connection.idle_since_s = time.monotonic()
        with self._lock:
            waiting = self._by_route.setdefault(connection.route, [])
            is_kept = not self._is_closed and len(waiting) < self._at_most
            if is_kept:
                waiting.append(connection)
        if not is_kept:
            connection.close()

    def close(self) -> None:
        """Close all of them, and those that come back later."""
        with self._lock:
            self._is_closed = True
            kept = [connection for waiting in self._by_route.values() for connection in waiting]
            self._by_route.clear()
        for connection in kept:
            connection.close()
