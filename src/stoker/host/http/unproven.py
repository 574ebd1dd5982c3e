"""One question to somebody whose certificate nobody has checked: for whoever joins a fleet, before they know its CA.

The answer has to carry its own proof, and the question must hold no secret: a stranger in between reads the one and
may write the other. There is no setting and no variable that leads here, and nothing else can be sent this way.
"""

from __future__ import annotations

import ssl
from contextlib import closing

from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import Headers, Request
from stoker.host.http.settings import HttpSettings
from stoker.host.tls.contexts import unproven_context
from stoker.model.errors import BadInput
from stoker.model.frozen import changed, frozen

_MOST_BYTES = 64 * 1024


@frozen
class UnprovenAnswer:
    """What somebody said."""

    status: int
    data: bytes
    headers: Headers


def ask_unproven(url: str, body: bytes, *, settings: HttpSettings, headers: dict[str, str]) -> UnprovenAnswer:
    """Post a body of JSON over TLS that proves nothing, and give the answer. Raises `NetworkFailed`."""
    if not url.startswith("https://"):
        raise BadInput("a fleet is joined over TLS alone", hint="name the host: CODE@HOST")
    transport = _Unproven(changed(settings, fleet=None))
    try:
        request = Request(
            url=url,
            method="POST",
            headers={**headers, "Content-Type": "application/json"},
            body=body,
            is_repeatable=True,
        )
        with closing(transport.send(request)) as reply:
            data = bytearray()
            while len(data) <= _MOST_BYTES and (piece := reply.read(_MOST_BYTES)):
                data += piece
            # More than anybody needs is no answer of ours: what is left of it can't be read as one.
            return UnprovenAnswer(status=reply.status, data=bytes(data[:_MOST_BYTES]), headers=reply.headers)
    finally:
        transport.close()


class _Unproven(Urllib3Transport):
    def _trusted(self) -> ssl.SSLContext:
        return unproven_context()
