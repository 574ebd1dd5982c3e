"""The coordinator's events as they happen: server-sent, resumed by id, so that a cut line or a restart loses none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.host.http.exchange import Reply
from stoker.host.http.failures import Reason
from stoker.model.errors import StokerError
from stoker.model.fleet_errors import NoCoordinator
from stoker.model.frozen import frozen
from stoker.model.json_text import loads
from stoker.wire.refusals import no_coordinator_there
from stoker.wire.speaking import Question, Speaker, is_passing

_LONGEST_EVENT_BYTES = 1024 * 1024
_PIECE_BYTES = 64 * 1024
_FIELDS = frozenset({"id", "event"})
_CUT = frozenset({Reason.READ_TIMEOUT, Reason.RESET, Reason.SHORT_BODY, Reason.CLOSED_EARLY, Reason.UNREACHABLE})


@frozen
class FleetEvent:
    """Something that happened."""

    id: int
    """Grows; hand it back as `after` to go on behind it."""
    kind: str
    """One of `model.fleet_events.FleetKinds`."""
    data: dict[str, Any]


class EventReader:
    """Takes a stream apart as its bytes come. Lines end with LF, CR or both; comments keep the line warm."""

    def __init__(self) -> None:
        self._unread = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self.place: int | None = None
        """Behind which event the stream stands: a block may say so without being one."""

    def feed(self, data: bytes) -> list[FleetEvent]:
        """Give the events that are whole by now. Raises `ValueError` for what is no event."""
        self._unread += data
        events = []
        while (line := self._line()) is not None:
            event = self._take(line)
            if event is not None:
                events.append(event)
        if len(self._unread) + sum(map(len, self._data)) > _LONGEST_EVENT_BYTES:
            message = "an event without end"
            raise ValueError(message)
        return events

    def _line(self) -> str | None:
        for at, byte in enumerate(self._unread):
            if byte in b"\r\n":
                if byte == 0x0D and at + 1 == len(self._unread):
                    # Its line feed may still be on the way.
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
            message = "an event without a number or a body"
            raise ValueError(message)
        return FleetEvent(id=int(number), kind=fields.get("event", str(body.get("kind", ""))), data=body)


def listen(speaker: Speaker, after: int | None, *, beat_s: float) -> Iterator[FleetEvent | None]:
    """Give every event behind `after`, in order, each once; None after `beat_s` in which nothing was heard."""
    last = after
    lost_since_s: float | None = None
    tries = 0
    while True:
        try:
            reply = _open(speaker, last, beat_s)
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
                elif last is None or event.id > last:
                    last, tries = event.id, 0
                    yield event
        finally:
            reply.close()
        # A server that ends every stream at once is not asked without a pause.
        yield None
        speaker.pause(tries)
        tries += 1


def _open(speaker: Speaker, last: int | None, beat_s: float) -> Reply:
    headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": str(last)})
    return speaker.open(Question(path="/v1/events", query={"after": last}, headers=headers, silence_s=beat_s))


def _events(speaker: Speaker, reply: Reply, reader: EventReader) -> Iterator[FleetEvent | None]:
    """Give the events of one connection until it is cut or silent; None where something else was heard."""
    while True:
        try:
            data = speaker.read(reply, _PIECE_BYTES)
        except NoCoordinator as error:
            if error.data.get("reason") not in _CUT:
                raise
            return
        if not data:
            return
        try:
            events = reader.feed(data)
        except ValueError as error:
            raise no_coordinator_there(speaker.url, f"/v1/events: {error}") from None
        if not events:
            yield None
        yield from events
