"""One request to a coordinator and its response: headers, limits, network errors, retries.

A request is retried only if it is repeatable, and only for as long as `RequestTimeouts` says. What the coordinator
refuses is raised as the error it raised. Raises `NoCoordinator` if it can't be reached, and `BadAnswer` for a response
that no coordinator sends. Redirects are not followed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from copy import copy
from http import HTTPStatus
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from stoker.core.clock import Clock
from stoker.core.errors import (
    BadAnswer,
    BadInput,
    DatabaseTrouble,
    NetworkFailed,
    NoCoordinator,
    RateLimited,
    StokerError,
    Unavailable,
)
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.jsontext import loads
from stoker.core.retry import pause_s
from stoker.host.http.exchange import (
    BodySource,
    HttpClientResponse,
    Request,
    Transport,
    is_this_computer,
    read_address,
    shown,
)
from stoker.host.http.http_errors import Reason
from stoker.protocol.codec import TOKEN_HEADER, VERSION, VERSION_HEADER, from_json, to_json
from stoker.protocol.refusals import no_coordinator_there, refusal, trust_hint

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

MOST_ANSWER_BYTES = 64 * 1024 * 1024
_MOST_REFUSAL_BYTES = 1024 * 1024
_PIECE_BYTES = 256 * 1024
_BUFFER_BYTES = 1 << 20
_WHOLE_ANSWER_S = 300.0
"""For a whole message, however slowly it arrives. Files and objects have no such limit."""

_READING = frozenset({"GET", "HEAD"})

Query = Mapping[str, str | int | float | tuple[str, ...] | None]


@frozen
class CoordinatorRequest:
    """One request in the coordinator's terms."""

    path: str
    """Escaped."""
    method: str = "GET"
    query: Query = fresh(factory=dict)
    """None and empty values are left out."""
    body: BaseModel | bytes | BodySource | None = None
    headers: Mapping[str, str] = fresh(factory=dict)
    is_repeatable: bool = False
    """Idempotent."""
    waits_s: float = 0.0
    """How long the coordinator may hold it open."""
    silence_s: float | None = None
    """Timeout without a byte of the response (default: that of `RequestTimeouts`)."""


