"""Random numbers in forked ranks: each draws its own, as fresh interpreters do.

Python's own generator sees to that itself. Those of numpy and torch are copied with everything else, so that all ranks
would draw the same, and those of the next gang the same again.
"""

from __future__ import annotations

import sys


def draw_anew() -> None:
    """Seed what is imported already from the machine's own randomness."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    # That of each CUDA device begins with one fixed seed wherever it begins. What only has torch's name has none.
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
