"""Is it memory that is lacking?"""

from __future__ import annotations

import torch

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell a lack of memory, on a device or in the machine, from all else."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
