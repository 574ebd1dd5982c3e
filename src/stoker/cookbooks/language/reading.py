"""A user's examples out of a file: JSONL or a table of four forms, or plain text.

    {"text": …}                          learned as a whole
    {"prompt": …, "completion": …}       the completion is learned
    {"messages": [{"role", "content"}]}  the assistant's messages are learned
    {"prompt": …, "chosen": …, "rejected": …}  a pair of answers, as texts or as lists of messages

Further keys are left alone; columns with other names may be mapped to these. Read piece by piece as untrusted
bytes: a line, a value and what a file unpacks to are bounded, and whatever is wrong is kept with its place, so that
a user sees all of it at once. Standard library only, but for Parquet and zstd.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from stoker.authoring import StageInputError
from stoker.cookbooks.language.arguments import Layout
from stoker.cookbooks.language.bundled import TEXT_SUFFIXES
from stoker.cookbooks.language.columns import example_of_columns, found_columns, mapped, shown_names
from stoker.cookbooks.language.data_sets import PACKED, suffix_of
from stoker.cookbooks.language.table_rows import CsvLines, Row, csv_rows, parquet_rows, unpacks_to_more
from stoker.core.frozen import frozen
from stoker.core.text import first_line

Form = Literal["text", "completion", "messages", "pair", "chat_pair"]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_SPEAKERS = {"human": "user", "gpt": "assistant"}
LONGEST_LINE_BYTES: Final = 16 * 1024 * 1024
_MOST_FAULTS = 20
_MOST_MESSAGES = 2000
"""Limit for one conversation: a template renders it again up to each answer, so the time grows with the square."""
LARGEST_UNPACKED_BYTES: Final = 64 * 1024 * 1024
"""Any compressed file may unpack to so much; a larger one to so many times its size."""
MOST_TIMES_UNPACKED: Final = 100
_LAYOUTS: Mapping[str, Layout] = {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}
_PAIR = '{"prompt": …, "chosen": …, "rejected": …}'
_FORMS = f'such as {{"text": …}}, {{"prompt": …, "completion": …}}, {{"messages": […]}} or {_PAIR}'
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 1 << 20
_HALF = re.compile("[\ud800-\udfff]")


@frozen
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@frozen
class RawExample:
    """One example as it was written."""

    number: int
    """Line number in the file, from 1."""
    form: Form
    text: str = ""
    """The text, or the prompt."""
    completion: str = ""
    messages: tuple[ChatMessage, ...] = ()
    context: int = 0
    """Number of first messages that are not learned: the prompt of a pair."""
    sides: tuple[RawExample, ...] = ()
    """Of a pair: its chosen and its rejected side."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to learn in it."""
        if self.sides:
            return self.sides[0] == self.sides[1] or any(one.is_empty for one in self.sides)
        if self.form == "messages":
            return not any(one.content.strip() for one in self.messages[self.context :] if one.role == "assistant")
        return not (self.completion if self.form == "completion" else self.text).strip()


class BadExampleLine(ValueError):
    """The fault of one line."""


class InvalidLines:
    """The faults of the lines of one file after the other: the first ones, and their number."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The file that is read."""
        self._kept: list[str] = []
        self._names: dict[str, None] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def enter(self, name: str) -> None:
        """Name the file of the next faults."""
        self.name = name

    def note(self, number: int, message: str) -> None:
        """Add the fault of a line."""
        self._count += 1
        self._names[self.name] = None
        if len(self._kept) < _MOST_FAULTS:
            self._kept.append(f"{self.name}:{number}: {message}")

    def refuse(self) -> None:
        """Raise if there are faults."""
        if not self._count:
            return
        more = self._count - len(self._kept)
        lines = [*self._kept, f"and {more:,} more"] if more else self._kept
        where = f"{len(self._names):,} files" if len(self._names) > 1 else next(iter(self._names))
        head = [] if self._count == 1 else [f"{self._count:,} invalid lines in {where}:"]
        is_table = all(suffix_of(name) in _LAYOUTS for name in self._names)
        hint = (
            "correct these rows, or name other columns (columns=)"
            if is_table
            else f"one JSON object on each line, {_FORMS}; or name other columns (columns=)"
        )
        raise StageInputError("\n".join([*head, *lines]), hint=hint, count=self._count, lines=list(self._kept))


def layout_of(path: Path) -> Layout:
    """Return the layout by a file's name, without that of its compression: plain text, a table, or else JSONL."""
    name = path.name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    suffix = Path(name).suffix
    return "text" if suffix in TEXT_SUFFIXES else _LAYOUTS.get(suffix, "jsonl")


