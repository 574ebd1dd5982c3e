"""Messages to addresses that somebody else has named: no redirects, no proxy, nothing read but the answer's status.

Which addresses may be asked is decided after names are looked up, on what is then connected to: no name, redirect or
second answer of a name server leads past it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from stoker.core.frozen import changed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.connections import HttpConnection, connect
from stoker.host.http.exchange import Request
from stoker.host.http.http_routes import Route
from stoker.host.http.http_settings import HttpSettings
from stoker.host.http.streams import CancelHandle


class OutwardTransport(Urllib3Transport):
    """Sends to addresses that `admits` is content with, each over a connection of its own."""

    def __init__(self, settings: HttpSettings, admits: Callable[[str], bool]) -> None:
        super().__init__(changed(settings, proxies={}, fleet=None, idle_connections=0))
        self._admits = admits

    def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """Post a body of JSON and give the answer's status. Raises `NetworkFailed`, `BadAnswer` or `BadInput`."""
        reply = self.send(
            Request(url=url, method="POST", headers={**headers, "Content-Type": "application/json"}, body=body)
        )
        try:
            return reply.status
        finally:
            reply.close()

    def _connect(self, route: Route, cord: CancelHandle, trusted: ssl.SSLContext | None) -> HttpConnection:
        return connect(route, cord=cord, connect_s=self._settings.connect_s, trust=trusted, admits=self._admits)
