"""A plug-in of a comparison as the parent sees it: a program that loads a model and returns its numbers.

    > {"op":"hello"}                                       < {"v":1,"name":…,"version":…,"can":[…]}
    > {"op":"load","model":…,"sha256":…,"precision":…}     < {"ok":true,"n_vocab":…,"ran":{…},…}
    > {"op":"logits","ids":[…],"chunk":32,"layers":true}   < a line per row, then {"done":…}

Every response is checked before it is used (`plugin_messages`), and one position is in memory at a time. The protocol
is described for authors in docs/guides/crossval-plugins.md; the lines themselves are those of `plugin_lines`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from stoker.core.clock import Clock, Closable
from stoker.core.errors import HashMismatch, MissingExtra, PluginFailed, PluginInvalid
from stoker.core.frozen import fields_of, frozen
from stoker.core.jsontext import dumps, loads
from stoker.core.text import one_line
from stoker.crossval.plugin_lines import PluginCommand, PluginConnection
from stoker.crossval.plugin_messages import (
    VERSION,
    InvalidResponse,
    Loaded,
    LoadRequest,
    LogitsRows,
    PluginInfo,
    PluginRow,
    ResponseFields,
    encoded_bytes,
    read_hello,
    read_loaded,
    require_finite,
)

T = TypeVar("T")

_SMALL_BYTES = 1 << 20
_LONGEST_TEXT = 400


@frozen
class PluginTimeouts:
    """How long a plug-in may take for one line."""

    hello_s: float = 120.0
    load_s: float = 1800.0
    line_s: float = 600.0
    """For a text, for each row of logits, for a layer."""


class Plugin(Closable):
    """One running plug-in. Use it in a `with`, or `close` it. Not thread-safe."""

    def __init__(
        self, command: PluginCommand, *, timeouts: PluginTimeouts | None = None, clock: Clock | None = None
    ) -> None:
        """Start it. Raises `ProgramNotFound` or `LocalFile` if there is no such program."""
        self.command = command
        self._timeouts = timeouts or PluginTimeouts()
        self._lines = PluginConnection(command, clock=clock)
        self._info: PluginInfo | None = None
        self._loaded: Loaded | None = None
        self._unread: LogitsRows | None = None
        """Of a request whose rows have not all been read."""

    @property
    def log(self) -> str:
        """The end of what it has printed on standard error."""
        return self._lines.log

    @property
    def pid(self) -> int:
        """Of its process, to measure what that takes."""
        return self._lines.pid

    def close(self) -> None:
        self._lines.close()

    def hello(self) -> PluginInfo:
        """Return what it is. Asked once."""
        if self._info is None:
            self._info = self._ask({"v": VERSION, "op": "hello"}, self._timeouts.hello_s, read_hello)
        return self._info

    def load(self, request: LoadRequest) -> Loaded:
        """Load a model. Raises `HashMismatch` if the file has another digest."""
        self.hello()
        self._loaded = None
        body = {"op": "load", **fields_of(request)}
        self._loaded = self._ask(body, self._timeouts.load_s, read_loaded, 4 * _SMALL_BYTES)
        return self._loaded

    def tokenize(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """Return the ids of a text, without those that mark its beginning or end.

        With `special`, the names of control tokens in the text are these tokens.
        """
        loaded = self._require("tokenize")
        body = {"op": "tokenize", "text": text, "special": special}
        most_bytes = _SMALL_BYTES + 16 * len(text.encode("utf-8", "replace"))
        return self._ask(body, self._timeouts.line_s, lambda fields: fields.ids("ids", loaded.n_vocab), most_bytes)

    def logits(
        self, ids: Sequence[int], chunk: int = 0, *, layers: bool = False, decode_from: int | None = None
    ) -> Iterator[PluginRow]:
        """Return the rows of all positions, as they come: those of the layers of a position before its logits.

        `chunk`: positions computed at once; 0: all of them. From `decode_from` on they are computed one at a time.
        """
        loaded = self._require("logits")
        if layers:
            self._require("layers")
        body: dict[str, Any] = {"op": "logits", "ids": list(ids), "chunk": chunk or len(ids), "layers": layers}
        if decode_from is not None:
            body["decode_from"] = decode_from
        self._send(body)
        rows = self._unread = LogitsRows(loaded, len(ids), layers=layers)
        while (row := self._row(rows)) is not None:
            yield row

    def replay(self, layer: int, values: memoryview[float] | bytes) -> memoryview[float]:
        """Return what a layer makes of the hidden states of a whole sequence, float32, a row per position.

        The layer behind the last one is the final norm with the head: its rows are logits.
        """
        loaded = self._require("replay")
        data = bytes(values)
        if not loaded.width or not data or len(data) % (4 * loaded.width):
            message = f"{len(data)} bytes are no rows of {loaded.width} numbers"
            raise ValueError(message)
        width = loaded.n_vocab if layer == loaded.n_layers else loaded.width
        expected = len(data) // (4 * loaded.width) * width

        def read(fields: ResponseFields) -> memoryview[float]:
            made = fields.vector("output", expected)
            require_finite(made, layer=f"l_out-{layer}")
            return made

        body = {"op": "replay", "layer": layer, "input": base64.b64encode(data).decode("ascii")}
        return self._ask(body, self._timeouts.line_s, read, encoded_bytes(expected))

    def _require(self, ability: str) -> Loaded:
        if ability not in self.hello().can:
            raise PluginFailed(
                f"{self.command.label} can't do {ability}", plugin=self.command.label, reason="unsupported", op=ability
            )
        if self._loaded is None:
            raise PluginFailed(f"{self.command.label} has no model loaded", plugin=self.command.label, op=ability)
        return self._loaded

    def _ask(
        self,
        body: dict[str, Any],
        timeout_s: float,
        read: Callable[[ResponseFields], T],
        most_bytes: int = _SMALL_BYTES,
    ) -> T:
        """Send a request with one response, and return what is read from that."""
        op = str(body["op"])
        self._send(body)
        return self._checked(op, read, self._line(op, timeout_s, most_bytes))

    def _send(self, body: dict[str, Any]) -> None:
        self._skip_rows()
        self._lines.send(dumps(body).encode())

    def _skip_rows(self) -> None:
        """Read past the rows of a request whose reader stopped before its end."""
        while self._unread is not None:
            self._row(self._unread)

    def _row(self, rows: LogitsRows) -> PluginRow | None:
        """Return the next row; None at the end."""
        line = self._line("logits", self._timeouts.line_s, rows.most_bytes)
        row = self._checked("logits", rows.read, line)
        if row is None:
            self._unread = None
        return row

    def _line(self, op: str, timeout_s: float, most_bytes: int) -> dict[str, Any]:
        """Return the next response. Raises the error that it reports."""
        line = self._lines.receive(op, timeout_s=timeout_s, most_bytes=most_bytes)
        try:
            found = loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            shown = one_line(line[:80].decode("utf-8", "replace"))
            raise self._refuse(op, f"printed {shown!r} for {op}, which is no JSON object")
        if "error" not in found:
            return found
        self._unread = None
        error = found["error"] if isinstance(found["error"], dict) else {}
        reason, said = str(error.get("code", "failed"))[:64], one_line(str(error.get("message", "")), _LONGEST_TEXT)
        message = f"{self.command.label} failed at {op}: {said or reason}"
        kinds = {"hash_mismatch": HashMismatch, "not_installed": MissingExtra}
        kind = kinds.get(reason, PluginFailed)
        raise kind(message, plugin=self.command.label, op=op, reason=reason, log=self.log)

    def _checked(self, op: str, read: Callable[[ResponseFields], T], response: dict[str, Any]) -> T:
        try:
            return read(ResponseFields(op, response))
        except InvalidResponse as error:
            raise self._refuse(op, str(error), error.kind, **error.data) from None

    def _refuse(self, op: str, what: str, kind: type[PluginFailed] = PluginInvalid, **data: object) -> PluginFailed:
        """Return the error of an invalid response. The plug-in is stopped: what it sends next is not known."""
        return self._lines.refuse(kind, f"{self.command.label} {what}", op=op, **data)