@frozen
class RequestTimeouts:
    """Timeouts of a request."""

    answer_s: float = 30.0
    """For the head of one response."""
    silence_s: float = 30.0
    """Without a byte of its body."""
    retry_s: float = 10.0
    """For all retries together; 0: no retry."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 2.0


class CoordinatorTransport:
    """Sends requests to one coordinator. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        clock: Clock,
        token: str = "",
        patience: RequestTimeouts | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        address = read_address(url)
        self.url = address.url.rstrip("/")
        """Without credentials: every message may show it."""
        self._shown = shown(self.url)
        self.http = transport
        self.clock = clock
        self.patience = patience or RequestTimeouts()
        self._chance = chance or random.SystemRandom().random
        self._headers = {VERSION_HEADER: str(VERSION)}
        if token:
            if address.origin.scheme == "http" and not is_this_computer(address.origin.host):
                # It would be readable on the network.
                hint = f"use https://{address.origin.host_and_port}, or a tunnel: ssh -L OWN.sock:ITS.sock HOST"
                raise BadInput(f"refusing to send a token to {self._shown} without TLS", hint=hint)
            self._headers[TOKEN_HEADER] = token
        if address.authorization:
            self._headers["Authorization"] = address.authorization

    def retrying(self, retry_s: float) -> CoordinatorTransport:
        """Return a transport to the same coordinator that retries for so long."""
        made = copy(self)
        made.patience = changed(self.patience, retry_s=retry_s)
        return made

    def ask(self, question: CoordinatorRequest, kind: type[M]) -> M:
        """Send a request, and return the response as a message."""
        request = self._request(question)

        def read() -> M:
            with closing(self._send(request)) as reply:
                data = self._whole(reply, MOST_ANSWER_BYTES)
            try:
                return from_json(kind, data)
            except ValueError as error:
                raise no_coordinator_there(self._shown, f"{question.path}: {error}") from None

        return self._patiently(read, is_repeatable=request.is_repeatable)

    def open(self, question: CoordinatorRequest) -> HttpClientResponse:
        """Send a request for bytes and return the response, with a status below 300. Caller closes."""
        request = self._request(question)
        return self._patiently(lambda: self._send(request), is_repeatable=request.is_repeatable)

    def address(self, question: CoordinatorRequest) -> tuple[str, dict[str, str]]:
        """Return the URL and headers of a request, for a caller that sends it itself."""
        request = self._request(question)
        return request.url, dict(request.headers)

    def read(self, reply: HttpClientResponse, at_most_bytes: int = _PIECE_BYTES) -> bytes:
        """Return the next bytes of a response; b"" at the end."""
        try:
            return reply.read(at_most_bytes)
        except NetworkFailed as error:
            raise self._unreachable(error) from error

    def read_all(
        self, reply: HttpClientResponse, most_bytes: int, too_many: str, *, most_s: float | None = None
    ) -> bytes:
        """Return all bytes of a response. Raises `BadAnswer` if they are more, or take longer, than allowed."""
        pieces, size = [], 0
        until_s = None if most_s is None else self.clock.monotonic_s() + most_s
        while piece := self.read(reply):
            size += len(piece)
            if until_s is not None and self.clock.monotonic_s() > until_s:
                raise no_coordinator_there(self._shown, f"a response took more than {most_s:.0f} s")
            if size > most_bytes:
                raise no_coordinator_there(self._shown, too_many)
            pieces.append(piece)
        return b"".join(pieces)

    def buffered(self, reply: HttpClientResponse) -> BufferedReply:
        """Return a reader of a response for many small reads."""
        return BufferedReply(lambda: self.read(reply, _BUFFER_BYTES))

    def pause(self, tries: int) -> None:
        """Wait before a retry: exponential backoff with jitter."""
        first_s, longest_s = self.patience.first_pause_s, self.patience.longest_pause_s
        self.clock.sleep(pause_s(tries, self._chance(), first_s=first_s, longest_s=longest_s))

    def _request(self, question: CoordinatorRequest) -> Request:
        query = {name: value for name, value in question.query.items() if value is not None and value != ""}
        headers, body = {**self._headers, **question.headers}, question.body
        if isinstance(body, BaseModel):
            body = to_json(body)
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
        elif question.method not in _READING:
            body = b""
        return Request(
            url=f"{self.url}{question.path}{f'?{urlencode(query, doseq=True)}' if query else ''}",
            method=question.method,
            headers=headers,
            body=body,
            is_repeatable=question.is_repeatable or question.method in _READING,
            head_s=self.patience.answer_s + question.waits_s,
            read_s=self.patience.silence_s if question.silence_s is None else question.silence_s,
        )

    def _send(self, request: Request) -> HttpClientResponse:
        try:
            reply = self.http.send(request)
        except NetworkFailed as error:
            raise self._unreachable(error) from error
        except BadAnswer as error:
            raise no_coordinator_there(self._shown, error.message) from error
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return reply
        with closing(reply):
            if reply.status < HTTPStatus.BAD_REQUEST:
                raise no_coordinator_there(self._shown, f"status {reply.status}", status=reply.status)
            data = self._whole(reply, _MOST_REFUSAL_BYTES)
        raise refusal(reply.status, data, is_ours=VERSION_HEADER in reply.headers, url=self._shown)

    def _whole(self, reply: HttpClientResponse, most_bytes: int) -> bytes:
        too_many = f"a response has more than {most_bytes} bytes"
        return self.read_all(reply, most_bytes, too_many, most_s=_WHOLE_ANSWER_S)

    def _patiently(self, act: Callable[[], T], *, is_repeatable: bool) -> T:
        until_s = self.clock.monotonic_s() + self.patience.retry_s
        tries = 0
        while True:
            try:
                return act()
            except StokerError as error:
                if not (is_repeatable and is_passing(error)) or self.clock.monotonic_s() >= until_s:
                    raise
            self.pause(tries)
            tries += 1

    def _unreachable(self, error: NetworkFailed) -> StokerError:
        if error.data.get("reason") == Reason.ABORTED:
            return error
        hint = "check that `stoker serve` runs there, or name another one: --at URL or STOKER_COORDINATOR"
        if error.data.get("sockets"):
            hint = error.hint
        what = f"the coordinator at {self._shown} can't be reached: {error.message}"
        about = {name: error.data.get(name) for name in ("reason", "is_lasting", "verify_code", "tls")}
        lasting_hint = trust_hint(error) or error.hint
        return NoCoordinator(what, hint=lasting_hint if about["is_lasting"] else hint, url=self._shown, **about)