def needs_arrow(path: Path) -> bool:
    """Return True if reading a file needs pyarrow."""
    return path.suffix.lower() == ".zst" or layout_of(path) == "parquet"


def read_lines(
    path: Path, layout: Layout, faults: InvalidLines, columns: Mapping[str, str] | None = None
) -> Iterator[RawExample]:
    """Read a file's examples in order; faults are collected, and reading continues.

    `columns` has the column of each part of an example; without it those of a table are found by their names. Raises
    `StageInputError` if the file as a whole is invalid.
    """
    try:
        found: Iterator[RawExample | tuple[int, str] | None]
        if layout == "parquet":
            found = _of_rows(
                parquet_rows(path, _TableColumns(name=path.name, given=columns or {}), _most_unpacked(path))
            )
        else:
            found = _of_text(path, layout, columns or {})
        for one in found:
            if isinstance(one, RawExample):
                yield one
            elif one is not None:
                faults.note(*one)
    except (OSError, EOFError, zlib.error) as error:
        hint = "check that the file exists, is readable and is whole"
        why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        raise StageInputError(f"{path.name} can't be read: {why}", hint=hint) from error


def of_one_kind(lines: Iterable[RawExample], faults: InvalidLines, *, is_paired: bool) -> Iterator[RawExample]:
    """Return the lines that a method learns from: pairs, or all others. The rest are faults."""
    for line in lines:
        if bool(line.sides) is is_paired:
            yield line
        elif is_paired:
            faults.note(line.number, f"it is no pair of answers; required: {_PAIR}")
        else:
            faults.note(line.number, "it is a pair of answers: method=dpo and method=orpo learn from pairs")


def nothing_to_learn(source: str, *, skipped: int, cut_at: int = 0) -> StageInputError:
    """Return the error for a file without examples, with the number of lines that have nothing to learn or were cut."""
    lines = "one line has" if skipped == 1 else f"{skipped:,} lines have"
    why = f"its {lines} nothing to learn" if skipped else "it has nothing but empty lines"
    cut = f", cut at {cut_at:,} tokens" if cut_at else ""
    hint = "a larger max_seq_len leaves more of them" if cut_at else f"one JSON object on each line, {_FORMS}"
    return StageInputError(f"nothing to learn in {source}: {why}{cut}", hint=hint)


def read_texts(texts: Iterable[str]) -> Iterator[RawExample]:
    """Read lines that were checked before."""
    for number, text in enumerate(texts, start=1):
        yield _example(number, json.loads(text))


def _of_text(path: Path, layout: Layout, columns: Mapping[str, str]) -> Iterator[RawExample | tuple[int, str] | None]:
    with _opened(path) as file:
        _refuse_other_files(path.name, file)
        if layout == "text":
            yield from _paragraphs(file)
        elif layout == "jsonl":
            yield from (_json_line(number, raw, columns) for number, raw in _raw_lines(file))
        else:
            sign = "\t" if layout == "tsv" else ""
            lines = CsvLines(_text_lines(file))
            yield from _of_rows(csv_rows(path.name, lines, _TableColumns(name=path.name, given=columns), sign))


def _of_rows(rows: Iterable[Row]) -> Iterator[RawExample | tuple[int, str]]:
    for number, row in rows:
        if isinstance(row, str):
            yield number, row
            continue
        try:
            yield _example(number, row)
        except ValueError as error:
            yield number, str(error)


@frozen
class _TableColumns:
    """Chooses the columns of a table."""

    name: str
    given: Mapping[str, str]

    def __call__(self, names: Sequence[str]) -> Mapping[str, str]:
        found = dict(self.given) or found_columns(names)
        missing = [column for column in (found or {}).values() if column not in names]
        if found and not missing:
            return found
        what = f"has no column {missing[0]!r}" if missing else "has no known columns"
        hint = f"name them: {example_of_columns(names)}"
        raise StageInputError(f"{self.name} {what}; its columns are {shown_names(names)}", hint=hint)


