"""How many threads the numeric libraries may use."""

from __future__ import annotations

from typing import Any

import joblib
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from stoker.cookbooks.tabular.science.examples import Examples

_LARGE_CELLS = 500_000


def limited(n_jobs: int | None, examples: Examples) -> Any:
    """Hold OpenMP and BLAS to `n_jobs` threads (None: every core) while open, and to one for a small table.

    Threads that share a small piece of work wait for each other longer than they work, above all on a busy machine.
    """
    most = n_jobs if n_jobs is not None else int(joblib.cpu_count())
    return threadpool_limits(limits=most if examples.features.size >= _LARGE_CELLS else 1)
