"""How many adapters over one base fit into memory, and what would fit if not even one does. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, takewhile

from stoker.core.errors import InsufficientDeviceMemory
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.shared_base import (
    MultiAdapterEstimate,
    MultiAdapterNeeds,
    MultiAdapterTraining,
    estimate_adapters,
)
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


_LEAST_SPARE_BYTES = 256 * 1024**2
_SPARE_PERCENT = 3


def spare_of(free_bytes: int) -> int:
    """Return what smaller passes leave of free memory.

    They are decided before a run. When its first member starts, which reserves a whole pass, less may be free.
    """
    return max(_LEAST_SPARE_BYTES, free_bytes * _SPARE_PERCENT // 100)


@frozen
class MembersFit:
    """How many members of a shared process run at once, and how many of them are computed in one pass."""

    at_once: int
    """0 if not even one fits."""
    in_pass: int = 0
    """Maximum number of members in one pass; 0: all of them."""
    divided: MultiAdapterNeeds | None = None
    """What each reserves if passes have fewer members: the base with the memory of one pass, and its own state."""


def members_fit(
    free_bytes: int | None,
    members: Sequence[MultiAdapterNeeds],
    elsewhere_bytes: Sequence[int] = (),
    *,
    divides: bool = True,
    spare_bytes: int = 0,
) -> MembersFit:
    """Return how many members, in order, fit together. All of them if it is not known how much is free.

    Each adds its own to one base. If not all fit in this way, here and on the machine's other devices
    (`elsewhere_bytes`), but all fit here with fewer members in a pass, a pass has as many as fit: its memory is held
    once, like the base, and each member adds its state. States and passes are padded to the largest member's. Without
    `divides` a pass always has all members; otherwise `spare_bytes` stay free.
    """
    if free_bytes is None:
        return MembersFit(at_once=len(members))
    base_bytes = max((one.base_bytes for one in members), default=0)
    own = [one.member_bytes for one in members]
    at_once = _count(free_bytes, base_bytes, own)
    left = own[at_once:]
    for other_bytes in sorted(elsewhere_bytes, reverse=True):
        left = left[_count(other_bytes, base_bytes, left) :]
    divided = _divided(free_bytes - spare_bytes, base_bytes, members) if left and divides else None
    return divided or MembersFit(at_once=at_once)


def _divided(free_bytes: int, base_bytes: int, members: Sequence[MultiAdapterNeeds]) -> MembersFit | None:
    """Return how all members fit with fewer of them in a pass; None if they do not."""
    if not all(one.pass_bytes for one in members):
        return None
    state_bytes, pass_bytes = max(one.state_bytes for one in members), max(one.pass_bytes for one in members)
    in_pass = min(len(members), (free_bytes - base_bytes - len(members) * state_bytes) // pass_bytes)
    if in_pass < 1:
        return None
    needs = MultiAdapterNeeds(base_bytes=base_bytes + in_pass * pass_bytes, member_bytes=state_bytes)
    return MembersFit(at_once=len(members), in_pass=in_pass, divided=needs)


def _count(free_bytes: int, base_bytes: int, own: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda own_bytes: base_bytes + own_bytes <= free_bytes, accumulate(own)))


def adapters_fit(
    free_bytes: int, training: MultiAdapterTraining, estimate: Estimator = estimate_adapters
) -> MembersFit:
    """Return how many adapters of a training fit together."""
    needs = [estimate(training).needs] * training.adapters
    return members_fit(free_bytes, needs, spare_bytes=spare_of(free_bytes))


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
