"""Long work that is counted: how far it is, shown on a terminal, and a clean end when a signal comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stoker.faces.cli.call import Call
from stoker.faces.cli.under_way import watched
from stoker.faces.view.transfers import bar, left_text
from stoker.model.errors import Cancelled, StokerError

_WORTH_A_RATE_S = 0.5
_NOTHING_LEFT = "nothing was started or written"


class Count:
    """How many of how many are done."""

    def __init__(self, what: str, total: int, began_s: float, *, is_unicode: bool) -> None:
        self._done = 0
        self._what = what
        self._total = total
        self._began_s = began_s
        self._is_unicode = is_unicode
        self._asked: StokerError | None = None

    def reach(self, done: int, total: int | None = None) -> None:
        """Take in how many are done, perhaps of a new total; ends the work if that was asked for."""
        self._done = done
        self._total = self._total if total is None else total
        if self._asked is not None:
            raise KeyboardInterrupt

    def stop(self, error: StokerError) -> None:
        """Ask the work to end with this error, as soon as it counts again."""
        self._asked = error

    @property
    def asked(self) -> StokerError:
        """Why the work ends before its end."""
        return self._asked or Cancelled("interrupted", hint=_NOTHING_LEFT)

    def lines(self, now_s: float, _at_least_s: float) -> list[str]:
        """Say how far it is."""
        done, passed_s = self._done, now_s - self._began_s
        rate = done / passed_s if passed_s >= _WORTH_A_RATE_S and done else None
        parts = [
            self._what,
            bar(done, self._total, is_unicode=self._is_unicode),
            f"{done:,} of {self._total:,}",
            "" if rate is None else f"{rate:,.0f}/s",
            left_text(None if rate is None else (self._total - done) / rate),
        ]
        return ["  ".join(part for part in parts if part)]


@contextmanager
def counted(call: Call, what: str, total: int) -> Iterator[Count]:
    """Show how far the block is, if somebody watches; a signal ends it where it counts, and is what it then raises."""
    count = Count(what, total, call.parts.clock.wall_s(), is_unicode=call.out.is_unicode)
    with watched(call, count, hint=_NOTHING_LEFT):
        yield count
