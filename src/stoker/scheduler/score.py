"""Score of a place for a job: system B's formula, the speeds of devices, and the cost rule for using a device at all.

    score = room / need × speed ÷ (1 + jobs there)

On a shared device, room is its free usable memory and need is what the job takes of it. On the CPU, both are in slices
of 4 GiB and one core, by the scarcer of the two. Alone on a device, spare memory is of no use to the job and a larger
device could serve a larger job, so the first term is one plus the used part. Scores only order places; a
`PlacementRank` is compared before the score.

Speeds are relative to an RTX 4090. The first ten figures are system B's. The others relate to the nearest of those ten
as the vendors' published peaks of one kind relate to each other (fp32 without tensor cores for desktop cards, dense
bf16 for data centre cards). Those peaks are neither checked against data sheets nor measured. They order devices; they
do not predict run times.
"""

from __future__ import annotations

import re
from functools import cache
from math import inf
from typing import NamedTuple

from stoker.core.device import GIB, MIB
from stoker.core.frozen import frozen
from stoker.core.machine import DEFAULT_RAM_BYTES

UNKNOWN_SPEED = 0.5
CPU_SPEED = 0.01
SLICE_RAM_BYTES = DEFAULT_RAM_BYTES
"""One slice of a node is this much RAM and one core."""


class PlacementRank(NamedTuple):
    """What is compared before the score, in this order; larger is better."""

    wished: int
    """The place is of the kind that the job prefers: a device or the CPU."""
    preferred: int
    """The node is one of the job's preferred hosts."""
    priority: int
    """The node's priority."""
    fitting: int
    """The job's base is on the device already; for a CPU job: the node has no devices whose slots it would take."""


class Key(NamedTuple):
    """What places are compared by; larger is better, and the first node wins among equals."""

    rank: PlacementRank
    score: float


def shared_score(room_bytes: float, need_bytes: int, speed: float, jobs: int) -> float:
    """Return the score of a device that the job would share."""
    return room_bytes / max(need_bytes, MIB) * speed / (1 + jobs)


def alone_score(need_bytes: int, total_bytes: int, speed: float) -> float:
    """Return the score of a device that the job would have alone. No declared memory counts as all of it."""
    return speed * (1 + (need_bytes / total_bytes if need_bytes else 1.0))


def cpu_score(free_slices: float | None, need_slices: float, jobs: int) -> float:
    """Return the score of a node's CPU. If the free slices are unknown, they count as just enough."""
    ratio = 1.0 if free_slices is None else free_slices / need_slices
    return ratio * CPU_SPEED / (1 + jobs)


