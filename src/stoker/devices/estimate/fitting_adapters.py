"""How many adapters over one base fit into memory, and what would fit if not even one does. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, repeat, takewhile

from stoker.core.errors import InsufficientDeviceMemory
from stoker.core.frozen import changed
from stoker.core.text import format_size
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.shared_base import MultiAdapterEstimate, MultiAdapterTraining, estimate_adapters
from stoker.devices.estimate.terms import (
    STEP_TOKENS,
    MemoryCapacity,
    SmallerOption,
    bases_that_fit,
    fewer_tokens,
    largest_fit,
    refusal,
)
from stoker.devices.estimate.training_setup import targeted

JOB_WORDS: Mapping[str, str] = {"adapters": "adapters", "rows": "batch", "sequence": "max_seq_len", "rank": "rank"}
"""Recipes' names of these numbers."""

Estimator = Callable[[MultiAdapterTraining], MultiAdapterEstimate]
"""Returns the memory of several adapters, with what is known of the device."""


def at_once(free_bytes: int, training: MultiAdapterTraining, estimate: Estimator = estimate_adapters) -> int:
    """Return how many members fit together, 0 if not even one does."""
    needs = estimate(training).needs
    return fitting_members(free_bytes, needs.base_bytes, repeat(needs.member_bytes, training.adapters))


def fitting_members(free_bytes: int, base_bytes: int, members: Iterable[int]) -> int:
    """Return how many members, in order, fit together: each takes its own beside one base."""
    return sum(1 for _ in takewhile(lambda own_bytes: base_bytes + own_bytes <= free_bytes, accumulate(members)))


def smaller(
    room_bytes: int,
    training: MultiAdapterTraining,
    estimate: Estimator = estimate_adapters,
    words: Mapping[str, str] = JOB_WORDS,
) -> tuple[SmallerOption, ...]:
    """Return the changes of one number each that would fit: the largest value of each number that does.

    If no single one is enough, the same for one adapter alone; at last, the least of everything.
    """
    if estimate(training).total_bytes <= room_bytes:
        return ()
    for prefix, start in (("", training), (f"{words['adapters']}=1 ", changed(training, adapters=1))):
        found = [
            SmallerOption(
                change=f"{prefix}{words[field]}={value} (instead of {getattr(training, field)})", total_bytes=taken
            )
            for field, values in _smaller_values(start).items()
            for value, taken in largest_fit(room_bytes, values, _taking(start, estimate, field))
        ]
        if found:
            return tuple(found)
    least = {"adapters": 1, "rows": 1, "sequence": min(training.sequence, STEP_TOKENS), "rank": 1}
    taken = estimate(changed(training, **least)).total_bytes
    if taken > room_bytes:
        return ()
    least_text = " ".join(
        f"{words[field]}={value}" for field, value in least.items() if getattr(training, field) != value
    )
    return (SmallerOption(change=least_text, total_bytes=taken),)


def smaller_bases(
    room_bytes: int,
    training: MultiAdapterTraining,
    bases: Mapping[str, ModelShape],
    estimate: Estimator = estimate_adapters,
) -> tuple[SmallerOption, ...]:
    """Return the bases, the largest first, over which the same adapters would fit, if all adapted matrices exist."""

    def takes(name: str) -> int | None:
        adapted = targeted(bases[name], training.targets)
        if not adapted or training.rank > min(min(one.inputs, one.outputs) for one in adapted):
            return None
        return estimate(changed(training, shape=bases[name])).total_bytes

    return bases_that_fit(room_bytes, bases, takes)


def no_room(
    training: MultiAdapterTraining,
    rooms: Sequence[MemoryCapacity],
    estimate: Estimator = estimate_adapters,
    words: Mapping[str, str] = JOB_WORDS,
    bases: Callable[[], Mapping[str, ModelShape]] = dict,
) -> InsufficientDeviceMemory | None:
    """Return the error if no device could ever hold even one member; nothing if one could.

    `bases` returns other bases; called only if nothing else helps.
    """
    alone = changed(training, adapters=1)
    needed = estimate(alone)
    needs = needed.needs
    numbers = (
        f"one adapter takes {format_size(needed.total_bytes)}: {format_size(needs.base_bytes)} for the base and "
        f"{format_size(needs.member_bytes)} of its own"
    )

    def fitting(room_bytes: int) -> tuple[SmallerOption, ...]:
        found = smaller(room_bytes, alone, estimate, words)
        return found or smaller_bases(room_bytes, alone, bases(), estimate)

    return refusal(numbers, needed.total_bytes, rooms, fitting, "even the base is too large: use a smaller one")


def _smaller_values(training: MultiAdapterTraining) -> dict[str, Sequence[int]]:
    return {
        "adapters": range(1, training.adapters),
        "rows": range(1, training.rows),
        "sequence": fewer_tokens(training.sequence),
        "rank": [2**power for power in range(training.rank.bit_length()) if 2**power < training.rank],
    }


def _taking(training: MultiAdapterTraining, estimate: Estimator, field: str) -> Callable[[int], int]:
    """Return the memory as a function of one number."""
    return lambda value: estimate(changed(training, **{field: value})).total_bytes