class BufferedReply:
    """The bytes of a response on demand, received in large pieces."""

    def __init__(self, more: Callable[[], bytes]) -> None:
        self._more = more
        self._piece = b""
        self._at = 0

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes, at most so many; b"" at the end."""
        if self._at == len(self._piece):
            self._piece, self._at = self._more(), 0
        taken = self._piece[self._at : self._at + at_most_bytes]
        self._at += len(taken)
        return taken


def is_passing(error: StokerError) -> bool:
    """Return True if the same request may succeed in a moment."""
    if isinstance(error, NoCoordinator):
        return not error.data.get("is_lasting")
    return isinstance(error, DatabaseTrouble | RateLimited) or type(error) is Unavailable


def part(text: str) -> str:
    """Return a name quoted as one part of a path."""
    return quote(text, safe="")


def parts(path: str) -> str:
    """Return a path of several parts, each quoted."""
    return "/".join(map(part, path.split("/")))


def whole_number(text: str | None) -> int | None:
    """Return a header's whole number; None if it has none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


FOLLOWING_S = 600.0
"""How long a client that follows something retries while the coordinator is away."""


class CoordinatorClient:
    """The base of a client with a method for each route."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        clock: Clock,
        token: str = "",
        patience: RequestTimeouts | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.transport = CoordinatorTransport(
            transport, url, clock=clock, token=token, patience=patience, chance=chance
        )

    def more_patient(self, retry_s: float = FOLLOWING_S) -> Self:
        """Return a client of the same coordinator that retries for so long, so that it outlives a restart."""
        client = copy(self)
        client.transport = self.transport.retrying(retry_s)
        return client

    @property
    def url(self) -> str:
        """Where the coordinator is, without credentials."""
        return self.transport.url

    @property
    def http(self) -> Transport:
        """The HTTP transport that it was made with."""
        return self.transport.http

    def _ask(  # noqa: PLR0913 - the parts of a request
        self,
        path: str,
        kind: type[M],
        body: BaseModel | bytes | BodySource | None = None,
        *,
        method: str = "POST",
        query: Query | None = None,
        is_repeatable: bool = True,
        waits_s: float = 0.0,
    ) -> M:
        request = CoordinatorRequest(
            path=path, method=method, query=query or {}, body=body, is_repeatable=is_repeatable, waits_s=waits_s
        )
        return self.transport.ask(request, kind)

    def _get(self, path: str, kind: type[M], query: Query | None = None, *, waits_s: float = 0.0) -> M:
        return self._ask(path, kind, method="GET", query=query, waits_s=waits_s)


# Server-sent events of the coordinator, resumed by id: a lost connection or a restart loses none.

_LONGEST_EVENT_BYTES = 1024 * 1024
_EVENT_STREAM_PIECE_BYTES = 64 * 1024
_FIELDS = frozenset({"id", "event"})
_CUT = frozenset({Reason.READ_TIMEOUT, Reason.RESET, Reason.SHORT_BODY, Reason.CLOSED_EARLY, Reason.UNREACHABLE})


@frozen
class FleetEvent:
    """One event of the fleet."""

    id: int
    """Ascending; pass it as `after` to continue behind it."""
    kind: str
    """One of `core.events.FleetKinds`."""
    data: dict[str, Any]


class EventReader:
    """Incremental parser of a server-sent event stream. Lines end with LF, CR or both; comments are keep-alives."""

    def __init__(self) -> None:
        self._unread = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self.place: int | None = None
        """Id of the last event before the stream's position; a block may contain only this id."""

    def feed(self, data: bytes) -> list[FleetEvent]:
        """Return the events that are complete now. Raises `ValueError` for an invalid event."""
        self._unread += data
        events = []
        while (line := self._line()) is not None:
            event = self._take(line)
            if event is not None:
                events.append(event)
        if len(self._unread) + sum(map(len, self._data)) > _LONGEST_EVENT_BYTES:
            message = f"an event has more than {_LONGEST_EVENT_BYTES} bytes"
            raise ValueError(message)
        return events

    def _line(self) -> str | None:
        for at, byte in enumerate(self._unread):
            if byte in b"\r\n":
                if byte == 0x0D and at + 1 == len(self._unread):
                    # Its line feed may not have arrived yet.
                    return None
                skip = 2 if self._unread[at : at + 2] == b"\r\n" else 1
                line, self._unread = self._unread[:at], self._unread[at + skip :]
                return line.decode()
        return None

    def _take(self, line: str) -> FleetEvent | None:
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name in _FIELDS:
            self._fields[name] = value
        return None

    def _end(self) -> FleetEvent | None:
        data, self._data = self._data, []
        fields, self._fields = self._fields, {}
        number = fields.get("id", "")
        is_numbered = number.isascii() and number.isdigit()
        self.place = int(number) if is_numbered else self.place
        if not data:
            return None
        body = loads("\n".join(data))
        if not isinstance(body, dict) or not is_numbered:
            message = "an event has no id or no body"
            raise ValueError(message)
        return FleetEvent(id=int(number), kind=fields.get("event", str(body.get("kind", ""))), data=body)


