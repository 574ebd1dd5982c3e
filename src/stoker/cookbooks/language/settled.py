"""Where and in which width a stage computes, from what it was given and what was asked for."""

from __future__ import annotations

from stoker.cookbooks.language.settings import Dtype


def device_of(devices: tuple[str, ...]) -> tuple[str, str]:
    """Give `cpu` or `cuda`, and what a person should be told about it."""
    import torch

    if not devices:
        return "cpu", ""
    if torch.cuda.is_available():
        return "cuda", ""
    return "cpu", "A GPU was given, and this torch can't use it: computed on the CPU."


def dtype_on(device: str, wanted: Dtype) -> str:
    """Give the width that is meant on a device."""
    import torch

    if wanted != "auto":
        return wanted
    return "bfloat16" if device != "cpu" and torch.cuda.is_bf16_supported() else "float32"
