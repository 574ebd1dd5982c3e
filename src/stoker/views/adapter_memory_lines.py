"""What a company of adapters takes, as lines: the base once, what each adapter adds, how many fit where. Pure."""

from __future__ import annotations

from typing import Any

from stoker.core.frozen import frozen
from stoker.core.text import format_size
from stoker.devices.estimate.shared_base import MultiAdapterEstimate, MultiAdapterTraining, SmallerOption
from stoker.devices.estimate.terms import EstimateTerm
from stoker.views.text_tables import table


@frozen
class SharedProcessFitView:
    """How many of a company's members one place has room for."""

    name: str
    uuid: str
    at_once: int
    room_bytes: int | None
    """For them together, now; `None`: nobody could say."""
    why: str
    would_fit: tuple[SmallerOption, ...] = ()
    """What to change, where not all of them fit."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "at_once": self.at_once,
            "room_bytes": self.room_bytes,
            "why": self.why,
            "would_fit": [{"change": one.change, "total_bytes": one.total_bytes} for one in self.would_fit],
        }


def company_lines(
    company: MultiAdapterTraining, told: MultiAdapterEstimate, seats: list[SharedProcessFitView], *, columns: int = 0
) -> list[str]:
    """Lay an estimate out."""
    shape, count = company.shape, told.adapters
    each = "beside them" if count == 1 else f"by each of {count} adapters"
    needs = told.needs
    base = [["base, once", "", ""], *map(_row, told.base), ["  together", format_size(needs.base_bytes), ""]]
    member = [["each adapter", "", ""], *map(_row, told.member), ["  together", format_size(needs.member_bytes), ""]]
    adapters = "1 adapter" if count == 1 else f"{count} adapters"
    rows = [*base, *member, ["total", format_size(told.total_bytes), f"{adapters} over one base, in one process"]]
    widest = max(len(row[1]) for row in rows)
    return [
        f"{shape.family}, {told.parameters:,} parameters, {told.trained_parameters:,} trained {each}",
        *table([[name, size.rjust(widest), why] for name, size, why in rows], columns=columns, indent="  "),
        *(line for one in seats for line in _seats(one, count)),
    ]


def _row(term: EstimateTerm) -> list[str]:
    return [f"  {term.name}", format_size(term.size_bytes), term.why]


def _seats(seats: SharedProcessFitView, wanted: int) -> list[str]:
    if seats.room_bytes is None:
        return [f"{seats.name}: not known how many fit; {seats.why}"]
    fits = "none fits" if not seats.at_once else "it fits" if wanted == 1 else f"all {wanted} fit at once"
    if 0 < seats.at_once < wanted:
        fits = f"{seats.at_once} of {wanted} fit at once, the rest after them"
    hint = [f"  would fit: {'; '.join(map(str, seats.would_fit))}"] if seats.would_fit else []
    return [f"{seats.name}: {fits}; {seats.why}", *hint]
