"""What members' runs took of devices for them, as their company sees it: how much that is, and how it is given back.

A member whose run is gone can't give it back itself: its company does, whose process holds it by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from stoker.hardware.ledger.answers import Held
from stoker.hardware.ledger.entries import Entry
from stoker.hardware.ledger.ledger import Ledger
from stoker.hardware.ledger.room import ceiling_of
from stoker.hardware.probes.meters.meter import NoMeter
from stoker.model.clock import SystemClock
from stoker.model.errors import StokerError


def ceiling_by(claims: Iterable[Any]) -> int | None:
    """Give the most that a company may take of a device by the claims of its members; nothing: all there is."""
    with suppress(ValueError, KeyError, TypeError):
        return ceiling_of([Entry.from_dict(claim["entry"]) for claim in claims if claim])
    return None


def give_back(claim: Any) -> None:
    """Give back what a member's run took in the ledger; what can't be goes with this process. Twice is fine."""
    with suppress(StokerError, ValueError, KeyError, TypeError):
        if claim:
            held = Held(entry=Entry.from_dict(claim["entry"]))
            Ledger(claim["folder"], clock=SystemClock(), meter=NoMeter()).release(held)