def slices_of(ram_left_bytes: float, cores_left: float) -> float | None:
    """Return what is left of a node, in slices; `None` if both are infinite, which means unknown.

    RAM counts in whole GiB: nodes that differ by less are equally good.
    """
    if ram_left_bytes == inf:
        return None if cores_left == inf else cores_left
    return min(ram_left_bytes // GIB * GIB / SLICE_RAM_BYTES, cores_left)


def slices_needed(ram_bytes: int, cores: int) -> float:
    """Return what a job takes of a node, in slices; 1 if it declares nothing."""
    return max(ram_bytes / SLICE_RAM_BYTES, float(cores)) or 1.0


@cache
def speed_of(type_name: str) -> float:
    """Return a device type's speed, 0.5 if unknown. `rtx-4090`, `NVIDIA GeForce RTX 4090` and `RTX4090` are equal."""
    text = type_name.lower()
    words = set(_WORD.findall(text))
    # RTX4090
    words |= {match[1] for word in words if (match := _NUMBER.fullmatch(word))}
    whole = next((speed for known, speed in _BY_WORDS if known <= words), UNKNOWN_SPEED)
    part = _MIG_PROFILE.search(text)
    return whole * int(part[1]) / _SLICES if part else whole


@frozen
class CostRule:
    """The rule of thumb whether a device is worth the transfer to it. It advises; callers may ignore it.

    If only the device's figures are known, the work there must take more than `threshold` times as long as the transfer
    (system B's rule). If the CPU's figure is known too, transfer and device together must be faster than the CPU.
    The defaults may be replaced by measured figures.
    """

    us_per_mb: float = 40.0
    """Microseconds to transfer a megabyte to the device."""
    us_per_mflop: float = 0.01
    """Microseconds per million operations on the device."""
    threshold: float = 5.0
    cpu_us_per_mflop: float | None = None
    """The same on the CPU; `None` if not measured."""

    def advise(self, transfer_mb: float, mflop: float) -> Advice:
        """Return whether the work belongs on a device; no opinion if transfer or work is not declared."""
        if transfer_mb <= 0 or mflop <= 0:
            return Advice()
        transfer_us = transfer_mb * self.us_per_mb
        device_us = mflop * self.us_per_mflop
        if self.cpu_us_per_mflop is not None:
            cpu_us = mflop * self.cpu_us_per_mflop
            is_worth = transfer_us + device_us < cpu_us
            sides = f"{_us(transfer_us)} transfer + {_us(device_us)} there"
            return Advice(rule="device beats cpu", is_worth=is_worth, why=f"{sides}, {_us(cpu_us)} on the CPU")
        # Not the quotient: exactly five times is not more than five times.
        is_worth = device_us > self.threshold * transfer_us
        why = f"{_us(device_us)} of work, {_us(transfer_us)} of transfer: {device_us / transfer_us:.3g} times"
        return Advice(rule=f"work above {self.threshold:g} times the transfer", is_worth=is_worth, why=why)


@frozen
class Advice:
    """The answer of the cost rule, with the rule applied and its figures."""

    rule: str = ""
    is_worth: bool | None = None
    """`None`: no opinion."""
    why: str = ""

    @property
    def is_against(self) -> bool:
        """True if a job that only prefers a device should not use one."""
        return self.is_worth is False

    def __str__(self) -> str:
        if self.is_worth is None:
            return "no opinion: transfer and work are not declared"
        return f"{'worth' if self.is_worth else 'not worth'} a device by the rule “{self.rule}” ({self.why})"


COST_RULE = CostRule()
"""The rule with its defaults."""

_SPEEDS: tuple[tuple[str, float], ...] = (
    # From system B.
    ("4090", 1.0),
    ("4080", 0.72),
    ("3090", 0.55),
    ("3080", 0.45),
    ("a100", 1.2),
    ("h100", 2.0),
    ("orin", 0.06),
    ("jetson nano", 0.02),
    # An Orin, not the earlier Nano.
    ("jetson orin nano", 0.06),
    # Dense bf16 beside the H100 (989 TFLOP/s) or the A100 (312).
    ("h200", 2.0),
    ("gh200", 2.0),
    ("b200", 4.55),
    ("mi300x", 2.64),
    ("mi250x", 1.47),
    ("v100", 0.48),
    ("t4", 0.25),
    # fp32 beside the 4090 (82.6 TFLOP/s), the 4080 (48.7), the 3090 (35.6) or the 3080 (29.8).
    ("5090", 1.27),
    ("5080", 0.68),
    ("4090 laptop", 0.4),
    ("4070 ti", 0.59),
    ("4070", 0.43),
    ("4060 ti", 0.33),
    ("4060", 0.22),
    ("3090 ti", 0.62),
    ("3080 ti", 0.51),
    ("3070", 0.31),
    ("3060", 0.19),
    ("1080 ti", 0.17),
    ("1080", 0.14),
    ("6000 ada", 1.1),
    ("l40s", 1.11),
    ("l40", 1.1),
    ("l4", 0.37),
    ("a6000", 0.6),
    ("a40", 0.58),
    ("a10", 0.48),
)
_BY_WORDS = sorted(((frozenset(words.split()), speed) for words, speed in _SPEEDS), key=lambda one: -len(one[0]))
_WORD = re.compile(r"[a-z0-9]+")
_NUMBER = re.compile(r"[a-z]+(\d{4})")
_MIG_PROFILE = re.compile(r"\b([1-7])g\.\d+gb\b")
_SLICES = 7
"""A MIG device has so many compute slices."""


def _us(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.3g} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds / 1_000_000:.3g} s"
