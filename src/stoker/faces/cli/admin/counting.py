"""Long work that is counted: how far it is, shown on a terminal, and a clean end when a signal comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stoker.faces.cli.call import Call
from stoker.faces.cli.under_way import Share, watched
from stoker.model.units import format_duration

_NOTHING_LEFT = "nothing was started or written"


class Count(Share):
    """How many of how many are done."""

    def reach(self, done: int, total: int | None = None) -> None:
        """Take in how many are done, perhaps of a new total; ends the work if that was asked for."""
        self._done = done
        self._total = self._total if total is None else total
        self._end_if_asked()

    def _amount(self, done: int, total: int | None) -> str:
        return f"{done:,}" if total is None else f"{done:,} of {total:,}"

    def _rate(self, each_s: float) -> str:
        return f"{each_s:,.0f}/s"


class Elapsed(Count):
    """How many seconds of how many have passed: they pass one each second, which needs not be said."""

    def _amount(self, done: int, total: int | None) -> str:
        return format_duration(done) if total is None else f"{format_duration(done)} of {format_duration(total)}"

    def _rate(self, _each_s: float) -> str:
        return ""


@contextmanager
def counted(call: Call, what: str, total: int, sort: type[Count] = Count) -> Iterator[Count]:
    """Show how far the block is, if somebody watches; a signal ends it where it counts, and is what it then raises."""
    began_s = call.parts.clock.wall_s()
    count = sort(what, total, began_s, is_unicode=call.out.is_unicode, hint=_NOTHING_LEFT)
    with watched(call, count, hint=_NOTHING_LEFT):
        yield count
