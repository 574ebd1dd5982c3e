"""Orders that are drawn from a seed, the same on every machine and with every version."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def drawn_order(seed: int, turn: int, count: int) -> npt.NDArray[np.int64]:
    """Draw an order of `count` places; `turn` tells apart the orders of one seed."""
    # Raw bits of a named generator: numpy promises those for ever, its shuffles it does not.
    drawn = np.random.Philox(key=[seed, turn]).random_raw(count)
    return np.argsort(drawn, kind="stable").astype(np.int64)
