"""Tokens out of lines: what is learned, what is cut, what is held out; beside transformers' own chat tokens."""

from __future__ import annotations

import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.authoring import InputPath, StageContext, StageInputError, TemplateFailed
from stoker.cookbooks.language.arguments import IGNORED
from stoker.cookbooks.language.bundled import TinyShape, bundled_base, data_lines, write_base
from stoker.cookbooks.language.examples import Cursor
from stoker.cookbooks.language.kinds import Examples
from stoker.cookbooks.language.reading import InvalidLines, layout_of, read_texts
from stoker.cookbooks.language.tokenise import TokeniseArgs, tokenise
from stoker.engine.stage import perform

tokenizers = pytest.importorskip("tokenizers")
# Looked for and not imported: every test process collects this module, and importing it takes more than a second.
if find_spec("transformers") is None:
    pytest.skip("there is no transformers here", allow_module_level=True)
tokenising = pytest.importorskip("stoker.cookbooks.language.tokens")

END, OPEN, CLOSE = 256, 257, 258
TAGGED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ message['content'] }}<|im_end|>"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return bundled_base("tiny")


@pytest.fixture
def tokenizer(folder) -> Any:
    return tokenising.open_tokenizer(folder)


def _folder() -> Path:
    """Return a new folder below that of this test process."""
    return Path(tempfile.mkdtemp())


def _made(tokenizer: Any, *lines: dict[str, Any] | str, name: str = "train.jsonl", **wanted: Any) -> Any:
    said = {"max_seq_len": 512, "train_on": "completion", "holdout_percent": 5.0, "vocabulary": 264, **wanted}
    faults = InvalidLines(name)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    with tokenising.ExampleTokeniser(tokenizer, tokenising.TokeniseOptions(**said), _folder()) as work:
        for _ in work.take(read_texts(texts), faults):
            pass
        faults.refuse()
        return work.made(name)


def _learned(tokenizer: Any, examples: Any, number: int = 0) -> str:
    ids, trained = examples.example(number)
    return tokenizer.decode(ids[trained])


def _chat(*contents: str) -> dict[str, Any]:
    roles = ["system", *["user", "assistant"] * len(contents)]
    return {"messages": [{"role": role, "content": one} for role, one in zip(roles, contents, strict=False)]}


def test_plain_text_is_learned_whole_and_ends(tokenizer):
    made = _made(tokenizer, {"text": "héllo"})
    ids, trained = made.example(0)
    assert ids.tolist() == [*"héllo".encode(), END]
    assert trained.all()


def test_only_the_completion_is_learned_and_that_it_ends(tokenizer):
    made = _made(tokenizer, {"prompt": "é? ", "completion": "yes"})
    assert _learned(tokenizer, made) == "yes<|endoftext|>"
    assert tokenizer.decode(made.example(0)[0]) == "é? yes<|endoftext|>"


def test_prompts_are_learned_too_if_asked(tokenizer):
    made = _made(tokenizer, {"prompt": "a", "completion": "b"}, train_on="all")
    assert _learned(tokenizer, made) == "ab<|endoftext|>"
    chat = _made(tokenizer, _chat("s", "u", "a"), train_on="all")
    assert chat.example(0)[1].all()


@pytest.mark.parametrize("line", [json.loads(one) for one in data_lines("chats")[:3]])
def test_chats_have_the_tokens_that_transformers_gives_them(tokenizer, line):
    made = _made(tokenizer, line)
    theirs = tokenizer.apply_chat_template(line["messages"], tokenize=True, return_dict=True)["input_ids"]
    assert made.example(0)[0].tolist() == theirs
    answers = [one["content"] for one in line["messages"] if one["role"] == "assistant"]
    assert _learned(tokenizer, made) == "".join(f"{one}<|im_end|>\n" for one in answers)


