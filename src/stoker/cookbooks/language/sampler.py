"""Completions of prompts by a model, token by token: the likeliest one, or one drawn by chance from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stoker.cookbooks.language.data.chat import CHATML
from stoker.cookbooks.language.schemas import CompletionSample

Logits = Callable[[Tensor], Tensor]
"""Gives what comes after the last token of `[1, T]`: `[1, vocabulary]`, on the CPU."""


class Sampler:
    """Completes prompts. The same seed gives the same completions, whatever else is completed."""

    def __init__(
        self, logits: Logits, tokenizer: Any, *, longest: int, tokens: int, temperature: float, seed: int
    ) -> None:
        self._logits = logits
        self._tokenizer = tokenizer
        self._longest = longest
        self._tokens = tokens
        self._temperature = temperature
        self._seed = seed

    def complete(self, prompt: str, *, is_chat: bool, check: Callable[[], None] = lambda: None) -> CompletionSample:
        """Complete one prompt; as the first turn of a conversation, if the model was taught with such."""
        text, adds_specials = (self._asked(prompt), False) if is_chat else (prompt, True)
        shown: list[int] = self._tokenizer(text, add_special_tokens=adds_specials)["input_ids"]
        # Some tokenizers end what they read, and nothing would follow.
        ends = self._ends()
        while shown and shown[-1] in ends and not is_chat:
            shown.pop()
        draws = torch.Generator().manual_seed(self._seed)
        made: list[int] = []
        while shown + made and len(made) < self._tokens and len(shown) + len(made) < self._longest:
            check()
            token = self._next(self._logits(torch.tensor([shown + made]))[0], draws)
            if token in ends:
                break
            made.append(token)
        return CompletionSample(prompt=prompt, completion=str(self._tokenizer.decode(made, skip_special_tokens=True)))

    def _next(self, logits: Tensor, draws: torch.Generator) -> int:
        if self._temperature == 0:
            return int(logits.argmax())
        # From the likeliest down: nothing grows beyond numbers, however small the temperature.
        below = logits.double() - logits.double().max()
        chances = torch.softmax(below / self._temperature, dim=-1)
        return int(torch.multinomial(chances, 1, generator=draws))

    def _asked(self, prompt: str) -> str:
        template = self._tokenizer.chat_template or CHATML
        return str(
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                tokenize=False,
                add_generation_prompt=True,
                chat_template=None if self._tokenizer.chat_template else template,
            )
        )

    def _ends(self) -> frozenset[int]:
        named = [self._tokenizer.eos_token_id]
        for text in ("<|im_end|>", "<|eot_id|>"):
            number = self._tokenizer.convert_tokens_to_ids(text)
            if number is not None and number != self._tokenizer.unk_token_id:
                named.append(number)
        return frozenset(one for one in named if one is not None)


def is_chat(forms: Any) -> bool:
    """Return whether most of the data that a model was taught with are conversations."""
    if not isinstance(forms, dict) or not forms:
        return False
    return bool(max(forms, key=lambda form: forms[form]) == "messages")


def completed(
    sampler: Sampler, prompts: Sequence[str], forms: Any, check: Callable[[], None]
) -> list[CompletionSample]:
    """Complete all prompts, in order."""
    chats = is_chat(forms)
    return [sampler.complete(prompt, is_chat=chats, check=check) for prompt in prompts]
