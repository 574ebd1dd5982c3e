"""What people are told of a company's first step on a GPU, which takes long where kernels are compiled for it."""

from __future__ import annotations

from contextlib import suppress

from stoker.model.frozen import frozen
from stoker.model.units import format_duration

BEGINS = "first step: kernels are compiled, or taken from an earlier run"


@frozen
class Kernels:
    """How many parts of the work were compiled by this process so far, and how many it found compiled."""

    compiled: int = 0
    kept: int = 0


def kernels_so_far() -> Kernels:
    """Ask torch; nothing where it does not count."""
    with suppress(ImportError, KeyError, TypeError):
        from torch._dynamo.utils import counters

        told = counters["inductor"]
        return Kernels(compiled=int(told["fxgraph_cache_miss"]), kept=int(told["fxgraph_cache_hit"]))
    return Kernels()


def first_step_text(took_s: float, kernels: Kernels) -> str:
    """Say how long the first step took, and why."""
    took = format_duration(took_s)
    if kernels.compiled:
        return f"compiling {took} (kept for next time)"
    return f"first step {took}, its kernels from an earlier run" if kernels.kept else f"first step {took}"
