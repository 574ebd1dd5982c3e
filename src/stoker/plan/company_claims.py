"""Devices' memory of members whose run is gone: given back by the company, whose process holds it, when they leave."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from stoker.hardware.ledger.answers import Held
from stoker.hardware.ledger.entries import Entry
from stoker.hardware.ledger.ledger import Ledger
from stoker.hardware.probes.meters.meter import NoMeter
from stoker.model.clock import SystemClock
from stoker.model.errors import StokerError


def give_back(claim: Any) -> None:
    """Give back what a member's run took in the ledger; what can't be goes with this process. Twice is fine."""
    with suppress(StokerError, ValueError, KeyError, TypeError):
        if claim:
            held = Held(entry=Entry.from_dict(claim["entry"]))
            Ledger(claim["folder"], clock=SystemClock(), meter=NoMeter()).release(held)