class _UnpackedFile(io.RawIOBase):
    """What a compressed file unpacks to, bounded: a few bytes can stand for any number of them."""

    def __init__(self, path: Path, inner: Any) -> None:
        self._name = path.name
        self._inner = inner
        self._left = self._most = _most_unpacked(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise unpacks_to_more(self._name, self._most)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def _most_unpacked(path: Path) -> int:
    return max(LARGEST_UNPACKED_BYTES, MOST_TIMES_UNPACKED * path.stat().st_size)


def _opened(path: Path) -> io.BufferedReader:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return io.BufferedReader(_UnpackedFile(path, gzip.open(path, "rb")), _PIECE_BYTES)
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(_UnpackedFile(path, pa.input_stream(str(path), compression="zstd")), _PIECE_BYTES)
    return path.open("rb")


def _refuse_other_files(name: str, file: io.BufferedReader) -> None:
    head = file.peek(8)[:8]
    if head.startswith(_BOM):
        file.read(len(_BOM))
    if not head:
        raise StageInputError(f"{name} is empty", hint=f"one JSON object on each line, {_FORMS}")
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            raise StageInputError(f"{name} is {what}-compressed", hint="unpack it first; .gz and .zst are read")
    if head.startswith(b"PAR1"):
        raise StageInputError(f"{name} is a Parquet file", hint="name it .parquet")
    if head.startswith(_WIDE):
        raise StageInputError(f"{name} is UTF-16", hint="save it as UTF-8")


def _raw_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Return every line and its number; None for one that is too long, which is skipped piece by piece."""
    number = 0
    while raw := file.readline(LONGEST_LINE_BYTES + 1):
        number += 1
        is_whole = raw.endswith(b"\n") or len(raw) <= LONGEST_LINE_BYTES
        yield number, raw if is_whole else None
        while not is_whole and (rest := file.readline(LONGEST_LINE_BYTES)):
            is_whole = rest.endswith(b"\n")


def _text_lines(file: BinaryIO) -> Iterator[tuple[int, str, str]]:
    """Return every line with its number, as text, and its fault."""
    for number, raw in _raw_lines(file):
        try:
            yield number, _decoded(raw), ""
        except BadExampleLine as error:
            yield number, (raw or b"").decode(errors="replace"), str(error)


def _json_line(number: int, raw: bytes | None, columns: Mapping[str, str]) -> RawExample | tuple[int, str] | None:
    """Parse one line: an example, its fault, or None for an empty line."""
    try:
        text = _decoded(raw)
        if not text.strip():
            return None
        value = _parsed(text)
        return _example(number, mapped(value, columns) if columns else value)
    except ValueError as error:
        # Python itself refuses a number with very many digits.
        return number, str(error)


def _paragraphs(file: BinaryIO) -> Iterator[RawExample | tuple[int, str]]:
    """Return the paragraphs between empty lines, each with the number of its first line."""
    kept: list[str] = []
    first = size = 0
    for number, raw in _raw_lines(file):
        try:
            text = _whole_text(_decoded(raw), "it")
            size += len(text)
            if size > LONGEST_LINE_BYTES:
                raise BadExampleLine(f"a paragraph is longer than {LONGEST_LINE_BYTES >> 20} MiB")
        except ValueError as error:
            yield number, str(error)
            kept, size = [], 0
            continue
        if text.strip():
            first = first if kept else number
            kept.append(text)
        elif kept:
            yield RawExample(number=first, form="text", text="".join(kept).strip())
            kept, size = [], 0
    if kept:
        yield RawExample(number=first, form="text", text="".join(kept).strip())


def _decoded(raw: bytes | None) -> str:
    if raw is None:
        raise BadExampleLine(f"longer than {LONGEST_LINE_BYTES >> 20} MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadExampleLine(f"byte {error.start + 1} is not UTF-8: save the file as that") from None


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        # Some messages of the parser end with the word themselves.
        raise BadExampleLine(f"invalid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadExampleLine("nested too deeply") from None
    except BadExampleLine:
        raise
    except ValueError:
        # The only other one: Python converts no longer integers.
        raise BadExampleLine(f"it has a number of more than {sys.get_int_max_str_digits():,} digits") from None
    if not isinstance(value, dict):
        raise BadExampleLine(f"{_named(value)}, not an object {_FORMS}")
    return value


def _example(number: int, value: Mapping[str, Any]) -> RawExample:
    said: list[str] = [key for key in ("text", "completion", "messages") if key in value]
    if "chosen" in value or "rejected" in value:
        said.append("chosen")
    if said == ["chosen"]:
        return _pair(number, value)
    if not said and (usual := found_columns(value)):
        return _example(number, mapped(value, usual))
    if len(said) > 1:
        raise BadExampleLine(f"it has {' and '.join(said)}: use one form")
    if said == ["text"]:
        return RawExample(number=number, form="text", text=_text(value, "text"))
    if said == ["completion"] or "prompt" in value:
        return RawExample(
            number=number, form="completion", text=_text(value, "prompt"), completion=_text(value, "completion")
        )
    if said == ["messages"]:
        return RawExample(number=number, form="messages", messages=_messages(value["messages"]))
    keys = ", ".join(sorted(repr(key[:40]) for key in list(value)[:5]))
    raise BadExampleLine(f"it has {f'only {keys}' if keys else 'no keys'}; required: an object {_FORMS}")


def _pair(number: int, value: Mapping[str, Any]) -> RawExample:
    """Parse a pair. Without a prompt, it is what both sides begin with."""
    missing = [key for key in ("chosen", "rejected") if value.get(key) is None]
    if missing:
        raise BadExampleLine(f"it has no {missing[0]} answer; required: {_PAIR}")
    if isinstance(value["chosen"], list) and isinstance(value["rejected"], list):
        return _chat_pair(number, value)
    chosen, rejected = _text(value, "chosen"), _text(value, "rejected")
    if "prompt" in value:
        prompt = _text(value, "prompt")
    else:
        prompt = chosen[: _equal_start(chosen, rejected)].rstrip(" ")
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    sides = (RawExample(number=number, form="completion", text=prompt, completion=one) for one in (chosen, rejected))
    return RawExample(number=number, form="pair", sides=tuple(sides))


def _chat_pair(number: int, value: Mapping[str, Any]) -> RawExample:
    chosen, rejected = (_conversation(value[key], key) for key in ("chosen", "rejected"))
    if isinstance(value.get("prompt"), list):
        prompt = _conversation(value["prompt"], "prompt")
    else:
        # A prompt as text, beside lists of messages, repeats what these begin with.
        count = _equal_start(chosen[:-1], rejected[:-1])
        if not count:
            raise BadExampleLine(
                "it has no prompt: neither a list of messages, nor messages that both sides begin with"
            )
        prompt, chosen, rejected = chosen[:count], chosen[count:], rejected[count:]
    for key, side in (("chosen", chosen), ("rejected", rejected)):
        if not any(one.role == "assistant" for one in side):
            raise BadExampleLine(f"{key} has no message of the assistant: nothing to learn")
    sides = (
        RawExample(number=number, form="messages", messages=(*prompt, *one), context=len(prompt))
        for one in (chosen, rejected)
    )
    return RawExample(number=number, form="chat_pair", sides=tuple(sides))


def _equal_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of equal items that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))


def _messages(value: Any) -> tuple[ChatMessage, ...]:
    messages = _conversation(value, "messages")
    if not any(one.role == "assistant" for one in messages):
        raise BadExampleLine("no message of the assistant: nothing to learn")
    return messages


def _conversation(value: Any, key: str) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not value:
        raise BadExampleLine(f"{key} is {_named(value) if value != [] else 'an empty list'}, not a list of messages")
    if len(value) > _MOST_MESSAGES:
        raise BadExampleLine(f"{len(value):,} messages; the maximum is {_MOST_MESSAGES:,}")
    return tuple(_message(place, one) for place, one in enumerate(value, start=1))


def _message(place: int, value: Any) -> ChatMessage:
    where = f"message {place}"
    if not isinstance(value, dict):
        raise BadExampleLine(f"{where} is {_named(value)}, not an object with role and content")
    if "from" in value and "role" not in value:
        # The names that ShareGPT's files have.
        speaker = value["from"]
        value = {"role": _SPEAKERS.get(speaker, speaker) if isinstance(speaker, str) else speaker, **value}
        value.setdefault("content", value.get("value"))
    role = value.get("role")
    if role not in ROLES:
        said = f"its role is {role[:40]!r}" if isinstance(role, str) else "it has no role"
        raise BadExampleLine(f"{where}: {said}; allowed: {', '.join(ROLES)}")
    content = value.get("content")
    if isinstance(content, list) and all(isinstance(one, dict) and one.get("type") == "text" for one in content):
        content = "".join(_text(one, "text", where) for one in content)
    return ChatMessage(role=role, content=_text({"content": content}, "content", where))


def _text(value: Mapping[str, Any], key: str, where: str = "") -> str:
    found = value.get(key)
    place = f"{where}: {key}" if where else key
    if not isinstance(found, str):
        raise BadExampleLine(f"{place} is {_named(found)}, not a text" if key in value else f"it has no {key}")
    return _whole_text(found, place)


def _whole_text(text: str, place: str) -> str:
    if "\0" in text:
        raise BadExampleLine(f"{place} holds a NUL character")
    if _HALF.search(text):
        raise BadExampleLine(f"{place} holds half a character (a lone surrogate)")
    return text


def _named(value: Any) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), "something else")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise BadExampleLine(f"it has {twice[:40]!r} twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise BadExampleLine(f"invalid JSON: {name}")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_refuse_constant)
