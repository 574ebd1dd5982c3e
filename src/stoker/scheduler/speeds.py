"""How fast devices are beside each other, by the words of their names.

The first ten figures are system B's. The others stand to the nearest of those ten as the makers' published peaks of one
kind (fp32 without tensor cores for desktop cards, dense bf16 for data centre ones) stand to each other. Those peaks
were written down from memory: neither checked against data sheets nor measured. They order devices; they predict no run
time.
"""

from __future__ import annotations

import re
from functools import cache

REFERENCE = "RTX 4090"
UNKNOWN_SPEED = 0.5
CPU_SPEED = 0.01

_SPEEDS: tuple[tuple[str, float], ...] = (
    # System B's.
    ("4090", 1.0),
    ("4080", 0.72),
    ("3090", 0.55),
    ("3080", 0.45),
    ("a100", 1.2),
    ("h100", 2.0),
    ("orin", 0.06),
    ("jetson nano", 0.02),
    # An Orin, whatever its surname.
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
_SLICE = re.compile(r"\b(\d)g\.\d+gb\b")
_SLICES = 7


@cache
def speed_of(type_name: str) -> float:
    """Give a device's speed by its name: `rtx-4090`, `NVIDIA GeForce RTX 4090`, `RTX4090` are one; unknown is 0.5."""
    text = type_name.lower()
    words = set(_WORD.findall(text))
    # RTX4090
    words |= {match[1] for word in words if (match := _NUMBER.fullmatch(word))}
    whole = next((speed for known, speed in _BY_WORDS if known <= words), UNKNOWN_SPEED)
    part = _SLICE.search(text)
    return whole * int(part[1]) / _SLICES if part else whole
