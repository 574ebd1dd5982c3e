"""Conversations: rendered as in training, ended where the base ends a turn, and kept for all models or for none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cookbooks.language.bundled import TinyShape, bundled_base, write_base
from stoker.cookbooks.language.chat import (
    BaseChoices,
    ChatModel,
    ChatSession,
    ChatSetup,
    agreed_choices,
    choices_over,
    trained_with,
)
from stoker.cookbooks.language.checks import find_base
from stoker.cookbooks.language.conversations import end_tokens
from stoker.cookbooks.language.reading import ChatMessage, InvalidLines, read_texts
from stoker.cookbooks.language.sample import Sampler
from stoker.cookbooks.language.schemas import LanguageTrainingRecord, read_answers
from stoker.core.errors import BadInput
from stoker.core.frozen import changed
from tests.later import imported_later

pytest.importorskip("tokenizers")
if find_spec("transformers") is None:
    pytest.skip("there is no transformers here", allow_module_level=True)

with imported_later("torch"):
    import torch

    from stoker.cookbooks.language.tokens import ExampleTokeniser, TokeniseOptions, open_tokenizer
    from tests.unit.cookbooks.language.engine.general_bases import general_base

END, BEGIN, TURN_CLOSE = 256, 257, 258
BEGIN_TEXT = "<|begin|>"
TURN_END = 262
"""A token that has no name in the bundled tokenizer."""
SEVERAL = [{"name": "tool_use", "template": "{{ 1 / 0 }}"}, {"name": "rag", "template": "{{ 1 / 0 }}"}]


def setup_of(folder: Path | str, *names: str, **more: Any) -> ChatSetup:
    given: dict[str, Any] = {
        "base": (base := find_base(str(folder))),
        "context": base.positions,
        "models": tuple(ChatModel(name=name, adapter=None) for name in names or ("base",)),
        "on_gpu": False,
        "dtype": "float32",
        "base_dtype": "auto",
        "path": "auto",
        "tokens": 40,
        "temperature": 0.0,
        "seed": 0,
        "is_plain": False,
    }
    return ChatSetup(**{**given, **more})


class Scripted:
    """Logits by which models answer the same tokens again and again, and what they were shown."""

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = answer
        self.shown: list[list[int]] = []
        self._begun = 0

    def __call__(self, tokens: Any) -> Any:
        row = tokens[0].tolist()
        if not self.shown or row[: len(self.shown[-1])] != self.shown[-1] or len(row) != self._begun + 1:
            self.shown.append(row)
        self._begun = len(row)
        place = len(row) - len(self.shown[-1])
        made = torch.full((1, 264), -20.0)
        made[0, self.answer[min(place, len(self.answer) - 1)]] = 20.0
        return made


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], Scripted]:
    def script(answer: Sequence[int]) -> Scripted:
        made = Scripted(answer)
        monkeypatch.setattr("stoker.cookbooks.language.chat.slot_logits", lambda *_: made)
        return made

    return script


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_that_are_not_finite_are_no_answer(
    monkeypatch: pytest.MonkeyPatch, value: str, temperature: float
) -> None:
    odd = torch.full((1, 264), float(value))
    monkeypatch.setattr("stoker.cookbooks.language.chat.slot_logits", lambda *_: lambda _: odd)
    session = ChatSession(setup_of("tiny", temperature=temperature), lambda _: None)
    with pytest.raises(BadInput, match="logits are not finite"):
        list(session.answer("base", "hi"))


def without_template(folder: Path, *, template: Any = None) -> Path:
    """Write a tiny base whose tokenizer knows nothing of ChatML, and adds its first token to every text."""
    write_base(folder, TinyShape(hidden=32))
    text = (folder / "tokenizer.json").read_text()
    tokenizer = json.loads(text.replace("<|im_start|>", BEGIN_TEXT).replace("<|im_end|>", "<|of_no_use|>"))
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": BEGIN_TEXT, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BEGIN_TEXT: {"id": BEGIN_TEXT, "ids": [BEGIN], "tokens": [BEGIN_TEXT]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    del config["chat_template"]
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def trained_tokens(folder: Path, messages: Sequence[ChatMessage], scratch: Path) -> list[int]:
    """Return the tokens that a training makes of a conversation."""
    line = json.dumps({"messages": [{"role": one.role, "content": one.content} for one in messages]})
    options = TokeniseOptions(max_seq_len=512, train_on="completion", holdout_percent=5.0, vocabulary=264)
    with ExampleTokeniser(open_tokenizer(folder), options, scratch) as work:
        list(work.take(read_texts([line]), InvalidLines("train.jsonl")))
        return np.asarray(work.made("train.jsonl").example(0)[0]).tolist()


@pytest.mark.parametrize("template", [None, SEVERAL])
def test_a_conversation_has_the_tokens_that_it_had_in_training(
    template: Any, tmp_path: Path, scripted: Callable[[Sequence[int]], Scripted]
) -> None:
    folder = without_template(tmp_path / "base", template=template)
    turns = [ChatMessage(role="user", content="2+3="), ChatMessage(role="assistant", content="5")]
    learned = trained_tokens(folder, turns, tmp_path)
    assert learned[0] == BEGIN
    assert learned[-1] == END
    model = scripted([*b"5<|im_end|>\n", END])
    session = ChatSession(setup_of(folder), note=pytest.fail)
    assert "".join(session.answer("base", "2+3=")) == "5"
    answered = model.shown[0]
    assert learned[: len(answered)] == answered
    list(session.answer("base", "and"))
    assert model.shown[1][: len(learned) - 1] == learned[:-1], "the end of the first answer is there once"


def test_the_text_of_an_end_is_no_part_of_an_answer_and_is_never_shown_in_part(
    tmp_path: Path, scripted: Callable[[Sequence[int]], Scripted]
) -> None:
    folder = without_template(tmp_path / "base")
    scripted([*b"a<|im_art|> b<|im_end|>\nc", END])
    pieces = list(ChatSession(setup_of(folder), note=pytest.fail).answer("base", "hi"))
    assert "".join(pieces) == "a<|im_art|> b"
    assert not any(piece.endswith("<") for piece in pieces)
    scripted([*b"half <|im", END])
    session = ChatSession(setup_of(folder), note=pytest.fail)
    assert "".join(session.answer("base", "hi")) == "half <|im", "it was no end"
    scripted([*b"a<|im_end|>b", END])
    plain = ChatSession(setup_of(folder, is_plain=True), note=pytest.fail)
    assert "".join(plain.answer("base", "hi")) == "a<|im_end|>b"


def test_a_sample_of_a_conversation_ends_where_its_answer_does(tmp_path: Path) -> None:
    folder = without_template(tmp_path / "base")
    logits = Scripted([*b"5<|im_end|>\n", END])
    sampler = Sampler(logits, open_tokenizer(folder), setup_of(folder), ends=frozenset({END}), longest=200)
    assert sampler.complete("2+3=", is_chat=True)["completion"] == "5"


def test_an_answer_ends_where_the_base_ends_a_turn(
    tmp_path: Path, scripted: Callable[[Sequence[int]], Scripted]
) -> None:
    """As Gemma and Phi do, whose tokenizers call another token the end of text."""
    folder = general_base(tmp_path / "gemma", "gemma")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, TURN_END]}))
    assert find_base(str(folder)).differs
    scripted([*b"five", TURN_END, *b" and on"])
    session = ChatSession(setup_of(folder), note=pytest.fail)
    assert "".join(session.answer("base", "hi")) == "five"


@pytest.mark.parametrize(
    ("generation", "config", "ends", "note"),
    [
        ({"eos_token_id": 262}, 2, {262}, ""),
        ({"eos_token_id": [262, 261]}, 2, {261, 262}, ""),
        ({}, 2, set(), ""),
        (None, [2, 261], {2, 261}, ""),
        (None, None, set(), ""),
        ({"eos_token_id": [262, True, "261", -1, 264, 1.0]}, 2, {262}, ""),
        ({"eos_token_id": 999}, 2, set(), "not in its vocabulary of 264"),
        ([], 2, set(), ""),
        ("{", 2, set(), "generation_config.json of the base can't be read"),
        ("[" * 100_000, 2, set(), "generation_config.json of the base can't be read"),
    ],
)
def test_ends_are_read_from_the_files_of_a_base_as_far_as_they_are_tokens(
    generation: Any, config: Any, ends: set[int], note: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    if generation is not None:
        text = generation if isinstance(generation, str) else json.dumps(generation)
        (tmp_path / "generation_config.json").write_text(text)
    found = end_tokens(tmp_path, open_tokenizer(bundled_base("tiny")), 264)
    assert found.tokens == {END, TURN_CLOSE} | ends
    assert (found.note == "") is (note == "")
    assert note in found.note


def test_many_tokens_for_an_answer_leave_the_conversation_half_of_what_the_base_reads(
    tmp_path: Path, scripted: Callable[[Sequence[int]], Scripted]
) -> None:
    folder = write_base(tmp_path / "base", TinyShape(hidden=32, positions=128))
    model = scripted([*b"ok", TURN_CLOSE])
    notes: list[str] = []
    session = ChatSession(setup_of(folder, tokens=4_000), note=notes.append)
    list(session.answer("base", "one"))
    list(session.answer("base", "two"))
    assert model.shown[1][: len(model.shown[0])] == model.shown[0], "the first turn is still there"
    assert notes == []
    for _ in range(4):
        list(session.answer("base", "a longer prompt"))
    assert b"one" not in bytes(token for token in model.shown[-1] if token < 256)
    (note,) = notes
    assert note.startswith("The conversation and an answer of 64 tokens are longer than its context of 128 tokens: ")


def record_of(folder: Path, *, device: str = "cpu", dtype: str = "float32", **settings: Any) -> Path:
    folder.mkdir()
    facts: dict[str, Any] = dict.fromkeys(LanguageTrainingRecord.__required_keys__)
    (folder / "training.json").write_text(json.dumps({**facts, "device": device, "dtype": dtype, "settings": settings}))
    return folder


def test_a_base_is_computed_as_in_the_training_and_what_differs_is_noted(tmp_path: Path) -> None:
    four = trained_with(record_of(tmp_path / "four", base_dtype="nf4", path="general", dtype="float32"))
    assert four == BaseChoices(base_dtype="nf4", path="general")
    plain = trained_with(record_of(tmp_path / "plain", device="cuda", dtype="bfloat16", base_dtype="auto"))
    assert plain == BaseChoices() == trained_with(tmp_path)
    wide = trained_with(record_of(tmp_path / "wide", device="cuda", dtype="float32"))
    assert wide == BaseChoices(dtype="float32")
    odd = trained_with(record_of(tmp_path / "odd", dtype="float8", base_dtype=["nf4"], path=None))
    assert odd == BaseChoices()
    assert agreed_choices({"a": four, "b": four}) == (four, ())
    choices, notes = agreed_choices({"a": plain, "b": four})
    assert choices == BaseChoices()
    assert notes == (
        "trained with another base_dtype (b with nf4): all answer with base_dtype=auto",
        "trained with another path (b with general): all answer with path=auto",
    )


def test_what_a_base_can_not_take_of_a_training_is_left_out_and_noted(tmp_path: Path) -> None:
    plain = find_base(str(write_base(tmp_path / "base", TinyShape())))
    on_disk, other = changed(plain, quantised="nf4"), changed(plain, differs="its architecture gpt2 is another")
    choices = BaseChoices(base_dtype="int8", path="general")
    assert choices_over(plain, choices) == (choices, ())
    found, notes = choices_over(on_disk, choices)
    assert found == BaseChoices()
    assert notes[0] == (
        "trained with base_dtype=int8, which base can't take (it is nf4 on disk): answers with base_dtype=auto"
    )
    assert len(notes) == 2
    fast = BaseChoices(base_dtype="nf4", path="fast")
    assert choices_over(on_disk, fast) == (fast, ())
    assert choices_over(other, fast)[0] == BaseChoices(base_dtype="nf4")


def test_answers_of_another_machine_are_checked(tmp_path: Path) -> None:
    record = {"base": "tiny", "path": "fast", "answers": [{"model": "a", "prompt": "x", "completion": "y"}]}
    (tmp_path / "answers.json").write_text(json.dumps(record))
    assert read_answers(tmp_path) == record
    invalid: list[Any] = [{**record, "answers": {}}, {**record, "answers": [{"prompt": "x"}]}, {"answers": []}, []]
    for odd in invalid:
        (tmp_path / "answers.json").write_text(json.dumps(odd))
        with pytest.raises(BadInput, match="answers"):
            read_answers(tmp_path)


def test_a_prompt_is_a_turn_of_all_models_or_of_none(scripted: Callable[[Sequence[int]], Scripted]) -> None:
    model = scripted([*b"ok", TURN_CLOSE])
    session = ChatSession(setup_of("tiny", "one", "two"), note=pytest.fail)

    def answered(prompt: str, stops_at: str = "") -> None:
        with session.turn():
            for name in session.names:
                answer = session.answer(name, prompt)
                if name == stops_at:
                    next(answer)
                    answer.close()
                    raise KeyboardInterrupt
                list(answer)

    answered("first")
    with pytest.raises(KeyboardInterrupt):
        answered("forgotten", "one")
    model.shown.clear()
    with pytest.raises(KeyboardInterrupt):
        answered("kept", "two")
    answered("last")
    texts = [bytes(token for token in row if token < 256).decode() for row in model.shown]
    assert ["forgotten" in text for text in texts] == [False] * len(texts)
    assert ["kept" in text for text in texts[-2:]] == [True, True]
    assert texts[-1] == texts[-2].replace("kept\nassistant\nok", "kept\nassistant\no")


def test_a_prompt_that_was_interrupted_or_refused_before_its_answer_is_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ChatSession(setup_of("tiny", tokens=4), note=pytest.fail)
    first = "".join(session.answer("base", "2+3="))
    session.reset()

    def interrupted(*_: object) -> list[int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Sampler, "chat_tokens", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(session.answer("base", "hello"))
    with pytest.raises(BadInput, match="the base reads"):
        list(session.answer("base", "x" * 5_000))
    assert "".join(session.answer("base", "2+3=")) == first
