"""What happened to each node of a job, read from its journal: the source of `explain`, `jobs show` and `status`."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

from stoker.core.events import MEMBER_USAGE, Kinds
from stoker.core.frozen import changeable, fields_of, fresh
from stoker.core.jsontext import loads
from stoker.engine.journal import older_generation
from stoker.host.durable import open_regular, translate

_MOST_WARNINGS = 100
_MOST_LOGGED = 5000
_LONGEST_LOGGED = 2000
_MOST_NODES = 20_000
_LONGEST_EVENT_BYTES = 1 << 20
_SHORT_EVENT_BYTES = 4096
_MOST_LONG_BYTES = 64 << 20
"""Of events that are longer than that, all together."""
_MOST_METRICS = 1000
"""Of one node; of more the first."""
_READ_AT_ONCE_BYTES = 32 << 20
_OLDER_BYTES = 128 << 20

T = TypeVar("T")


@changeable
class NodeHistory:
    """One node as the journal tells it."""

    node: str
    title: str = ""
    """What a screen calls it, if not by its name."""
    stage: str = ""
    ending: str = "waiting"
    """hit, ran, failed, diverged, cancelled, pruned; running or waiting while there is no end."""
    why: str = ""
    changes: list[dict[str, Any]] = fresh(factory=list)
    key: str = ""
    digest: str = ""
    began_s: float | None = None
    seconds: float | None = None
    attempts: int = 0
    cause: str = ""
    message: str = ""
    hint: str = ""
    step: int | None = None
    of: int | None = None
    metrics: dict[str, Any] = fresh(factory=dict)
    status_text: str = ""
    """The last message of the stage for its user."""
    peak_rss_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    """On the fullest of its devices."""
    member_usage: dict[str, Any] | None = None
    """With whom it shared a process, if it did (`MemberUsage`)."""
    waits_for: str = ""
    """Which devices it waits for, and who holds them, or who does the very same; empty if it does not."""
    waits_since_s: float | None = None
    instances: int | None = None
    """Of a fan-out, how many it has; they are nodes of their own."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in fields_of(self).items() if name != "title"}


class RunHistory:
    """Nodes in the order in which the journal first names them. Feed it events; it never fails on odd ones."""

    def __init__(self, most_logged: int = 0) -> None:
        """`most_logged` is how many of the lines that stages logged to the journal are kept: the last ones."""
        self.logged: deque[tuple[str, str]] = deque(maxlen=most_logged)
        """Node and text of each."""
        self.logged_count = 0
        """Number of all of them, kept or not."""
        self.logged_of: Counter[str] = Counter()
        """The same of each node."""
        self.nodes: dict[str, NodeHistory] = {}
        self.begin: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.warnings: list[str] = []
        """What the run warned of, each text once."""
        self.edits = ""
        """Of a sweep, the newest warning that its program was edited while it ran."""
        self.edited: dict[int, Mapping[str, str]] = {}
        """By the number of a trial that ran edited code, the edited files with their digests."""
        self.dropped_warnings = 0
        """How many warnings are not in `warnings`, which holds the first ones."""
        self._fans: dict[str, _Fan] = {}

    def take(self, event: dict[str, Any]) -> NodeHistory | None:
        """Take in one event; gives the node it is about."""
        kind = event.get("kind")
        if kind == Kinds.RUN_BEGIN:
            self.begin = event
        elif kind == Kinds.RUN_END:
            self.end = event
        elif kind == Kinds.WARNING:
            self._warned(event)
        name = event.get("node")
        if not isinstance(name, str):
            return None
        node = self.nodes.setdefault(name, NodeHistory(node=name))
        node.stage = event.get("stage", node.stage)
        if kind == Kinds.STAGE_LOG:
            self.logged_count += 1
            self.logged_of[name] += 1
            self.logged.append((name, str(event.get("text", ""))[:_LONGEST_LOGGED]))
        change = _TELLERS.get(str(kind))
        if change is not None:
            change(node, event)
        if kind == Kinds.STAGE_EXPANDED:
            self._fans[name] = _Fan(node)
        fan = self._fans.get(name.rpartition("[")[0])
        if fan is not None:
            fan.take(node)
        return node

    def _warned(self, event: dict[str, Any]) -> None:
        message = str(event.get("message", ""))
        edited = event.get("edited")
        if isinstance(edited, dict):
            self._note_edits(edited.values())
            # The one at the end of a sweep says all that those before it said.
            self.warnings = [one for one in self.warnings if one != self.edits]
            self.edits = message
        if not message or message in self.warnings:
            return
        if len(self.warnings) < _MOST_WARNINGS:
            self.warnings.append(message)
        else:
            self.dropped_warnings += 1

    def _note_edits(self, codes: Iterable[Any]) -> None:
        for code in codes:
            files, trials = (code.get("files"), code.get("trials")) if isinstance(code, dict) else (None, None)
            if isinstance(files, dict) and isinstance(trials, list):
                self.edited |= {number: files for number in trials if type(number) is int}


