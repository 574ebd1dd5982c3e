"""Bytes of strangers: whatever a data file or a weight file holds, the answer is a sentence, never a trace."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.authoring import StageInputError
from stoker.cookbooks.language.arguments import Layout
from stoker.cookbooks.language.bundled import base_files
from stoker.cookbooks.language.reading import InvalidLines, read_lines
from stoker.store.weight_files.gguf import read_gguf_header
from stoker.store.weight_files.headers import DamagedHeader
from stoker.store.weight_files.safetensors import pinch, read_header
from tests.lengths import examples

_KEYS = st.sampled_from(["text", "prompt", "completion", "messages", "role", "content", "type", "assistant", "x"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=10,
)
_LINES = st.binary(max_size=60) | _VALUES.map(lambda value: json.dumps(value).encode())


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("strangers") / "file"


@settings(max_examples=examples(20, 40))
@given(lines=st.lists(_LINES, max_size=6), layout=st.sampled_from(["jsonl", "text"]))
def test_any_data_file_gives_examples_and_faults_of_its_own_lines(place, lines, layout: Layout):
    content = b"\n".join(lines)
    place.write_bytes(content)
    faults = InvalidLines("file")
    try:
        found = list(read_lines(place, layout, faults))
        faults.refuse()
    except StageInputError:
        return
    numbers = [one.number for one in found]
    assert numbers == sorted(set(numbers))
    assert all(1 <= one <= content.count(b"\n") + 1 for one in numbers)


_CELLS = st.text(alphabet='ab,"\r\n\t;\0é', max_size=8) | st.sampled_from(["text", "prompt", "completion", "messages"])
_TABLES = st.lists(st.lists(_CELLS, max_size=3), max_size=5)


@settings(max_examples=examples(60, 400))
@given(rows=_TABLES, more=st.binary(max_size=20), layout=st.sampled_from(["csv", "tsv"]), at=st.integers(0, 80))
def test_any_table_gives_examples_and_faults_of_its_own_lines(place, rows, more, layout: Layout, at):
    content = "\n".join(",".join(row) for row in [["text", "n"], *rows]).encode()
    content = content[:at] + more + content[at:]
    place.write_bytes(content)
    faults = InvalidLines("file")
    try:
        found = list(read_lines(place, layout, faults))
        faults.refuse()
    except StageInputError:
        return
    numbers = [one.number for one in found]
    assert numbers == sorted(set(numbers))
    assert all(2 <= one <= content.count(b"\n") + content.count(b"\r") + 1 for one in numbers)


@settings(max_examples=examples(40, 300))
@given(at=st.integers(0, 2000), length=st.integers(0, 60), new=st.binary(max_size=12))
def test_any_damage_to_a_parquet_file_gives_examples_or_one_error(place, at, length, new):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    whole = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"text": ["one", "two", None], "n": [1, 2, 3]}), whole)
    content = whole.getvalue().to_pybytes()
    at = at % len(content)
    place.write_bytes(content[:at] + new + content[at + length :])
    with suppress(StageInputError):
        list(read_lines(place, "parquet", InvalidLines("file")))


_TENSORS = st.dictionaries(
    st.text(max_size=3),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "F4", 7]),
            "shape": st.lists(st.integers(-1, 4), max_size=2),
            "data_offsets": st.lists(st.integers(-2, 40), min_size=1, max_size=3),
        }
    )
    | _VALUES,
    max_size=3,
)


@settings(max_examples=examples(20, 40))
@given(told=_TENSORS | _VALUES, length=st.none() | st.integers(0, 2**64 - 1), body=st.binary(max_size=40))
def test_any_weight_file_is_whole_or_damaged(place, told, length, body):
    text = json.dumps(told).encode()
    place.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    try:
        header = read_header(place)
    except DamagedHeader:
        return
    assert all(8 <= one.begin <= one.end <= header.size_bytes for one in header.tensors.values())
    assert len(pinch(place, header)) == len(header.tensors)


def _gguf_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


_GGUF_VALUES = st.tuples(st.binary(max_size=3), st.integers(0, 13), st.binary(max_size=24)).map(
    lambda one: _gguf_text(one[0]) + struct.pack("<I", one[1]) + one[2]
)
_GGUF_TENSORS = st.tuples(
    st.binary(max_size=3), st.lists(st.integers(0, 64), max_size=5), st.integers(0, 31), st.integers(0, 3)
).map(lambda one: _gguf_text(one[0]) + struct.pack(f"<I{len(one[1])}QIQ", len(one[1]), *one[1], one[2], 32 * one[3]))


@settings(max_examples=examples(20, 200))
@given(
    values=st.lists(_GGUF_VALUES, max_size=2),
    tensors=st.lists(_GGUF_TENSORS, max_size=3),
    counts=st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    body=st.integers(0, 600),
)
def test_any_gguf_file_is_whole_or_damaged(place, values, tensors, counts, body):
    head = b"GGUF" + struct.pack("<IQQ", 3, *(counts or (len(tensors), len(values))))
    place.write_bytes(head + b"".join((*values, *tensors)) + bytes(body))
    try:
        header = read_gguf_header(place)
    except DamagedHeader:
        return
    assert all(24 <= one.begin <= one.end <= header.size_bytes for one in header.tensors.values())


@settings(max_examples=20)
@given(st.data())
def test_a_weight_file_that_lost_its_end_is_never_taken_for_whole(place, data):
    whole = base_files()["model.safetensors"]
    place.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DamagedHeader):
        read_header(place)
