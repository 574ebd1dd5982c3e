"""Tensors over memory that somebody else made."""

from __future__ import annotations

from typing import Any

import torch


def over_memory(view: memoryview, dtype: str) -> torch.Tensor:
    """Give a tensor over this computer's memory; it holds the view."""
    return torch.frombuffer(view, dtype=getattr(torch, dtype))


def over_device(base: int, nbytes: int, dtype: str, *, keep: object) -> torch.Tensor:
    """Give a tensor over memory of the current GPU; it holds `keep`."""
    shown = _Shown(base, nbytes, keep)
    flat: torch.Tensor = torch.as_tensor(shown, device="cuda")
    return flat.view(getattr(torch, dtype))


class _Shown:
    """Device memory as CUDA's array interface describes it."""

    def __init__(self, base: int, nbytes: int, keep: object) -> None:
        self._keep = keep
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (base, False),
            "version": 2,
        }