class _Fan:
    """A fan-out, which has no end of its own: it ends when its last instance does."""

    def __init__(self, node: NodeHistory) -> None:
        self._node = node
        self._done: set[str] = set()
        self._has_run = False
        self._settle()

    def take(self, instance: NodeHistory) -> None:
        if instance.ending in ("hit", "ran"):
            self._done.add(instance.node)
            self._has_run = self._has_run or instance.ending == "ran"
            self._settle()

    def _settle(self) -> None:
        if len(self._done) == (self._node.instances or 0):
            self._node.ending = "ran" if self._has_run else "hit"


def tell(events: Iterable[dict[str, Any]]) -> RunHistory:
    """Read a whole journal."""
    story = RunHistory()
    for event in events:
        story.take(event)
    return story


def _begin(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "running"
    node.why = event.get("why", "")
    node.changes = event.get("changes", [])
    node.key = event.get("key", "")
    node.attempts = event.get("attempt", 1)
    node.began_s = event.get("ts")
    _waited(node)


def _end(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "ran"
    node.digest = event.get("digest", "")
    node.seconds = event.get("seconds")
    node.peak_rss_bytes = event.get("peak_rss_bytes")
    node.peak_gpu_bytes = event.get("peak_gpu_bytes")
    node.member_usage = event.get(MEMBER_USAGE)
    _note_metrics(node, event)


def _skipped(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "hit"
    _waited(node)
    node.why = node.why or "result is known"
    node.key = event.get("key", "")
    node.digest = event.get("digest", "")


def _failed(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "diverged" if event.get("cause") == "diverged" else "failed"
    node.cause = event.get("cause", "")
    node.message = event.get("message", "")
    node.hint = event.get("hint", "")
    node.seconds = event.get("seconds")


def _pruned(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "pruned"
    node.message = f"needs {event.get('because', '?')}"


def _cancelled(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "cancelled"
    node.cause = event.get("cause", "")


def _step(node: NodeHistory, event: dict[str, Any]) -> None:
    node.step = event.get("step")
    node.of = event.get("of")
    _note_metrics(node, event)


def _told(node: NodeHistory, event: dict[str, Any]) -> None:
    if not event.get("at_once"):
        node.status_text = str(event.get("text", ""))


def _note_metrics(node: NodeHistory, event: dict[str, Any]) -> None:
    room = _MOST_METRICS - len(node.metrics)
    for name, value in _metrics(event).items():
        if name in node.metrics:
            node.metrics[name] = value
        elif room > 0:
            node.metrics[name], room = value, room - 1


def _metrics(event: dict[str, Any]) -> dict[str, Any]:
    metrics = event.get("metrics")
    return metrics if isinstance(metrics, dict) else {}


def _retrying(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "waiting"
    node.message = f"attempt {event.get('attempt')} failed: {event.get('message', '')}"


def _waiting(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "waiting"
    node.message = event.get("why", "")
    node.waits_for = event.get("waits_for", "")
    if node.waits_for:
        node.waits_since_s = node.waits_since_s or event.get("ts")


def _waited(node: NodeHistory) -> None:
    """It waits no longer."""
    if node.waits_for:
        node.waits_for, node.waits_since_s, node.message = "", None, ""


def _expanded(node: NodeHistory, event: dict[str, Any]) -> None:
    node.ending = "running"
    node.instances = event.get("count", 0)


_TELLERS = {
    Kinds.STAGE_BEGIN: _begin,
    Kinds.STAGE_END: _end,
    Kinds.STAGE_SKIPPED: _skipped,
    Kinds.STAGE_FAILED: _failed,
    Kinds.STAGE_PRUNED: _pruned,
    Kinds.STAGE_CANCELLED: _cancelled,
    Kinds.STAGE_STEP: _step,
    Kinds.STAGE_TOLD: _told,
    Kinds.STAGE_RETRYING: _retrying,
    Kinds.STAGE_WAITING: _waiting,
    Kinds.STAGE_EXPANDED: _expanded,
}


class GrowingLines:
    """Whole lines of files that may still grow. Several files are read one after the other; the last one grows."""

    def __init__(self, *paths: str) -> None:
        self._before = paths[:-1]
        self._path = paths[-1]
        self._read_bytes = 0
        self._rest = b""

    def fresh(self) -> Iterator[bytes]:
        """Return the lines that were finished since the last time."""
        for path in self._before:
            yield from self._from(path, 0)
        self._before = ()
        try:
            # A journal that was moved away restarts from 0.
            self._read_bytes = min(self._read_bytes, os.stat(self._path).st_size)
        except FileNotFoundError:
            return
        yield from self._from(self._path, self._read_bytes)

    def rest(self) -> Iterator[bytes]:
        """Return a last line that has no end."""
        if self._rest:
            yield self._rest
            self._rest = b""

    def _from(self, path: str, start: int) -> Iterator[bytes]:
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate(error, path) from error
        with file:
            file.seek(start)
            self._read_bytes = start
            # Line by line: a log may be larger than the memory.
            for line in file:
                self._read_bytes += len(line)
                self._rest += line
                if line.endswith(b"\n"):
                    whole, self._rest = self._rest[:-1], b""
                    yield whole


class HistoryCache:
    """Histories of the jobs that were looked at last: each look reads what the journal has got since. Thread-safe.

    A very long journal is read over several looks.
    """

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._guard = threading.Lock()
        self._entries: OrderedDict[str, _CachedHistory] = OrderedDict()

    def read(self, status_path: str, view: Callable[[RunHistory], T]) -> T:
        """Return what `view` makes of a journal's history; it must not keep the history, which changes."""
        with self._guard:
            entry = self._entries.pop(status_path, None) or _CachedHistory(status_path)
            self._entries[status_path] = entry
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        with entry.guard:
            return view(entry.history())


class _CachedHistory:
    """One journal, which may be of any size and hold anything: what is read at one look and kept of it is bounded."""

    def __init__(self, status_path: str) -> None:
        self.guard = threading.Lock()
        self._path = status_path
        self._inode = 0
        self._read_bytes = 0
        self._history = RunHistory(_MOST_LOGGED)
        self._long_bytes = 0

    def history(self) -> RunHistory:
        try:
            with open_regular(self._path) as file:
                info = os.fstat(file.fileno())
                if info.st_ino != self._inode:
                    self._read_older()
                    self._inode, self._read_bytes = info.st_ino, 0
                elif info.st_size < self._read_bytes:
                    self._history, self._read_bytes, self._long_bytes = RunHistory(_MOST_LOGGED), 0, 0
                self._read(file, _READ_AT_ONCE_BYTES)
        except OSError:
            pass
        return self._history

    def _read_older(self) -> None:
        """Read the older generation: its rest if it is what was read until now, all of it at the first look."""
        with suppress(OSError), open_regular(older_generation(self._path)) as file:
            if self._inode not in (0, os.fstat(file.fileno()).st_ino):
                return
            self._read(file, _OLDER_BYTES)

    def _read(self, file: BinaryIO, most_bytes: int) -> None:
        """Take in whole lines from where the last look ended; a line that is no event costs nothing."""
        file.seek(self._read_bytes)
        until = self._read_bytes + most_bytes
        while self._read_bytes < until and (line := file.readline(_LONGEST_EVENT_BYTES)):
            is_whole = line.endswith(b"\n")
            if not is_whole and len(line) < _LONGEST_EVENT_BYTES:
                # Still being written.
                return
            self._read_bytes += len(line)
            if is_whole:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict) or self._is_too_much(line, event):
            return
        nodes = self._history.nodes
        if len(nodes) < _MOST_NODES or not isinstance(event.get("node"), str) or event["node"] in nodes:
            with suppress(TypeError, ValueError, AttributeError):
                self._history.take(event)

    def _is_too_much(self, line: bytes, event: dict[str, Any]) -> bool:
        """Return True for a long event after very many. It leaves behind all that it says; steps and lines do not."""
        if len(line) <= _SHORT_EVENT_BYTES or event.get("kind") in (Kinds.STAGE_STEP, Kinds.STAGE_LOG):
            return False
        self._long_bytes += len(line)
        return self._long_bytes > _MOST_LONG_BYTES
