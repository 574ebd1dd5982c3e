"""The news of downloads as lines: files that are there stay on the screen, those on their way are shown meanwhile.

Files that were there already are held back: few are told at the end, many only counted. So are quick ones among very
many. Listens to the events of a download: called from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stoker.faces.cli.output import Output
from stoker.faces.cli.screens import Screen
from stoker.faces.view.signs import ASCII, UNICODE
from stoker.faces.view.transfers import (
    Drawing,
    Transfers,
    again_text,
    done_text,
    flying_text,
    seconds_of,
    short_name,
)
from stoker.model.events import Event, Kinds
from stoker.model.printable import outside
from stoker.model.units import format_size

_LISTED = 8
_MANY = 40
_QUICK_MS = 1000
_LONGEST_NAME = 48
_MOST_ROWS = 8
_ROWS_BESIDE = 3
"""Lines of a screen that stay free for all files together, for the last line and for what is typed."""
_COLUMNS_BESIDE = 5
"""Of a line: for the sign before it, and for the `^C` behind it, which must not begin another line."""
_SHORTEST_NAME = 12


class TransferLines:
    """Turns events of downloads into lines."""

    def __init__(self, screen: Screen, out: Output, *, shows_progress: bool = True, tells_there: bool = True) -> None:
        self._screen = screen
        self._tells_there = tells_there
        self._out = out
        self._signs = UNICODE if out.is_unicode else ASCII
        self._lock = threading.Lock()
        self._transfers = Transfers()
        self._within = ""
        self._width = 0
        self._there: list[dict[str, Any]] = []
        self._quick: list[dict[str, Any]] = []
        # Never to begin is to show only ends.
        self._has_begun = not shows_progress

    def expect(self, names: Iterable[str], total_bytes: int | None, *, within: str = "") -> None:
        """Say which files will come, all of one repository if `within` names it.

        With `total_bytes` known, it can be told when all will be there.
        """
        with self._lock:
            known = [short_name(name, within) for name in names]
            self._within = within
            self._width = min(_LONGEST_NAME, max(map(len, known), default=0))
            self._transfers = Transfers(files=len(known), total_bytes=total_bytes)

    def take(self, event: Event, at_s: float) -> None:
        """Take in one event."""
        with self._lock:
            if self._transfers.take(event, at_s) is None:
                return
            begins = not self._has_begun and event.kind in _BEGIN
            self._has_begun = self._has_begun or begins
            lines = list(self._lines(event.kind, event.fields))
        if begins:
            self._screen.begin(self.running)
        for line in lines:
            self._screen.lasting(line)

    def running(self, now_s: float, at_least_s: float) -> list[str]:
        """Say how far it is: in short where lines stay (`at_least_s` above 0), else file by file too."""
        with self._lock:
            flying = self._transfers.in_flight()
            if not flying:
                return []
            is_drawn = at_least_s <= 0
            room = max(1, self._out.columns - _COLUMNS_BESIDE) if is_drawn and self._out.columns else 0
            how = Drawing(is_drawn=is_drawn, is_unicode=self._out.is_unicode, room=room)
            together = [self._transfers.together(how)] if self._transfers.files > 1 else []
            if together and not is_drawn:
                return together
            width = min(self._width, max(_SHORTEST_NAME, room // 3)) if room else self._width
            beside = replace(how, room=max(1, room - width - 2) if room else 0)
            rows = [
                f"{_cut(short_name(one.file, self._within), width):<{width}}  {flying_text(one, beside, now_s)}"
                for one in self._transfers.worth_rows()[: self._most_rows()]
            ]
            return [*together, *rows]

    def close(self) -> None:
        """Tell of what was held back."""
        quick, there, self._quick, self._there = self._quick, self._there, [], []
        if quick:
            size = format_size(sum(int(told.get("bytes") or 0) for told in quick))
            self._screen.lasting(f"{self._out.paint(self._signs.ran, 'green')} {len(quick):,} files, {size}")
        if len(there) > _LISTED:
            self._screen.lasting(f"{self._signs.hit} {len(there):,} files were there")
            return
        for told in there:
            self._screen.lasting(self._done(told))

    def _most_rows(self) -> int:
        rows = self._out.rows
        return max(1, min(_MOST_ROWS, rows - _ROWS_BESIDE)) if rows else _MOST_ROWS

    def _lines(self, kind: str, told: dict[str, Any]) -> Iterable[str]:
        name = f"{self._name(told):<{self._width}}"
        if kind == Kinds.DOWNLOAD_DONE:
            if told.get("status") == "cached":
                if self._tells_there:
                    self._there.append(told)
            elif self._transfers.files > _MANY and int(told.get("ms") or 0) < _QUICK_MS:
                self._quick.append(told)
            else:
                yield self._done(told)
        elif kind == Kinds.DOWNLOAD_FAILED:
            yield f"{self._out.paint(self._signs.failed, 'red')} {name}  {outside(str(told.get('message', '')))}"
        elif kind == Kinds.DOWNLOAD_RETRY:
            wait_s = seconds_of(told)
            # Who asks about a repository says so in the message itself.
            why = str(told.get("msg", "")).removeprefix(f"{told.get('file', '')}: ")
            again = f"; {again_text(int(told.get('attempt') or 0), wait_s)}" if wait_s else ""
            yield f"{self._signs.again} {name}  {outside(why)}{again}"
        elif kind == Kinds.DOWNLOAD_WAITING:
            yield f"{self._signs.again} {name}  {outside(str(told.get('msg', '')))}"

    def _done(self, told: dict[str, Any]) -> str:
        is_new = told.get("status") == "downloaded"
        sign = self._out.paint(self._signs.ran, "green") if is_new else self._out.paint(self._signs.hit, "dim")
        return f"{sign} {self._name(told):<{self._width}}  {done_text(told)}"

    def _name(self, told: dict[str, Any]) -> str:
        return short_name(str(told.get("file", "")), self._within)


def _cut(name: str, width: int) -> str:
    """Give a name that fits, by its end if need be."""
    return name if len(name) <= width or not width else f"…{name[len(name) - width + 1 :]}"


_BEGIN = frozenset({Kinds.DOWNLOAD_START, Kinds.DOWNLOAD_RETRY, Kinds.DOWNLOAD_WAITING})
