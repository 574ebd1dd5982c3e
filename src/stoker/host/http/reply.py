"""The answer to one request, on the connection that it came on."""

from __future__ import annotations

import time
from typing import Protocol

from stoker.host.http.addresses import Address
from stoker.host.http.body import body
from stoker.host.http.cord import Cord
from stoker.host.http.exchange import Headers
from stoker.host.http.failures import TROUBLE, Overlong, Step, translated
from stoker.host.http.framing import Framing
from stoker.host.http.wire import Line, Wire
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen

_WORTH_READING_BYTES = 16 * 1024
_WORTH_WAITING_S = 0.05
"""A rest that is shorter and comes sooner than this is cheaper to read than a new connection is to make."""


@frozen
class Head:
    """The head of an answer."""

    status: int
    headers: Headers
    keeps_open: bool
    """Whether the server means to take another request on this connection."""


class GiveBack(Protocol):
    """Whom a connection goes back to: for another exchange, or to be cut."""

    def __call__(self, *, is_usable: bool) -> None: ...


class WireReply:
    """A `Reply` that reads off a wire. `give_back` is called once, when the wire is no longer needed."""

    def __init__(
        self,
        address: Address,
        head: Head,
        frame: Framing,
        *,
        wire: Wire,
        cord: Cord,
        give_back: GiveBack,
    ) -> None:
        self.url = address.url
        self.status = head.status
        self.headers = head.headers
        self._host = address.origin.host_and_port
        self._keeps_open = head.keeps_open
        self._is_framed = frame.is_chunked or frame.length_bytes is not None
        self._wire = wire
        self._body = body(wire, frame)
        self._cord = cord
        self._give_back: GiveBack | None = give_back
        self._failure: StokerError | None = None

    def read(self, at_most_bytes: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        if self._give_back is None:
            message = "a reply is read before it is closed"
            raise ValueError(message)
        try:
            self._cord.check()
            data = self._body.read(at_most_bytes)
            if not data and self._is_framed and self._wire.look() is Line.SPEAKS:
                raise Overlong
        except BaseException as error:
            # Whatever it was, nobody knows any more where in the stream we are.
            self._let_go(is_usable=False)
            if isinstance(error, TROUBLE):
                self._failure = translated(error, self._host, Step.BODY)
                raise self._failure from error
            raise
        return data

    def close(self) -> None:
        if self._give_back is not None:
            self._let_go(is_usable=self._is_worth_keeping())

    def abort(self) -> None:
        self._cord.pull()

    def _is_worth_keeping(self) -> bool:
        if not (self._keeps_open and self._is_framed) or self._cord.is_pulled:
            return False
        try:
            self._read_rest()
        except TROUBLE:
            return False
        return self._body.left_bytes == 0

    def _read_rest(self) -> None:
        if (self._body.left_bytes or 0) > _WORTH_READING_BYTES:
            return
        self._wire.expect_by(time.monotonic() + _WORTH_WAITING_S)
        read_bytes = 0
        while self._body.left_bytes != 0 and read_bytes <= _WORTH_READING_BYTES:
            read_bytes += len(self._body.read(_WORTH_READING_BYTES))

    def _let_go(self, *, is_usable: bool) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(is_usable=is_usable)
