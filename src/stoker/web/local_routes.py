"""The routes of a coordinator, answered from a `Monitor`: what `stoker ui` shows of this machine without a fleet."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar
from urllib.parse import parse_qs, unquote

from stoker.api.monitor import MOST_POINTS, JobQuery, Monitor, SeriesQuery, SpanQuery
from stoker.coordinator.http.http_messages import attachment
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, NotFound
from stoker.core.jsontext import dumps, loads
from stoker.protocol.codec import StrictRequest, WireMessage, from_json, to_json
from stoker.protocol.screen_messages import MOST_LOG_LINES, LogRequest, SimulateRequest
from stoker.protocol.sent_messages import ManifestRequest, RepeatJobRequest
from stoker.protocol.view_messages import DoneView, MachineList
from stoker.web.backend import EVENTS, FileBody, UiAnswer, UiBackend, UiRequest, json_answer

_WAIT_S = 1.0
_BEAT_S = 10.0
_MOST_ROWS = 1000
_MOST_COMPARED = 20
_MOST_MODELS = 200
_LATEST_S = 4e9

_OF_A_JOB = 3
"""Parts of a path such as `jobs/resnet/again`."""

Query = Mapping[str, Sequence[str]]
R = TypeVar("R", bound=StrictRequest)


class LocalBackend(UiBackend):
    """Answers from a monitor. `build` is that of the pages, `user` runs this."""

    def __init__(self, monitor: Monitor, *, clock: Clock, user: str, build: str = "") -> None:
        self._monitor = monitor
        self._clock = clock
        self._user = user
        self._build = build
        self._ending = threading.Event()

    def answer(self, request: UiRequest) -> UiAnswer:
        """Answer one request."""
        path, _, text = request.path.partition("?")
        parts = [unquote(part) for part in path.removeprefix("/v1/").split("/")]
        if request.method in ("GET", "HEAD"):
            return self._read(parts, parse_qs(text, keep_blank_values=False, max_num_fields=100), request)
        if parts == ["simulate"]:
            return _message(self._monitor.simulate(_request(SimulateRequest, request.body)))
        if parts == ["manifests"]:
            return _message(self._monitor.submit_manifest(_request(ManifestRequest, request.body)))
        if len(parts) == _OF_A_JOB and parts[0] == "jobs" and parts[2] == "again":
            return _message(self._monitor.repeat(parts[1], _request(RepeatJobRequest, request.body)))
        return _message(self._change(parts, _body(request.body)))

    def close(self) -> None:
        """End all streams."""
        self._ending.set()

    def _read(self, parts: list[str], query: Query, request: UiRequest) -> UiAnswer:
        if parts == ["sessions"]:
            return json_answer({"user": self._user, "role": "admin", "expires_s": None})
        if parts == ["stream"]:
            after = request.headers.get("last-event-id", "")
            return UiAnswer(kind=EVENTS, body=self._stream(int(after) if after.isdecimal() else None))
        if len(parts) > 3 and parts[0] == "jobs" and parts[2] == "files":
            return _file(self._monitor.open_file(parts[1], "/".join(parts[3:])), parts[-1])
        return _message(self._message_at(parts, query))

    def _message_at(self, parts: list[str], query: Query) -> WireMessage:
        monitor = self._monitor
        found: WireMessage
        match parts:
            case ["overview"]:
                found = monitor.overview()
            case ["machines", *rest]:
                found = self._machines(rest, query)
            case ["jobs"]:
                found = monitor.jobs(_job_query(query))
            case ["jobs", ref]:
                found = monitor.job(ref)
            case ["jobs", ref, part]:
                found = self._of_job(ref, part, query)
            case ["sweeps" | "adapters" | "models" as word]:
                found = self._list(word, query)
            case ["sweeps", name]:
                found = monitor.sweep(name, _one(query, "metric"), _one(query, "better"))
            case ["compare"]:
                refs = list(query.get("ref", ()))[:_MOST_COMPARED]
                found = monitor.compare(refs, _one(query, "metric"), _one(query, "better"))
            case _:
                raise _nothing_at(parts)
        return found

    def _machines(self, parts: list[str], query: Query) -> WireMessage:
        monitor = self._monitor
        match parts:
            case []:
                return MachineList(machines=monitor.machines())
            case ["timeline"]:
                return monitor.timeline(_span_query(query), _one(query, "machine"))
            case [name]:
                return monitor.machine(name)
            case [name, "telemetry"]:
                return monitor.telemetry(name, _span_query(query))
            case _:
                raise _nothing_at(["machines", *parts])

    def _list(self, word: str, query: Query) -> WireMessage:
        monitor = self._monitor
        if word == "models":
            most = min(_MOST_MODELS, _number(query, "limit") or 50)
            return monitor.models(_one(query, "after"), most, digest=_one(query, "digest"), job=_one(query, "job"))
        return monitor.sweeps() if word == "sweeps" else monitor.adapters()

    def _of_job(self, ref: str, part: str, query: Query) -> WireMessage:
        monitor = self._monitor
        known: dict[str, Callable[[], WireMessage]] = {
            "explain": lambda: monitor.explain(ref),
            "series": lambda: monitor.series(ref, _series_query(query)),
            "stages": lambda: monitor.stages(ref),
            "log": lambda: monitor.log(ref, _log_query(query)),
            "config": lambda: monitor.config(ref),
            "code": lambda: monitor.code_diff(ref, _one(query, "parent")),
            "files": lambda: monitor.files(ref),
            "card": lambda: monitor.card(ref),
            "again": lambda: monitor.repeat_form(ref),
        }
        if part not in known:
            raise _nothing_at(["jobs", ref, part])
        return known[part]()

    def _change(self, parts: list[str], body: dict[str, Any]) -> DoneView:
        monitor = self._monitor
        match parts:
            case ["jobs", "cancel" | "requeue" as verb]:
                act = monitor.cancel if verb == "cancel" else monitor.requeue
                return _together([act(str(ref)) for ref in _list(body, "jobs")])
            case ["jobs", "priority"]:
                priority = _whole(body.get("priority"))
                return _together([monitor.set_priority(str(ref), priority) for ref in _list(body, "jobs")])
            case ["jobs", ref, "cancel"]:
                return monitor.cancel(ref)
            case ["jobs", ref, "requeue"]:
                return monitor.requeue(ref)
            case ["jobs", ref, "priority"]:
                return monitor.set_priority(ref, _whole(body.get("priority")))
            case ["machines", name, "drain" | "cordon" | "pause" | "open" as verb]:
                for_s = body.get("for_s")
                is_time = isinstance(for_s, int | float)
                return monitor.set_machine(name, verb, why=str(body.get("why", "")), for_s=for_s if is_time else None)
        raise _nothing_at(parts)

    def _stream(self, after: int | None) -> Iterator[bytes]:
        """Yield changed rows as they appear, and a beat now and then."""
        clock = self._clock
        overview = self._monitor.overview()
        after = overview.seq if after is None else after
        hello = {"seq": after, "server_s": clock.wall_s(), "version": overview.version, "build": self._build}
        yield _frame("hello", after, dumps(hello).encode())
        beat_s = clock.monotonic_s()
        while not self._ending.is_set():
            rows = self._monitor.changes(after, _WAIT_S)
            is_empty = not (rows.jobs or rows.gone or rows.machines or rows.resync)
            if is_empty and clock.monotonic_s() - beat_s < _BEAT_S:
                # An empty comment finds out that the page has gone.
                yield b":\n\n"
                continue
            after, beat_s = rows.seq, clock.monotonic_s()
            yield _frame("beat" if is_empty else "rows", after, to_json(rows))


def _frame(kind: str, id: int, data: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (id, kind.encode(), data)


def _file(file: BinaryIO, path: str) -> UiAnswer:
    """Return what a file holds now, which a browser saves and does not show."""
    size_bytes = os.fstat(file.fileno()).st_size
    headers = (("content-length", str(size_bytes)), ("content-disposition", attachment(path)))
    return UiAnswer(kind="application/octet-stream", headers=headers, body=FileBody(file, size_bytes))


def _message(message: WireMessage) -> UiAnswer:
    return UiAnswer(body=to_json(message))


def _request(kind: type[R], data: bytes) -> R:
    try:
        return from_json(kind, data or b"{}")
    except ValueError as error:
        raise BadInput(f"the request is invalid: {error}") from None


def _body(data: bytes) -> dict[str, Any]:
    try:
        found = loads(data) if data else {}
    except ValueError as error:
        raise BadInput(f"the request is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput("the request is not a JSON object")
    return found


def _job_query(query: Query) -> JobQuery:
    return JobQuery(
        state=_one(query, "state"),
        name=_one(query, "q") or _one(query, "name"),
        recipe=_one(query, "recipe"),
        machine=_one(query, "machine"),
        submitter=_one(query, "submitter"),
        sweep=_one(query, "sweep"),
        sort=_one(query, "sort"),
        after=_one(query, "after"),
        limit=min(_MOST_ROWS, _number(query, "limit") or 100),
    )


def _series_query(query: Query) -> SeriesQuery:
    return SeriesQuery(
        names=tuple(name for name in _one(query, "names").split(",") if name),
        first=_number(query, "first"),
        last=_number(query, "last"),
        points=min(MOST_POINTS, _number(query, "points") or 1000),
        attempt=_number(query, "attempt"),
    )


def _span_query(query: Query) -> SpanQuery:
    from_s, to_s = _seconds(query, "from"), _seconds(query, "to")
    if from_s is not None and to_s is not None and from_s >= to_s:
        raise BadInput("the span is empty: `from` is not before `to`")
    return SpanQuery(from_s=from_s, to_s=to_s, points=max(1, min(MOST_POINTS, _number(query, "points") or 360)))


def _log_query(query: Query) -> LogRequest:
    attempt = _number(query, "attempt")
    return LogRequest(
        node=_one(query, "node")[:300],
        attempt=None if attempt is None else min(max(1, attempt), 2**31 - 1),
        start=None if (start := _number(query, "start")) is None else min(start, 2**53),
        after=_one(query, "after")[:60],
        limit=min(MOST_LOG_LINES, _number(query, "limit") or 500),
        search=_one(query, "search")[:300],
    )


def _together(done: Sequence[DoneView]) -> DoneView:
    return DoneView(
        changed=tuple(line for one in done for line in one.changed),
        notes=tuple(line for one in done for line in one.notes),
    )


def _one(query: Query, name: str) -> str:
    return next(iter(query.get(name, ())), "")[:2000]


def _number(query: Query, name: str) -> int | None:
    text = _one(query, name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise BadInput(f"{name}: {text[:40]!r} is not a whole number")
    return int(text)


def _seconds(query: Query, name: str) -> float | None:
    text = _one(query, name)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= _LATEST_S:
        raise BadInput(f"{name}: {text[:40]!r} is not a time in seconds")
    return found


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadInput(f"priority: {value!r} is not a whole number")
    return value


def _list(body: dict[str, Any], name: str) -> list[Any]:
    found = body.get(name)
    if not isinstance(found, list):
        raise BadInput(f"{name} is not a list")
    return found


def _nothing_at(parts: Sequence[str]) -> NotFound:
    return NotFound(
        f"there is nothing at /v1/{'/'.join(parts)[:100]}", hint="without a coordinator, not all routes exist"
    )
