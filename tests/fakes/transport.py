"""A transport without a network: answers by script. Held to the same suite as the real one (`tests/contract`).

    transport = FakeTransport(lambda request: Scripted(body=b"all of it"))

What was sent is in `requests`; how many replies nobody closed is `open_replies`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stoker.core.errors import StokerError
from stoker.host.http.exchange import Headers, Request, read_address
from stoker.host.http.http_errors import Aborted, Ended, ExchangeStep, Malformed, Overlong, translated
from stoker.host.http.streams import framing


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """One answer. Without a length among its fields it gets that of the body."""

    status: int = 200
    fields: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    stalls_after: int | None = None
    """Says nothing more after so many bytes of the body, until somebody cuts it."""
    on_stall: Callable[[], None] | None = None
    """Called when a read begins to wait there."""
    is_without_length: bool = False

    def all_fields(self) -> tuple[tuple[str, str], ...]:
        has_length = self.is_without_length or any(name.lower() == "content-length" for name, _ in self.fields)
        return self.fields if has_length else (*self.fields, ("Content-Length", str(len(self.body))))


Script = Callable[[Request], Scripted | Exception]
"""What to answer; an exception is what breaks before there is an answer: `Ended()`, `TimeoutError()`, one of ours."""


@dataclass
class FakeTransport:
    """Give it a script; change `script` between two requests at will."""

    script: Script
    requests: list[Request] = field(default_factory=list)
    _replies: list[FakeReply] = field(default_factory=list)
    _is_aborted: bool = False

    @classmethod
    def saying(cls, answers: Iterable[Scripted | Exception]) -> FakeTransport:
        """Return one that answers with these, one after the other."""
        rest = iter(answers)
        return cls(lambda _request: next(rest))

    @property
    def open_replies(self) -> int:
        return sum(not reply.is_closed for reply in self._replies)

    def send(self, request: Request) -> FakeReply:
        address = read_address(request.url)
        host = address.origin.host_and_port
        if self._is_aborted:
            raise translated(Aborted(), host, ExchangeStep.HEAD)
        self.requests.append(request)
        answer = self.script(request)
        if isinstance(answer, StokerError):
            raise answer
        if isinstance(answer, Exception):
            raise translated(answer, host, ExchangeStep.HEAD) from answer
        try:
            reply = FakeReply(request, answer, url=address.url, host=host)
        except Malformed as error:
            raise translated(error, host, ExchangeStep.HEAD) from error
        self._replies.append(reply)
        return reply

    def abort(self) -> None:
        self._is_aborted = True
        for reply in list(self._replies):
            reply.abort()

    def close(self) -> None:
        """Nothing is kept."""


class FakeReply:
    """A scripted answer being read."""

    def __init__(self, request: Request, answer: Scripted, *, url: str, host: str) -> None:
        self.url = url
        self.status = answer.status
        self.headers = Headers(answer.all_fields())
        self.is_closed = False
        self._host = host
        self._left_bytes = framing(request.method, answer.status, self.headers).length_bytes
        self._rest = memoryview(b"" if self._left_bytes == 0 else answer.body)
        self._stalls_at = None if answer.stalls_after is None else len(answer.body) - answer.stalls_after
        self._on_stall = answer.on_stall
        self._is_cut = threading.Event()
        self._failure: StokerError | None = None

    def read(self, at_most_bytes: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        if self.is_closed:
            message = "a reply is read before it is closed"
            raise ValueError(message)
        try:
            return self._next(at_most_bytes)
        except (Aborted, Ended, Malformed) as error:
            self._failure = translated(error, self._host, ExchangeStep.BODY)
            raise self._failure from error

    def _next(self, at_most_bytes: int) -> bytes:
        if self._stalls_at == len(self._rest):
            if self._on_stall is not None:
                self._on_stall()
            self._is_cut.wait()
        if self._is_cut.is_set():
            raise Aborted
        if self._left_bytes is not None:
            at_most_bytes = min(at_most_bytes, self._left_bytes)
        if self._stalls_at is not None:
            at_most_bytes = min(at_most_bytes, len(self._rest) - self._stalls_at)
        data = bytes(self._rest[:at_most_bytes])
        self._rest = self._rest[len(data) :]
        if self._left_bytes is not None:
            if self._left_bytes and not data:
                raise Ended(self._left_bytes)
            if not self._left_bytes and self._rest:
                raise Overlong
            self._left_bytes -= len(data)
        return data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self._is_cut.set()
