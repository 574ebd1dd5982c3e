"""How many members of a company have room, and what would fit where not even one has. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, repeat, takewhile

from stoker.hardware.estimate.company import Company, CompanyEstimate, estimate_company
from stoker.hardware.estimate.shape import ModelShape
from stoker.hardware.estimate.targets import targeted
from stoker.model.errors import NoRoom
from stoker.model.frozen import changed, frozen
from stoker.model.units import format_size

STEP_TOKENS = 64
"""Between lengths that are worth a try."""
WORDS: Mapping[str, str] = {"adapters": "adapters", "rows": "batch", "sequence": "max_seq_len", "rank": "rank"}
"""What recipes call a company's numbers."""
_MOST_BASES = 3

Foretell = Callable[[Company], CompanyEstimate]
"""Gives what a company takes, with whatever is known of the device it is for."""


@frozen
class Room:
    """What one device, or the machine, has for a company."""

    name: str
    room_bytes: int
    why: str = ""
    """What else there is to know of it: how much of that is free now."""


@frozen
class Smaller:
    """Something that fits, and what it takes."""

    change: str
    """In the words of whoever asked: `batch=1 (instead of 4)`."""
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.change} takes {format_size(self.total_bytes)}"


def at_once(free_bytes: int, company: Company, foretell: Foretell = estimate_company) -> int:
    """Give how many of a company's members fit together, none if not even one does."""
    needs = foretell(company).needs
    return seated(free_bytes, needs.base_bytes, repeat(needs.member_bytes, company.adapters))


def seated(free_bytes: int, base_bytes: int, members: Iterable[int]) -> int:
    """Give how many members, in order, fit together: each takes its own beside a base that is there once."""
    return sum(1 for _ in takewhile(lambda own_bytes: base_bytes + own_bytes <= free_bytes, accumulate(members)))


def smaller(
    room_bytes: int, company: Company, foretell: Foretell = estimate_company, words: Mapping[str, str] = WORDS
) -> tuple[Smaller, ...]:
    """Give the changes, one number each, that would fit: the largest value of each number that does.

    Where no single one is enough, the same for one adapter alone; at last, the least of everything.
    """
    if foretell(company).total_bytes <= room_bytes:
        return ()
    for said, start in (("", company), (f"{words['adapters']}=1 ", changed(company, adapters=1))):
        found = [
            Smaller(change=f"{said}{words[field]}={value} (instead of {getattr(company, field)})", total_bytes=taken)
            for field, values in _smaller_values(start).items()
            for value, taken in largest_fit(room_bytes, values, _taking(start, foretell, field))
        ]
        if found:
            return tuple(found)
    least = {"adapters": 1, "rows": 1, "sequence": min(company.sequence, STEP_TOKENS), "rank": 1}
    taken = foretell(changed(company, **least)).total_bytes
    if taken > room_bytes:
        return ()
    said = " ".join(f"{words[field]}={value}" for field, value in least.items() if getattr(company, field) != value)
    return (Smaller(change=said, total_bytes=taken),)


def smaller_bases(
    room_bytes: int, company: Company, bases: Mapping[str, ModelShape], foretell: Foretell = estimate_company
) -> tuple[Smaller, ...]:
    """Give the bases, the largest first, over which the same company would fit, if all it adapts is there."""

    def takes(name: str) -> int | None:
        adapted = targeted(bases[name], company.targets)
        if not adapted or company.rank > min(min(one.inputs, one.outputs) for one in adapted):
            return None
        return foretell(changed(company, shape=bases[name])).total_bytes

    return bases_that_fit(room_bytes, bases, takes)


def bases_that_fit(
    room_bytes: int, bases: Mapping[str, ModelShape], takes: Callable[[str], int | None]
) -> tuple[Smaller, ...]:
    """Give the largest of some bases with which something fits; `takes` says nothing of one that is no choice."""
    names = sorted(bases, key=lambda name: (-bases[name].parameters, name))
    fitting = ((name, taken) for name in names if (taken := takes(name)) is not None and taken <= room_bytes)
    return tuple(Smaller(change=f"base={name}", total_bytes=taken) for name, taken in islice(fitting, _MOST_BASES))


def no_room(
    company: Company,
    rooms: Sequence[Room],
    foretell: Foretell = estimate_company,
    words: Mapping[str, str] = WORDS,
    bases: Callable[[], Mapping[str, ModelShape]] = dict,
) -> NoRoom | None:
    """Give the error for a company of which no device could ever hold even one member; nothing if one could.

    `bases` are others that are at hand, asked for only if nothing helps but another one.
    """
    alone = changed(company, adapters=1)
    told = foretell(alone)
    needs = told.needs
    numbers = (
        f"one adapter takes {format_size(told.total_bytes)}: {format_size(needs.base_bytes)} for the base and "
        f"{format_size(needs.member_bytes)} of its own"
    )

    def fitting(room_bytes: int) -> tuple[Smaller, ...]:
        found = smaller(room_bytes, alone, foretell, words)
        return found or smaller_bases(room_bytes, alone, bases(), foretell)

    return refusal(numbers, told.total_bytes, rooms, fitting, "even the base is too large: take a smaller one")


def refusal(
    numbers: str,
    needed_bytes: int,
    rooms: Sequence[Room],
    fitting: Callable[[int], Sequence[Smaller]],
    otherwise: str,
) -> NoRoom | None:
    """Give the error for work that none of these has room for; nothing if one has.

    `numbers` say what it takes, `fitting` what would fit into so much, and `otherwise` what to do if nothing would.
    """
    largest = max(rooms, key=lambda one: one.room_bytes, default=None)
    if largest is None:
        return NoRoom(f"{numbers}, and there is no device", hint="stoker doctor shows what is here")
    if needed_bytes <= largest.room_bytes:
        return None
    has = f"{largest.name} has {format_size(largest.room_bytes)}{f' ({largest.why})' if largest.why else ''}"
    found = fitting(largest.room_bytes)
    hint = f"would fit: {'; '.join(map(str, found))}" if found else otherwise
    most = "" if len(rooms) == 1 else ", the most of any"
    return NoRoom(f"{numbers}; {has}{most}", hint=hint, needed_bytes=needed_bytes, devices=[one.name for one in rooms])


def largest_fit(room_bytes: int, values: Sequence[int], takes: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Give the largest of some values, in order, with which something fits, and what it takes then."""
    place = bisect_right(values, room_bytes, key=takes)
    if place:
        yield values[place - 1], takes(values[place - 1])


def fewer_tokens(tokens: int) -> Sequence[int]:
    """Give the shorter lengths that are worth a try."""
    return range(STEP_TOKENS, tokens, STEP_TOKENS)


def _smaller_values(company: Company) -> dict[str, Sequence[int]]:
    return {
        "adapters": range(1, company.adapters),
        "rows": range(1, company.rows),
        "sequence": fewer_tokens(company.sequence),
        "rank": [2**power for power in range(company.rank.bit_length()) if 2**power < company.rank],
    }


def _taking(company: Company, foretell: Foretell, field: str) -> Callable[[int], int]:
    """Give what a company takes with another value of one of its numbers."""
    return lambda value: foretell(changed(company, **{field: value})).total_bytes