EVENTS = "/v1/events"


def listen(
    speaker: CoordinatorTransport, after: int | None, *, beat_s: float, path: str = EVENTS
) -> Iterator[FleetEvent | None]:
    """Yield every event behind `after`, in order, each once; None after each `beat_s` without one.

    On other paths than that of events, several frames may end with the same event: none of them is left out.
    """
    last = after
    lost_since_s: float | None = None
    tries = 0
    while True:
        try:
            reply = _open(speaker, last, beat_s, path)
        except StokerError as error:
            now_s = speaker.clock.monotonic_s()
            lost_since_s = now_s if lost_since_s is None else lost_since_s
            if not is_passing(error) or now_s - lost_since_s >= speaker.patience.retry_s:
                raise
            speaker.pause(tries)
            tries += 1
            continue
        lost_since_s, reader = None, EventReader()
        try:
            for event in _events(speaker, reply, reader):
                if event is None:
                    # Where it began, so that nothing between two connections is lost before the first event.
                    last = reader.place if last is None else last
                    yield None
                elif last is None or event.id > last or path != EVENTS:
                    last, tries = event.id, 0
                    yield event
        finally:
            reply.close()
        # A server that closes every stream at once must not be polled in a busy loop.
        yield None
        speaker.pause(tries)
        tries += 1


def _open(speaker: CoordinatorTransport, last: int | None, beat_s: float, path: str) -> HttpClientResponse:
    headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": str(last)})
    return speaker.open(CoordinatorRequest(path=path, query={"after": last}, headers=headers, silence_s=beat_s))


def _events(
    speaker: CoordinatorTransport, reply: HttpClientResponse, reader: EventReader
) -> Iterator[FleetEvent | None]:
    """Yield the events of one connection until it is lost or silent; None for anything else received."""
    while True:
        try:
            data = speaker.read(reply, _EVENT_STREAM_PIECE_BYTES)
        except NoCoordinator as error:
            if error.data.get("reason") not in _CUT:
                raise
            return
        if not data:
            return
        try:
            events = reader.feed(data)
        except ValueError as error:
            raise no_coordinator_there(speaker.url, f"events: {error}") from None
        if not events:
            yield None
        yield from events
