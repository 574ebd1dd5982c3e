"""Long work on the store: how far it is, shown on a terminal, and a clean end when a signal comes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from stoker.cli.context import CommandContext
from stoker.cli.interrupts import Interruptions, say_aside
from stoker.cli.screens import Screen, SilentScreen
from stoker.core.errors import Cancelled, StokerError
from stoker.core.text import format_duration
from stoker.views.transfer_lines import amount_text, bar, left_text, rate_text

_WORTH_A_RATE_S = 0.5
_BEGINS_ANEW = "nothing half is left; the same command begins anew"


class CancellableWork(Protocol):
    """Work that says how far it is and can be asked to end."""

    def lines(self, now_s: float, at_least_s: float, /) -> list[str]:
        """Return how far it is."""

    def stop(self, error: StokerError, /) -> None:
        """Ask the work to end with this error, as soon as it can."""

    @property
    def asked(self) -> StokerError:
        """Why the work ends before its end."""


class CommandProgress(ABC):
    """How much of a whole is done."""

    def __init__(self, what: str, total: int | None, began_s: float, *, is_unicode: bool, hint: str) -> None:
        self._done = 0
        self._what = what
        self._total = total
        self._began_s = began_s
        self._is_unicode = is_unicode
        self._hint = hint
        self._asked: StokerError | None = None

    def stop(self, error: StokerError) -> None:
        """Ask the work to end with this error, as soon as it says again how far it is."""
        self._asked = error

    @property
    def asked(self) -> StokerError:
        """Why the work ends before its end."""
        return self._asked or Cancelled("interrupted", hint=self._hint)

    def lines(self, now_s: float, _at_least_s: float) -> list[str]:
        """Return how far it is."""
        done, total, passed_s = self._done, self._total, now_s - self._began_s
        rate = done / passed_s if passed_s >= _WORTH_A_RATE_S and done else None
        left_s = max(0, total - done) / rate if rate and total is not None else None
        parts = [
            self._what,
            bar(done, total, is_unicode=self._is_unicode),
            self._amount(done, total),
            "" if rate is None else self._rate(rate),
            left_text(left_s),
        ]
        return ["  ".join(part for part in parts if part)]

    def _end_if_asked(self) -> None:
        if self._asked is not None:
            # Not one of our errors: those who check or copy many things take such for a fault of one of them.
            raise KeyboardInterrupt

    @abstractmethod
    def _amount(self, done: int, total: int | None) -> str:
        """Return how much of how much there is."""

    @abstractmethod
    def _rate(self, each_s: float) -> str:
        """Return how quickly it goes."""


class Amount(CommandProgress):
    """How many bytes of some work are done."""

    def __init__(self, what: str, total_bytes: int | None, began_s: float, *, is_unicode: bool) -> None:
        super().__init__(what, total_bytes, began_s, is_unicode=is_unicode, hint=_BEGINS_ANEW)

    @property
    def done_bytes(self) -> int:
        return self._done

    def add(self, size_bytes: int) -> None:
        """Take in that so many bytes more are done."""
        self._done += size_bytes

    def heed(self, size_bytes: int) -> None:
        """Take in that so many bytes more are done; ends the work if that was asked for."""
        self.add(size_bytes)
        self._end_if_asked()

    def _amount(self, done: int, total: int | None) -> str:
        return amount_text(done, total)

    def _rate(self, each_s: float) -> str:
        return rate_text(each_s)


@contextmanager
def under_way(call: CommandContext, what: str, total_bytes: int | None) -> Iterator[Amount]:
    """Show how far the block is, if somebody watches; a signal ends it between two bytes, and is what it then raises.

    Whatever the block does when it ends is not disturbed, except by a second Ctrl-C, two seconds after it.
    """
    amount = Amount(what, total_bytes, call.parts.clock.wall_s(), is_unicode=call.out.is_unicode)
    with watched(call, amount):
        yield amount


@contextmanager
def watched(call: CommandContext, work: CancellableWork, hint: str = _BEGINS_ANEW) -> Iterator[None]:
    """The same for any work that ends itself by `KeyboardInterrupt` once it is asked to."""
    screen, mention = _screen(call)
    screen.begin(work.lines)
    try:
        with Interruptions(work.stop, mention, _leave, hint=hint):
            yield
    except KeyboardInterrupt:
        raise work.asked from None
    finally:
        screen.close()


def _screen(call: CommandContext) -> tuple[Screen, Callable[[str], None]]:
    """Return where to show how far it is, and how to say something from a signal's own code."""
    if not call.out.is_terminal or call.out.is_quiet:
        return SilentScreen(), say_aside
    from stoker.cli.screens import LiveScreen

    live = LiveScreen(call.out, call.parts.clock)
    return live, live.mention


def _leave() -> None:
    os._exit(Cancelled.exit_code)


# Long work that is counted: how far it is, shown on a terminal, and a clean end when a signal comes.

_NOTHING_LEFT = "nothing was started or written"


class Count(CommandProgress):
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


class ElapsedSeconds(Count):
    """How many seconds of how many have passed: they pass one each second, which needs not be said."""

    def _amount(self, done: int, total: int | None) -> str:
        return format_duration(done) if total is None else f"{format_duration(done)} of {format_duration(total)}"

    def _rate(self, _each_s: float) -> str:
        return ""


@contextmanager
def counted(call: CommandContext, what: str, total: int, sort: type[Count] = Count) -> Iterator[Count]:
    """Show how far the block is, if somebody watches; a signal ends it where it counts, and is what it then raises."""
    began_s = call.parts.clock.wall_s()
    count = sort(what, total, began_s, is_unicode=call.out.is_unicode, hint=_NOTHING_LEFT)
    with watched(call, count, hint=_NOTHING_LEFT):
        yield count
