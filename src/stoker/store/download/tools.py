"""What a download works with: everything of the outside world that it touches, handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.host.durable import NO_STEP
from stoker.host.http.exchange import Transport
from stoker.model.clock import Clock
from stoker.model.digests import Digest
from stoker.model.events import Event
from stoker.model.frozen import frozen
from stoker.store.download.wanted import Fetched, Wanted


def _silent(event: Event, /) -> None:
    """Tell nobody."""


def _forget(came: Sequence[tuple[Wanted, Fetched]], /) -> None:
    """Keep no receipts."""


def _ours(_path: str, /) -> bool:
    """Believe that nobody else puts files there."""
    return True


def _nothing(_path: str, /) -> Digest | None:
    """Know of no receipts."""
    return None


ALL_OURS: Callable[[str], bool] = _ours
NO_RECEIPTS: Callable[[Sequence[tuple[Wanted, Fetched]]], None] = _forget


@frozen
class Tools:
    """The outside world of a download. One may serve many at once, so what is in it must bear several threads."""

    transport: Transport
    clock: Clock
    free_bytes: Callable[[str], int]
    """What may still be written where a path is."""
    jitter: Callable[[], float]
    """A number from 0 to below 1, another each time."""
    say: Callable[[Event], None] = _silent
    keep: Callable[[Sequence[tuple[Wanted, Fetched]]], None] = NO_RECEIPTS
    """Called once files have their names and before `done` is said of them: where receipts are written."""
    owns: Callable[[str], bool] = ALL_OURS
    """Whether we have put a file at a path before: any other one there is the user's, and is not replaced unasked."""
    received: Callable[[str], Digest | None] = _nothing
    """The digest of what we put at a path before, if that is known: without it a file there is not known to be good."""
    on_step: Callable[[str], None] = NO_STEP
    """Called with a step's name just before the step (`engine.STEPS`), so that tests can crash at each of them."""
