"""Where and in which width a stage computes, from what it was given and what was asked for."""

from __future__ import annotations

from stoker.cookbooks.language.settings import Dtype, SettledDtype


def device_of(devices: tuple[str, ...]) -> tuple[str, str]:
    """Give `cpu` or `cuda`, and what a person should be told about it."""
    import torch

    if not devices:
        return "cpu", ""
    if torch.cuda.is_available():
        return "cuda", ""
    return "cpu", "A GPU was given, and this torch can't use it: computed on the CPU."


def settled_dtype(wanted: Dtype, *, on_gpu: bool) -> SettledDtype:
    """Give the width that is meant: before a stage's key is made, for what is made in another is another result."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if on_gpu else "float32"
