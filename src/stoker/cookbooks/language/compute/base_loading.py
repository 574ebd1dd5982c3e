"""A base on a device, by the path that it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from stoker.cookbooks.language.arguments import BaseDtype, BasePath
from stoker.cookbooks.language.compute.base_path import choose_path
from stoker.cookbooks.language.compute.base_weights import BaseWeights, FrozenBase, QuantisedLayers, load_base
from stoker.cookbooks.language.compute.general_base import load_general
from stoker.cookbooks.language.compute.slots import Slots
from stoker.cookbooks.language.compute.transformers_base import load_transformers
from stoker.core.errors import BadInput
from stoker.core.frozen import changed

_COMPARED = 2
"""Blocks whose logits are compared with those of transformers: loading all of a large base twice would take long."""
_TOKENS = 16
_NEAR, _NEAR_NARROW = 1e-3, 0.05
"""Logits that differ by less, relative to the largest, are the same: in 32 bits, and in fewer."""


def open_base(
    folder: Path, *, device: str, dtype: str, base_dtype: BaseDtype, path: BasePath
) -> tuple[FrozenBase, str]:
    """Load a base by the path that it can take; return it, and one line about the path."""
    chosen = choose_path(folder, path)
    line = str(chosen)
    if not chosen.is_general:
        blocks = load_base(folder, device=device, dtype=dtype, base_dtype=base_dtype)
        if path == "fast":
            line += _compared(folder, blocks)
        return blocks, line
    base = load_general(folder, device=device, dtype=dtype, base_dtype=base_dtype)
    if base.left_alone:
        line += f"; {len(base.left_alone)} of its linear layers never have adapters, such as {base.left_alone[0]}"
    if base.experts:
        line += f"; {base.experts} fused matrices of experts have no adapters"
    return base, line


def _compared(folder: Path, base: BaseWeights) -> str:
    """Compare the logits of the first blocks with those of transformers. Raises `BadInput` if they are others."""
    if isinstance(base.layers, QuantisedLayers):
        return ""
    count = min(_COMPARED, len(base.layers))
    model = changed(base.shape.model, layers=count)
    first = replace(base, layers=base.layers[:count], shape=changed(base.shape, model=model))
    tokens = (torch.arange(_TOKENS) * 7 + 3)[None] % base.shape.vocabulary
    ours = Slots(first, count=1, rank=1, targets=(), compiles=False, records=False).logits(0, tokens)
    module = load_transformers(folder, dtype=str(base.dtype).removeprefix("torch."), device=base.device, blocks=count)
    with torch.no_grad():
        theirs = module(input_ids=tokens.to(base.device), use_cache=False).logits[:, -1].float().cpu()
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    # No number is no difference either way: weights that are none are found by the losses.
    if difference > (_NEAR if base.dtype == torch.float32 else _NEAR_NARROW):
        message = f"{folder.name} can't take the fast path: its logits differ from those of transformers by "
        raise BadInput(f"{message}{100 * difference:.2g} %", hint="path=general, or leave it out")
    return f", compared by the logits of {count} of them"
