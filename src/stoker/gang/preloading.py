"""What the zygote of ranks imports once, so that no rank has to. It must neither start a thread nor touch a GPU."""

from __future__ import annotations

from stoker.gang import rank
from stoker.gang.backend import joining, tensors
from stoker.gang.windows import host

__all__ = ["host", "joining", "rank", "tensors"]
