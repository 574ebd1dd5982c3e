"""What the zygote of ranks imports once, so that no rank has to. It must neither start a thread nor touch a GPU."""

from __future__ import annotations

from stoker.gang import rank, torch_backend, windows

__all__ = ["rank", "torch_backend", "windows"]