def test_a_template_that_marks_its_answers_is_believed(tokenizer):
    tokenizer.chat_template = TAGGED
    line = _chat("be brief", "hi", "ho", "again", "né")
    made = _made(tokenizer, line)
    theirs = tokenizer.apply_chat_template(
        line["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, trained = made.example(0)
    assert ids.tolist() == theirs["input_ids"]
    assert trained.astype(int).tolist() == theirs["assistant_masks"]
    assert _learned(tokenizer, made) == "ho<|im_end|>né<|im_end|>"


def test_without_a_template_chats_are_written_as_chatml_and_that_is_told(tokenizer):
    tokenizer.chat_template = None
    made = _made(tokenizer, _chat("s", "u", "a"))
    assert made.facts["template"] == "chatml"
    assert made.facts["notes"][0] == "The tokenizer has no chat template: conversations were written as ChatML."
    assert _learned(tokenizer, made) == "a<|im_end|>\n<|endoftext|>"


def _pair(chosen: str, rejected: str, prompt: str = "q? ") -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_both_answers_of_a_pair_are_learned_and_pairs_are_held_out_whole(tokenizer):
    made = _made(tokenizer, *(_pair(f"a{number}", f"b{number}") for number in range(10)), is_paired=True)
    assert [_learned(tokenizer, made, number) for number in (4, 5)] == ["a2<|endoftext|>", "b2<|endoftext|>"]
    assert (made.facts["examples"], made.facts["held_out"], made.sides) == (10, 1, 2)
    assert len(made.kept) == 9
    assert made.facts["forms"] == {"pair": 10}


@pytest.mark.parametrize("template", [None, TAGGED])
def test_of_a_conversation_in_a_pair_only_what_follows_the_prompt_is_learned(tokenizer, template):
    tokenizer.chat_template = template or tokenizer.chat_template
    prompt = _chat("s", "one", "first", "two")["messages"]
    answers = [[{"role": "assistant", "content": one}] for one in ("good", "bad")]
    line = {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]}
    made = _made(tokenizer, line, _pair("a", "b"), is_paired=True)
    # Lines with and without a chat template are not tokenised at the same time; both sides of a pair are.
    learned = [_learned(tokenizer, made, number).strip() for number in range(4)]
    assert sorted(learned) == ["a<|endoftext|>", "b<|endoftext|>", "bad<|im_end|>", "good<|im_end|>"]
    ends = [made.example(number)[0].tolist() for number in range(4)]
    for side, answer in zip(("good", "bad"), answers, strict=True):
        whole = tokenizer.apply_chat_template([*prompt, *answer], tokenize=True, return_dict=True)["input_ids"]
        assert ends[learned.index(f"{side}<|im_end|>")] == whole


def test_pairs_without_two_answers_once_they_are_cut_are_skipped_and_counted(tokenizer):
    lines = [
        _pair("a", "b"),
        _pair("same", "same"),
        _pair("a", " "),
        _pair("0123456789 yes", "0123456789 no"),
        _pair("a", "b", prompt="long enough."),
    ]
    made = _made(tokenizer, *lines, is_paired=True, max_seq_len=12)
    facts = made.facts
    assert (facts["examples"], facts["skipped"], facts["cut"]) == (1, 4, 2)
    assert "4 lines were skipped, nothing to learn in them: train.jsonl:2, train.jsonl:3" in facts["notes"][1]
    assert sorted(facts["skipped_lines"]) == [2, 3, 4, 5]


def test_prompts_of_chosen_texts_have_labels_where_they_are_learned_too(tokenizer):
    lines = [_pair("yes", "no"), _pair("a", "b", prompt="?")]
    answers_only, whole = (
        _made(tokenizer, *lines, is_paired=True, train_on=train_on) for train_on in ("completion", "all")
    )
    assert answers_only.trained.tolist() == whole.trained.tolist()
    number = int(whole.kept[0])
    for made, prompt in ((answers_only, 0), (whole, len(lines[number]["prompt"]) - 1)):
        rows = Cursor(made, row_tokens=64, batch=1, seed=0).next()
        assert rows.answers is not None
        learned = [int(made.example(2 * number + side)[1].sum()) for side in (0, 1)]
        assert (rows.labels != IGNORED).sum(axis=1).tolist() == [learned[0] + prompt, learned[1]]
        assert rows.answers.chosen_tokens == learned[0] + prompt
        assert [(rows.answers.places[side] == side).sum() for side in (0, 1)] == learned
        assert rows.answers.texts.tolist() == [2 * number, 2 * number + 1]


def test_a_template_that_changes_earlier_turns_loses_only_those(tokenizer):
    tokenizer.chat_template = (
        "{% for message in messages %}[{{ message['role'] }}]"
        "{% if loop.last or message['role'] != 'assistant' %}{{ message['content'] }}{% else %}…{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    made = _made(tokenizer, _chat("s", "one", "first answer", "two", "second answer"))
    assert _learned(tokenizer, made) == "second answer"
    assert any("1 answer was not learned" in note for note in made.facts["notes"])


def test_a_template_that_hides_part_of_a_turn_still_shows_where_it_begins(tokenizer):
    # As Qwen3's does: what an earlier turn was thought to be is left out once others follow.
    tokenizer.chat_template = (
        "{% for message in messages %}[{{ message['role'] }}]"
        "{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    made = _made(tokenizer, _chat("s", "u", "<think>x</think>yes", "v", "<think>y</think>no"))
    assert _learned(tokenizer, made) == "<think>y</think>no"


@pytest.mark.parametrize(
    ("template", "said", "hint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate", "change the conversation, or"),
        ("{{ messages[0].nothing.there }}", "UndefinedError: 'dict object' has no attribute 'nothing'", "correct the"),
        ("a\n{% if %}", "TemplateSyntaxError: Expected an expression, got 'end of statement block' (its line 2)", "co"),
    ],
)
def test_a_template_that_fails_is_told_as_that_with_the_line_and_its_own_words(tokenizer, template, said, hint):
    tokenizer.chat_template = template
    lines = [{"text": "fine"}, _chat("s", "u", "a"), {"text": "fine"}, _chat("s", "u", "b")]
    with pytest.raises(TemplateFailed) as raised:
        _made(tokenizer, *lines)
    begin = "the base's chat template failed for train.jsonl:2, nor another one (line 4): "
    assert raised.value.message == begin + said
    assert raised.value.hint.startswith(hint)


def test_long_examples_are_cut_and_counted(tokenizer):
    made = _made(tokenizer, {"text": "x" * 100}, {"text": "y" * 7}, {"text": "z" * 8}, max_seq_len=8)
    assert made.lengths.tolist() == [8, 8, 8]
    assert made.facts["cut"] == 2
    assert made.facts["notes"] == ["2 examples were cut at 8 tokens."]
    assert made.facts["longest"] == 8


def test_empty_examples_are_skipped_counted_and_named(tokenizer):
    lines = [{"text": ""}, {"text": "fine"}, {"prompt": "x" * 9, "completion": "beyond"}, {"text": "more"}]
    made = _made(tokenizer, *lines, max_seq_len=8)
    assert made.facts["examples"] == 2
    assert made.facts["skipped"] == 2
    assert "2 lines were skipped, nothing to learn in them: train.jsonl:1, train.jsonl:3" in made.facts["notes"]


def test_nothing_to_learn_at_all_is_refused(tokenizer):
    with pytest.raises(StageInputError, match=r"nothing to learn in train\.jsonl: its 2 lines have nothing"):
        _made(tokenizer, {"text": ""}, {"prompt": "a", "completion": ""})
    with pytest.raises(StageInputError, match="it has nothing but empty lines"):
        _made(tokenizer)


def test_tokens_that_the_model_has_no_rows_for_are_refused(tokenizer):
    with pytest.raises(StageInputError, match="the tokenizer has token 256; the model's vocabulary has 256"):
        _made(tokenizer, {"text": "a"}, vocabulary=256)


@pytest.mark.parametrize(
    ("count", "percent", "held"), [(1, 5.0, 0), (2, 50.0, 1), (10, 5.0, 1), (100, 5.0, 5), (3, 50.0, 2)]
)
def test_a_share_is_held_out_at_least_one_and_never_all(tokenizer, count, percent, held):
    made = _made(tokenizer, *({"text": f"line {number}"} for number in range(count)), holdout_percent=percent)
    assert made.facts["held_out"] == len(made.held_out) == held
    assert sorted([*made.held_out, *made.kept]) == list(range(count))


def test_the_same_lines_are_held_out_everywhere(tokenizer):
    made = _made(tokenizer, *({"text": f"line {number}"} for number in range(40)))
    assert made.held_out.tolist() == [17, 38]


def test_learned_tokens_are_counted_as_labels_are(tokenizer):
    made = _made(tokenizer, {"text": "abc"}, {"prompt": "ab", "completion": "c"})
    assert made.facts["trained_tokens"] == 3 + 2


def test_very_many_lines_are_taken_in_parts(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenising, "_LINES_AT_ONCE", 3)
    wanted = tokenising.TokeniseOptions(max_seq_len=64, train_on="all", holdout_percent=5.0, vocabulary=None)
    lines = read_texts([json.dumps({"text": f"{number}"}) for number in range(7)])
    with tokenising.ExampleTokeniser(tokenizer, wanted, _folder()) as work:
        assert list(work.take(lines, InvalidLines("x"))) == [3, 6, 7]
        made = work.made("x")
    assert [tokenizer.decode(made.example(number)[0][:-1]) for number in range(7)] == list("0123456")


def _job(out: Path, said: list[dict[str, Any]]) -> StageContext:
    out.mkdir()
    return StageContext(node="tokenise", out=str(out), emit=said.append, is_cancelled=lambda: False)


def _stage(folder: Path, out: Path, said: list[dict[str, Any]], **args: Any) -> Examples:
    given = TokeniseArgs(base=InputPath(str(folder)), base_files=(), **args)
    made: Examples = perform(tokenise, _job(out, said), {}, given)
    Examples.check_folder(str(out))
    return made


def test_the_stage_writes_what_the_kind_reads(folder, tmp_path):
    said: list[dict[str, Any]] = []
    examples = _stage(folder, tmp_path / "out", said, bundled="sums", vocabulary=264).load()
    assert examples.facts["examples"] == 144
    assert examples.tokens.dtype == np.int32
    assert {"told": "144 examples, 2,297 tokens · 5 % held out"} in said


def test_the_stage_reads_a_users_file_and_tells_all_that_is_wrong(folder, tmp_path):
    data = tmp_path / "mine.jsonl"
    data.write_text('{"text": "a"}\nnothing\n{"text": 1}\n')
    with pytest.raises(StageInputError) as raised:
        _stage(folder, tmp_path / "out", [], file=InputPath(str(data)))
    assert raised.value.message.startswith("2 invalid lines in mine.jsonl:\nmine.jsonl:2: ")
    text = tmp_path / "mine.txt"
    text.write_text("one\n")
    said: list[dict[str, Any]] = []
    _stage(folder, tmp_path / "one", said, file=InputPath(str(text)), layout=layout_of(text))
    assert any(str(one.get("told")).startswith("1 example, ") for one in said)
    text.write_text("one\n\ntwo\n")
    made = _stage(folder, tmp_path / "text", [], file=InputPath(str(text)), layout=layout_of(text))
    assert made.load().facts["forms"] == {"text": 2}


def test_the_stage_refuses_a_base_without_a_usable_tokenizer(tmp_path):
    folder = write_base(tmp_path / "base")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(StageInputError, match="the tokenizer of base can't be opened"):
        _stage(folder, tmp_path / "out", [], bundled="sums")


def test_a_token_that_reaches_into_the_completion_is_learned_and_one_before_every_text_is_not(tmp_path):
    words = {"<s>": 0, "</s>": 1, "▁": 2, "t": 3, "h": 4, "e": 5, "c": 6, "a": 7, "▁c": 8, "at": 9, "▁cat": 10}
    merges = [("▁", "c"), ("a", "t"), ("▁c", "at")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.add_special_tokens(["<s>", "</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    examples = _made(tokenising.open_tokenizer(tmp_path), {"prompt": "the c", "completion": "at"})
    ids, trained = examples.example(0)
    assert ids.tolist() == [0, 2, 3, 4, 5, 10, 1]
    assert trained.tolist() == [False] * 5 + [True, True]
    assert examples.facts["pad"] == 1


@pytest.mark.slow  # it imports what `AutoTokenizer` imports
@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "Qwen2Tokenizer", None])
def test_a_tokenizer_gives_what_transformers_own_choice_gives(tmp_path, name):
    from transformers import AutoTokenizer

    folder = write_base(tmp_path, TinyShape(family="qwen2"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "tokenizer_class": name}))
    ours, theirs = tokenising.open_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    line = json.loads(data_lines("chats")[0])["messages"]
    for text in ("Größe: 3\u00a0kg\n\n  ok", "<|im_end|>x<|endoftext|>", "日本語 🦊"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.apply_chat_template(line, tokenize=False) == theirs.apply_chat_template(line, tokenize=False)
    assert (ours.eos_token_id, ours.pad_token_id) == (theirs.eos_token_id, theirs.pad_token_id)


def test_the_stage_refuses_to_work_on_nothing(folder, tmp_path):
    with pytest.raises(StageInputError, match="neither a file nor bundled data"):
        _stage(folder, tmp_path / "out", [])
