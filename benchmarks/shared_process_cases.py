"""The shared processes whose memory is measured: number of adapters, rank, tokens of each in a step."""

from __future__ import annotations

from typing import Any

from adapters_cases import MODEL, TARGETS, TINY

SEQUENCE = 512
Case = dict[str, Any]


def _case(adapters: int, tokens: int, rank: int = 16, **more: Any) -> Case:
    return {"adapters": adapters, "rows": tokens // SEQUENCE, "sequence": SEQUENCE, "rank": rank, **more}


CASES: dict[str, Case] = {
    "1x512": _case(1, 512),
    "8x512": _case(8, 512),
    "8x512-r8": _case(8, 512, 8),
    "8x512-r64": _case(8, 512, 64),
    "4x2048": _case(4, 2048),
    "4x2048-eager": _case(4, 2048, compiled=False),
    "8x2048": _case(8, 2048),
    "8x2048-r64": _case(8, 2048, 64),
    "8x2048-eager": _case(8, 2048, compiled=False),
    "1x8192": _case(1, 8192),
    "4x8192-r64": _case(4, 8192, 64),
    "8x8192": _case(8, 8192),
    "8x2048-packed": _case(8, 2048, packed=True),
    "8x2048-lengths": _case(8, 2048, lengths=True),
}
"""Twelve of one shape each, one of packed rows, one whose steps are of three lengths in turns."""


def shape_of(*, tiny: bool) -> dict[str, Any]:
    """Return the base's config.json."""
    return TINY if tiny else MODEL


def targets() -> tuple[str, ...]:
    """Return the matrices that get an adapter."""
    return TARGETS
