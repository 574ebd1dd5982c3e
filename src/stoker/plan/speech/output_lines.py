"""From a program's output to the lines of it that are worth reading, in bounded memory and time.

A carriage return ends a line as a line end does, so each update of a progress bar is one. Lines without `=` and `{` say
nothing to us and are not given. Of a line longer than `LINE_BYTES` only the beginning is. In each half second only so
many lines are given; the rest is counted as lost, except for the last one, so that the final value is always right.
Lines that may control something (`saved`, `done`, `failed`) have room of their own.
"""

from __future__ import annotations

from stoker.model.clock import Clock
from stoker.plan.speech.trainer_lines import LINE_BYTES

WINDOW_S = 0.5
LINES_PER_WINDOW = 4000
CONTROLS_PER_WINDOW = 1000
_LONG_LINE_BYTES = 256
"""A longer line counts as several."""
_CONTROLS = (b'"saved"', b'"done"', b'"failed"', b'"contract"')


class OutputLines:
    """Takes output in chunks of any size, from one thread."""

    def __init__(self, clock: Clock, *, lines_per_window: int = LINES_PER_WINDOW) -> None:
        self.lost = 0
        """Lines that were not given, because too many had something to say."""
        self._clock = clock
        self._lines_per_window = lines_per_window
        self._window_end_s = -1.0
        self._left = 0
        self._controls_left = 0
        self._tail = b""
        """The beginning of a line whose end has not come."""
        self._is_cut = False
        """That line is too long already: what follows up to its end is not looked at."""
        self._unread = b""
        """The last line that was passed over."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take what was printed next, or nothing after a pause; gives the lines to read now, in order."""
        given = self._begin_window()
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")
        head, newline, rest = chunk.partition(b"\n")
        self._grow(head)
        if newline:
            given += self._choose(self._end_line())
            body, _, last = rest.rpartition(b"\n")
            given += self._choose(body)
            self._grow(last)
        return given

    def finish(self) -> list[bytes]:
        """Give the last line, which had no end, and the last one that was passed over."""
        self._window_end_s = -1.0
        return [*self._begin_window(), *self._choose(self._end_line())]

    def _begin_window(self) -> list[bytes]:
        now_s = self._clock.monotonic_s()
        if now_s < self._window_end_s:
            return []
        self._window_end_s = now_s + WINDOW_S
        self._left, self._controls_left = self._lines_per_window, CONTROLS_PER_WINDOW
        if not self._unread:
            return []
        line, self._unread = self._unread, b""
        self.lost -= 1
        return self._choose(line)

    def _grow(self, part: bytes) -> None:
        if not self._is_cut:
            self._tail += part[: LINE_BYTES + 1 - len(self._tail)]
            self._is_cut = len(self._tail) > LINE_BYTES

    def _end_line(self) -> bytes:
        line, self._tail, self._is_cut = self._tail, b"", False
        return line

    def _choose(self, body: bytes) -> list[bytes]:
        # Most output says nothing to us; then its lines are not even taken apart.
        if b"=" not in body and b"{" not in body:
            return []
        if self._left <= 0:
            return self._pass_over(body)
        lines = [line for line in body.split(b"\n") if b"=" in line or b"{" in line]
        for at, line in enumerate(lines):
            if self._left <= 0:
                return [*lines[:at], *self._pass_over(b"\n".join(lines[at:]))]
            self._left -= 1 + len(line) // _LONG_LINE_BYTES
        return lines

    def _pass_over(self, body: bytes) -> list[bytes]:
        """Leave lines out, except for those that may control something, and remember the last one."""
        self.lost += body.count(b"\n") + 1
        place = max(body.rfind(b"="), body.rfind(b"{"))
        self._unread = body[body.rfind(b"\n", 0, place) + 1 :].partition(b"\n")[0]
        if self._controls_left <= 0 or not any(kind in body for kind in _CONTROLS):
            return []
        controls = [line for line in body.split(b"\n") if b"{" in line and any(kind in line for kind in _CONTROLS)]
        given = controls[: self._controls_left]
        self._controls_left -= len(given)
        self.lost -= len(given)
        if given and given[-1] == self._unread:
            self._unread = b""
        return given
