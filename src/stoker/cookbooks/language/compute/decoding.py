"""Token after token of one sequence: keys and values of earlier tokens are kept, not computed again."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from stoker.cookbooks.language.arguments import CACHE_TOKENS


class KeyValueCache:
    """The keys and values of one sequence, layer by layer."""

    def __init__(self) -> None:
        self.length = 0
        """Tokens whose keys and values are kept."""
        self._layers: dict[int, Tensor] = {}
        """Of each layer `[2, capacity, kv_heads, head_dim]`."""

    def cut(self, length: int) -> int:
        """Forget tokens from a place on; return how many are kept."""
        self.length = min(self.length, length)
        return self.length

    def attend(self, layer: int, qkv: Tensor, heads: int, window: int) -> Tensor:
        """Keep the keys and values of new tokens; return the attention output, `[1, T, heads · head_dim]`.

        `qkv` is `[1, T, heads, head_dim]`, with positions applied. `length` stays: all layers see the same.
        """
        count, past = qkv.shape[1], self.length
        kv_heads = (qkv.shape[2] - heads) // 2
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=2)
        kept = self._room(layer, k, past + count)
        kept[0, past : past + count], kept[1, past : past + count] = k[0], v[0]
        queries, keys, values = (one.transpose(1, 2) for one in (q, *kept[:, None, : past + count]))
        is_first = past == 0 and not window
        mask = None if is_first else _mask(count, past, window, qkv.device)
        seen = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=is_first, enable_gqa=heads != kv_heads
        )
        return seen.transpose(1, 2).reshape(1, count, -1)

    def _room(self, layer: int, keys: Tensor, needed: int) -> Tensor:
        kept = self._layers.get(layer)
        if kept is None or kept.shape[1] < needed:
            capacity = max(CACHE_TOKENS, 1 << (needed - 1).bit_length())
            larger = torch.empty(2, capacity, *keys.shape[2:], dtype=keys.dtype, device=keys.device)
            if kept is not None:
                larger[:, : self.length] = kept[:, : self.length]
            kept = self._layers[layer] = larger
        return kept


def _mask(count: int, past: int, window: int, device: torch.device) -> Tensor | None:
    """Return which keys each new token sees; None: all."""
    if count == 1 and not 0 < window < past + 1:
        return None
    key, query = torch.arange(past + count, device=device), torch.arange(past, past + count, device=device)
    sees = key[None, :] <= query[:, None]
    return sees & (query[:, None] - key[None, :] < window) if window else sees


class ModuleCache:
    """What a module of transformers keeps of a sequence; nothing if it can't continue one."""

    def __init__(self) -> None:
        self.length = 0
        self._past: Any = None

    def cut(self, length: int) -> int:
        """Forget tokens from a place on, or all: not every module's state can be cut. Return how many are kept."""
        if length < self.length:
            self.length, self._past = 0, None
        return self.length

    def call(self, module: Any, tokens: Tensor) -> Any:
        """Return what a module makes of tokens that continue the sequence; logits at least of the last one."""
        before, past = self.length, self._past
        # It is changed in place, and Ctrl-C may come between two layers.
        self.length, self._past = 0, None
        if "past_key_values" not in signature(module.forward).parameters:
            return module(input_ids=tokens, use_cache=False)
        # The logits of all tokens of a long prompt take much memory; only the last ones are asked for.
        last = {"logits_to_keep": 1} if "logits_to_keep" in signature(module.forward).parameters else {}
        made = module(input_ids=tokens, use_cache=True, past_key_values=past, **last)
        self._past = made.past_key_values
        self.length = before + tokens.shape[1] if self._past is not None else 0
        return made


SequenceCache = KeyValueCache | ModuleCache


class CachedLogits:
    """The logits after the last token of a sequence; a beginning that a cache holds is not computed again."""

    def __init__(self, compute: Callable[[Tensor, Any], Tensor], cache: SequenceCache) -> None:
        """`compute` returns the logits after tokens, `[1, T]`, that continue those of the cache."""
        self._compute = compute
        self._cache = cache
        self._seen: list[int] = []

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the logits after `[1, T]`: `[1, vocabulary]`."""
        row: list[int] = tokens[0].tolist()
        same = takewhile(lambda pair: pair[0] == pair[1], zip(row[:-1], self._seen, strict=False))
        known = self._cache.cut(sum(1 for _ in same))
        # What follows is overwritten layer by layer, and Ctrl-C may come between two of them.
        self._seen = row[:known]
        logits = self._compute(tokens[:, known:], self._cache)
        self._seen = row
        return logits
