from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cookbooks.language.sample import Sampler, is_chat
from tests.later import imported_later

with imported_later("torch"):
    import torch


END = 256


class Bytes:
    """A tokenizer of bytes, as far as sampling asks."""

    eos_token_id = END
    unk_token_id = None
    chat_template = None

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [*text.encode(), *([END] if add_special_tokens else [])]}

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return bytes(one for one in ids if one < END).decode(errors="replace")

    def convert_tokens_to_ids(self, text: str) -> int | None:
        return None

    def apply_chat_template(self, messages: list[dict[str, str]], **how: Any) -> str:
        assert how["chat_template"] is not None
        return f"<{messages[0]['content']}>"


def counting(tokens: Any) -> Any:
    """Says the byte after the last one; after `d`, the end."""
    made = torch.full((1, 260), -20.0)
    last = int(tokens[0, -1])
    made[0, END if last == ord("d") else last + 1] = 20.0
    return made


def sampler(logits: Any = counting, *, longest: int = 100, **said: Any) -> Sampler:
    drawing = SimpleNamespace(**{"tokens": 10, "temperature": 0.0, "seed": 0, **said})
    return Sampler(logits, Bytes(), drawing, ends=frozenset({END}), longest=longest)


def test_the_likeliest_tokens_are_taken_until_the_end():
    assert sampler().complete("a", is_chat=False) == {"prompt": "a", "completion": "bcd"}


def test_no_more_tokens_are_made_than_asked_for_or_than_the_model_reads():
    assert sampler(tokens=2).complete("a", is_chat=False)["completion"] == "bc"
    assert sampler(longest=3).complete("xa", is_chat=False)["completion"] == "b"
    assert sampler(longest=1).complete("xa", is_chat=False)["completion"] == ""


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 0.01])
def test_next_to_no_temperature_is_none(temperature):
    assert sampler(temperature=temperature).complete("a", is_chat=False)["completion"] == "bcd"


def test_a_chance_is_drawn_from_the_seed_alone():
    def even(tokens: Any) -> Any:
        return torch.where(torch.arange(260) < 200, 0.0, -1e9)[None]

    drawn = [sampler(even, temperature=1.0, seed=seed).complete("a", is_chat=False)["completion"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_prompt_for_a_model_of_conversations_is_its_first_turn():
    seen = []

    def watched(tokens: Any) -> Any:
        seen.append(bytes(tokens[0].tolist()).decode())
        return counting(tokens)

    sampler(watched, tokens=1).complete("hi", is_chat=True)
    assert seen == ["<hi>"]


def test_an_empty_prompt_has_no_completion():
    assert sampler().complete("", is_chat=False)["completion"] == ""


def test_stopping_is_heard_between_tokens():
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        sampler().complete("a", is_chat=False, check=stop)


@pytest.mark.parametrize(
    ("forms", "answer"),
    [
        ({"messages": 3, "text": 1}, True),
        ({"messages": 1, "text": 3}, False),
        ({}, False),
        (None, False),
        ({"messages": 1, "text": "x"}, False),
    ],
)
def test_most_of_the_data_say_whether_it_is_conversations(forms, answer):
    assert is_chat({"forms": forms}) is answer
