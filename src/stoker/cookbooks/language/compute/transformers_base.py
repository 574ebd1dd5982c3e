"""A base as transformers' own module: loaded whole or refused, its blocks, and rows of several sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker.cookbooks.language.compute.base_path import leads_elsewhere
from stoker.cookbooks.language.compute.math import mask_of
from stoker.cookbooks.language.hub_code import forbid_hub_code
from stoker.core.errors import BadInput
from stoker.core.text import first_line
from stoker.store.weight_files.headers import read_foreign_json, unreadable_weights

_CLOSE = {torch.float32: 2e-4}
_CLOSE_NARROW = 0.05
"""Logits that differ by less, relative to the largest, are the same: in 32 bits, and in fewer."""
_AFTERWARDS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
_FIRST, _SECOND = 5, 4
"""Tokens of the two sequences that are tried in one row."""


def load_transformers(folder: Path, *, dtype: str = "float32", device: str = "cpu", blocks: int | None = None) -> Any:
    """Return the causal language model of a folder. Raises `BadInput` if weights are missing, `Damaged`.

    With `blocks` only so many are loaded, of a family that has their number in `num_hidden_layers`. It is in evaluation
    mode, and has attention that never holds all scores if its family supports that.
    """
    forbid_hub_code()
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    if elsewhere := leads_elsewhere(folder, read_foreign_json(folder / "config.json")):
        raise BadInput(f"{folder}: {elsewhere}", hint="remove it, or use another base")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **_first(folder, blocks),
        )
    except SafetensorError as error:
        raise unreadable_weights(str(folder), error) from error
    except Exception as error:  # families raise what they like at settings that they were not made for
        raise BadInput(
            f"transformers can't load {folder}: {first_line(error)}", hint="use another base, or a newer transformers"
        ) from error
    # transformers would draw missing weights at random.
    wrong = sorted(map(str, report["missing_keys"])) or sorted(map(str, report["mismatched_keys"]))
    if wrong:
        more = f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        what = "has no" if report["missing_keys"] else "has another size of"
        raise BadInput(f"{folder} {what} {wrong[0]}{more}", hint="use the config.json of these weights")
    model = model.to(device).eval()
    try:
        with torch.no_grad():
            model(_probe(model, _FIRST), use_cache=False)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # numbers in its config.json that have no sizes: experts of a token, windows
        message = f"transformers can't compute with {folder}: {first_line(error)}"
        raise BadInput(message, hint="use the config.json of these weights") from error
    return model


def _first(folder: Path, blocks: int | None) -> dict[str, Any]:
    """Return the changes to a config.json for so many blocks."""
    if blocks is None:
        return {}
    kinds = read_foreign_json(folder / "config.json").get("layer_types")
    return {"num_hidden_layers": blocks} | ({"layer_types": kinds[:blocks]} if kinds else {})


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """Return the blocks of a model: its list with the most weights."""
    lists = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
    return max(lists, key=lambda one: sum(weight.numel() for weight in one.parameters()))


def positions_of(segments: Tensor) -> Tensor:
    """Return each token's position in its own sequence, for `[rows, T]` sequence numbers.

    By positions that begin again, transformers keeps sequences of a row apart.
    """
    rows, length = segments.shape
    return mask_of(rows, length, segments).positions


def takes_packed_rows(model: Any) -> bool:
    """Return True if two sequences in one row get the logits of each alone."""
    tokens = _probe(model, _FIRST + _SECOND)
    segments = torch.tensor([[0] * _FIRST + [1] * _SECOND])
    with torch.no_grad():
        try:
            both = model(tokens, position_ids=positions_of(segments).to(tokens.device), use_cache=False).logits
        except (TypeError, ValueError):
            return False
        alone = [model(part, use_cache=False).logits for part in tokens.split([_FIRST, _SECOND], dim=1)]
    apart = torch.cat(alone, dim=1)
    return bool((both - apart).abs().max() <= _CLOSE.get(apart.dtype, _CLOSE_NARROW) * apart.abs().max())


def head_of(model: Any) -> Callable[[Tensor], Tensor] | None:
    """Return logits as a function of the last hidden states; None if what a model makes of them is not known.

    With it, the logits of all tokens need never be in memory at once.
    """
    tokens, head = _probe(model, _FIRST), model.get_output_embeddings()
    if head is None or model.base_model is model:
        return None
    after = _afterwards(model.config)
    with torch.no_grad():
        hidden = getattr(model.base_model(tokens, use_cache=False), "last_hidden_state", None)
        # To the bit: scaled or bounded logits may be nearly the same while they are small.
        is_known = hidden is not None and torch.equal(after(head(hidden)), model(tokens, use_cache=False).logits)
    return (lambda hidden: after(head(hidden))) if is_known else None


def _afterwards(config: Any) -> Callable[[Tensor], Tensor]:
    """Return what a family does with the head's output, as far as its config.json states it."""
    cap, divisor, factor = (getattr(config, name, None) for name in _AFTERWARDS)
    if cap:
        return lambda logits: torch.tanh(logits / cap) * cap
    if divisor:
        return lambda logits: logits / divisor
    return (lambda logits: logits * factor) if factor else (lambda logits: logits)


def _probe(model: Any, count: int) -> Tensor:
    vocabulary = model.get_input_embeddings().num_embeddings
    return (torch.arange(1, count + 1, device=model.device) * 7 % vocabulary)[None]
