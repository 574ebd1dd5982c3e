"""Long work on the store: how far it is, shown on a terminal, and a clean end when a signal comes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from stoker.faces.cli.call import Call
from stoker.faces.cli.interrupting import Interruptions, say_aside
from stoker.faces.cli.screens import Screen, SilentScreen
from stoker.faces.view.transfers import amount_text, bar, left_text, rate_text
from stoker.model.errors import Cancelled, StokerError

_WORTH_A_RATE_S = 0.5
_BEGINS_ANEW = "nothing half is left; the same command begins anew"


class Watched(Protocol):
    """Work that says how far it is and can be asked to end."""

    def lines(self, now_s: float, at_least_s: float, /) -> list[str]:
        """Say how far it is."""

    def stop(self, error: StokerError, /) -> None:
        """Ask the work to end with this error, as soon as it can."""

    @property
    def asked(self) -> StokerError:
        """Why the work ends before its end."""


class Share(ABC):
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
        """Say how far it is."""
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
        """Say how much of how much there is."""

    @abstractmethod
    def _rate(self, each_s: float) -> str:
        """Say how quickly it goes."""


class Amount(Share):
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
def under_way(call: Call, what: str, total_bytes: int | None) -> Iterator[Amount]:
    """Show how far the block is, if somebody watches; a signal ends it between two bytes, and is what it then raises.

    Whatever the block does when it ends is not disturbed, except by a second Ctrl-C, two seconds after it.
    """
    amount = Amount(what, total_bytes, call.parts.clock.wall_s(), is_unicode=call.out.is_unicode)
    with watched(call, amount):
        yield amount


@contextmanager
def watched(call: Call, work: Watched, hint: str = _BEGINS_ANEW) -> Iterator[None]:
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


def _screen(call: Call) -> tuple[Screen, Callable[[str], None]]:
    """Give where to show how far it is, and how to say something from a signal's own code."""
    if not call.out.is_terminal or call.out.is_quiet:
        return SilentScreen(), say_aside
    from stoker.faces.cli.live import LiveScreen

    live = LiveScreen(call.out, call.parts.clock)
    return live, live.mention


def _leave() -> None:
    os._exit(Cancelled.exit_code)
