"""Examples out of a user's file: every form, and everything that can be wrong with a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.authoring import StageInputError
from stoker.cookbooks.language import reading
from stoker.cookbooks.language.arguments import Layout
from stoker.cookbooks.language.reading import ChatMessage, InvalidLines, RawExample, of_one_kind, read_lines

GOOD = '{"text": "hello"}'
ASKS = {"role": "user", "content": "q"}
SAYS = [{"role": "assistant", "content": "a"}]


def _read(tmp_path: Path, content: str | bytes, layout: Layout = "jsonl") -> tuple[list[RawExample], InvalidLines]:
    path = tmp_path / "train.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    faults = InvalidLines(path.name)
    return list(read_lines(path, layout, faults)), faults


def _wrong(tmp_path: Path, line: str | bytes) -> str:
    raw = line.encode() if isinstance(line, str) else line
    lines, faults = _read(tmp_path, GOOD.encode() + b"\n" + raw + b"\n" + GOOD.encode())
    assert [one.number for one in lines] == [1, 3]
    with pytest.raises(StageInputError) as raised:
        faults.refuse()
    message = raised.value.message
    assert message.startswith("train.jsonl:2: ")
    return message.removeprefix("train.jsonl:2: ")


def test_three_forms_are_read_and_further_keys_are_left_alone(tmp_path):
    said = [
        '{"text": "a b", "source": [1, {"deep": null}]}',
        '{"prompt": "1+1=", "completion": "2", "id": 7}',
        '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "name": "x"}]}',
    ]
    content = "\n".join(said)
    lines, faults = _read(tmp_path, content)
    assert not faults
    assert lines == [
        RawExample(number=1, form="text", text="a b"),
        RawExample(number=2, form="completion", text="1+1=", completion="2"),
        RawExample(
            number=3,
            form="messages",
            messages=(ChatMessage(role="user", content="hi"), ChatMessage(role="assistant", content="ho")),
        ),
    ]


def _pairs(tmp_path: Path, *lines: Mapping[str, object]) -> list[RawExample]:
    read, faults = _read(tmp_path, "\n".join(map(json.dumps, lines)))
    assert not faults
    return read


def _says(*contents: str, first: str = "user") -> list[dict[str, str]]:
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    return [{"role": roles[place % 2], "content": one} for place, one in enumerate(contents)]


def test_pairs_are_read_as_texts_and_as_lists_of_messages_with_and_without_a_prompt(tmp_path):
    answers = {"chosen": _says("a", first="assistant"), "rejected": _says("b", first="assistant")}
    whole = {"chosen": _says("q", "a"), "rejected": _says("q", "b")}
    plain, cut, *chats = _pairs(
        tmp_path,
        {"prompt": "q ", "chosen": "a", "rejected": "b", "score": 1},
        {"chosen": "q is a", "rejected": "q is b"},
        {"prompt": _says("q"), **answers},
        whole,
        {"prompt": "q", **whole},
    )
    assert [(one.text, one.completion) for one in plain.sides] == [("q ", "a"), ("q ", "b")]
    assert [(one.text, one.completion) for one in cut.sides] == [("q is", " a"), ("q is", " b")]
    for one in chats:
        assert [[message.content for message in side.messages] for side in one.sides] == [["q", "a"], ["q", "b"]]
        assert [side.context for side in one.sides] == [1, 1]
    assert [one.form for one in (plain, cut, *chats)] == ["pair"] * 2 + ["chat_pair"] * 3


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "q", "chosen": "same", "rejected": "same"},
        {"prompt": "q", "chosen": " ", "rejected": "b"},
        {"prompt": "q", "chosen": "a", "rejected": ""},
        {"chosen": "q", "rejected": "q or not"},
        {"chosen": _says("q", "a"), "rejected": _says("q", "a")},
        {"chosen": _says("q", ""), "rejected": _says("q", "a")},
    ],
)
def test_of_a_pair_with_an_empty_side_or_equal_ones_nothing_is_learned(tmp_path, line):
    assert [one.is_empty for one in _pairs(tmp_path, line, {"prompt": "", "chosen": "a", "rejected": "b"})] == [
        True,
        False,
    ]


def test_lines_of_another_kind_than_the_method_learns_are_faults(tmp_path):
    lines = _pairs(tmp_path, {"text": "a"}, {"prompt": "q", "chosen": "a", "rejected": "b"})
    for is_paired, kept, message in (
        (True, 2, "train:1: it is no pair of answers"),
        (False, 1, "train:2: it is a pair"),
    ):
        faults = InvalidLines("train")
        assert [one.number for one in of_one_kind(lines, faults, is_paired=is_paired)] == [kept]
        with pytest.raises(StageInputError, match=message):
            faults.refuse()


def test_blank_lines_a_mark_at_the_beginning_and_windows_line_ends_do_no_harm(tmp_path):
    lines, faults = _read(tmp_path, b"\xef\xbb\xbf" + f"{GOOD}\r\n\r\n  \n{GOOD}".encode())
    assert not faults
    assert [one.number for one in lines] == [1, 4]


def test_content_in_parts_of_text_is_joined(tmp_path):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    lines, _ = _read(tmp_path, json.dumps({"messages": [{"role": "assistant", "content": parts}]}))
    assert lines[0].messages[0].content == "ab"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "invalid JSON"),
        ('{"text": "a\tb"}', "invalid JSON: Invalid control character at character 12"),
        ("[1, 2]", "a list, not an object"),
        ('"text"', "a text, not an object"),
        ("null", "null, not an object"),
        ("{}", "it has no keys"),
        ('{"body": "x"}', "it has only 'body'"),
        ('{"text": 5}', "text is a number, not a text"),
        ('{"text": null}', "text is null, not a text"),
        ('{"text": ["x"]}', "text is a list, not a text"),
        ('{"text": "a", "text": "b"}', "it has 'text' twice"),
        ('{"text": "a", "messages": []}', "it has text and messages: use one form"),
        ('{"prompt": "a"}', "it has no completion"),
        ('{"prompt": "a", "chosen": "b"}', "it has no rejected answer; required: {"),
        ('{"prompt": "a", "rejected": "b"}', "it has no chosen answer"),
        ('{"prompt": "a", "chosen": "b", "rejected": null}', "it has no rejected answer"),
        ('{"prompt": "a", "chosen": "b", "rejected": 1}', "rejected is a number, not a text"),
        ('{"prompt": "a", "chosen": "b", "rejected": []}', "rejected is a list, not a text"),
        ('{"prompt": ["a"], "chosen": "b", "rejected": "c"}', "prompt is a list, not a text"),
        ('{"completion": "a", "chosen": "b", "rejected": "c"}', "it has completion and chosen: use one form"),
        ('{"prompt": "a", "chosen": [], "rejected": []}', "chosen is an empty list, not a list of messages"),
        (json.dumps({"prompt": [], "chosen": SAYS, "rejected": SAYS}), "prompt is an empty list"),
        (json.dumps({"chosen": SAYS, "rejected": SAYS}), "it has no prompt: neither a list of messages, nor"),
        (
            json.dumps({"prompt": [ASKS], "chosen": SAYS, "rejected": [ASKS]}),
            "rejected has no message of the assistant",
        ),
        ('{"completion": "a"}', "it has no prompt"),
        ('{"prompt": "a", "completion": false}', "completion is true or false, not a text"),
        ('{"text": "a\\u0000b"}', "text holds a NUL character"),
        (b'{"text": "a\x00b"}', "invalid JSON"),
        ('{"text": "\\ud800"}', "text holds half a character"),
        ('{"text": "x", "score": NaN}', "invalid JSON: NaN"),
        (b'{"text": "\xff\xfe"}', "byte 11 is not UTF-8"),
        ('{"messages": []}', "messages is an empty list, not a list of messages"),
        ('{"messages": "hi"}', "messages is a text, not a list of messages"),
        ('{"messages": ["hi"]}', "message 1 is a text, not an object with role and content"),
        ('{"messages": [{"content": "x"}]}', "message 1: it has no role"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "message 1: its role is 'bot'"),
        ('{"messages": [{"role": ["user"], "content": "x"}]}', "message 1: it has no role"),
        ('{"messages": [{"role": "assistant", "content": {"a": 1}}]}', "message 1: content is an object, not a text"),
        ('{"messages": [{"role": "assistant"}]}', "message 1: content is null, not a text"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no message of the assistant"),
        ('{"messages": [' + "1, " * 2000 + "1]}", "2,001 messages; the maximum is 2,000"),
        ('{"text": "x", "n": ' + "9" * 5000 + "}", "it has a number of more than 4,300 digits"),
        ('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_example_is_told_with_its_place(tmp_path, line, words):
    assert words in _wrong(tmp_path, line)


def test_a_key_that_is_there_twice_is_found_at_once_among_very_many(tmp_path):
    keys = ", ".join(f'"{one}": 1' for one in [*range(100_000), 99_999])
    # Comparing each with each would take minutes.
    assert _wrong(tmp_path, f"{{{keys}}}") == "it has '99999' twice"


def test_a_huge_line_is_passed_over_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE_BYTES", 1 << 20)
    assert _wrong(tmp_path, '{"text": "' + "x" * (3 << 20) + '"}') == "longer than 1 MiB"


def test_a_huge_line_without_an_end_is_told_too(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE_BYTES", 1000)
    lines, faults = _read(tmp_path, GOOD + "\n" + "x" * 10_000)
    assert len(lines) == 1
    assert faults


def test_twenty_faults_are_shown_and_the_rest_are_counted(tmp_path):
    lines, faults = _read(tmp_path, "\n".join(["nothing"] * 1234 + [GOOD]))
    assert len(lines) == 1
    with pytest.raises(StageInputError) as raised:
        faults.refuse()
    told = raised.value.message.split("\n")
    assert told[0] == "1,234 invalid lines in train.jsonl:"
    assert told[1].startswith("train.jsonl:1: invalid JSON")
    assert told[20].startswith("train.jsonl:20: invalid JSON")
    assert told[21:] == ["and 1,214 more"]
    assert '{"text": …}' in raised.value.hint


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x1f\x8bzzz", "gzip-compressed"),
        (b"PK\x03\x04zzz", "zip-compressed"),
        (b"PAR1zzz", "Parquet"),
        ('{"text": "x"}'.encode("utf-16"), "UTF-16"),
    ],
)
def test_another_sort_of_file_is_refused_as_a_whole(tmp_path, content, words):
    with pytest.raises(StageInputError, match=words):
        _read(tmp_path, content)


def test_a_file_that_cannot_be_read_is_told_without_a_trace(tmp_path):
    with pytest.raises(StageInputError, match="can't be read: No such file"):
        list(read_lines(tmp_path / "gone.jsonl", "jsonl", InvalidLines("gone.jsonl")))


def test_plain_text_is_read_paragraph_by_paragraph(tmp_path):
    lines, faults = _read(tmp_path, "\n\none\nstill one\n\n\ntwo\n", layout="text")
    assert not faults
    assert [(one.number, one.text) for one in lines] == [(3, "one\nstill one"), (7, "two")]


def test_what_is_wrong_in_plain_text_is_told_with_its_line(tmp_path):
    _, faults = _read(tmp_path, b"one\n\n\xff\n\na\x00b\n", layout="text")
    with pytest.raises(StageInputError) as raised:
        faults.refuse()
    assert "train.jsonl:3: byte 1 is not UTF-8" in raised.value.message
    assert "train.jsonl:5: it holds a NUL character" in raised.value.message


@pytest.mark.parametrize(
    "line",
    [
        RawExample(number=1, form="text", text=" \n"),
        RawExample(number=1, form="completion", text="prompt", completion=" "),
        RawExample(number=1, form="messages", messages=(ChatMessage(role="assistant", content=""),)),
    ],
)
def test_a_line_with_nothing_to_learn_is_known_as_empty(line):
    assert line.is_empty
