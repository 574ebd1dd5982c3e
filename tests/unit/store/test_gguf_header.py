"""Headers of GGUF files: read as the library of the format writes them, refused with a reason if anything is odd."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from stoker.store.weight_files import gguf as reader
from stoker.store.weight_files.gguf import BLOCKS, read_gguf_header
from stoker.store.weight_files.headers import DamagedHeader, TensorEntry

F32, Q8_0, STRING, ARRAY, U32 = 0, 8, 8, 9, 4


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def tensor(name: str | bytes, sides: tuple[int, ...], offset: int, kind: int = F32) -> bytes:
    return text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, offset)


def value(key: str | bytes, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def whole(
    *,
    values: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    version: int = 3,
    more: bytes = b"",
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + b"".join((*values, *tensors)) + more
    return head + bytes(-len(head) % 32) + bytes(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_what_the_library_writes_is_read(path):
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_add_bos_token(True)
    writer.add_token_list(["a", "ü", "<s>"])
    writer.add_token_types([1, 1, 3])
    writer.add_key_value("some.big", 2**63, gguf.GGUFValueType.UINT64)
    writer.add_key_value("some.small", -5, gguf.GGUFValueType.INT8)
    writer.add_tensor("a.weight", np.ones((3, 5), np.float32))
    writer.add_tensor("b.weight", np.ones((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf_header(path)
    found = {name.rpartition(".")[2]: one for name, one in header.values.items()}
    assert (found["block_count"], found["freq_base"], found["add_bos_token"]) == (2, 10_000.0, True)
    assert (found["tokens"], found["token_type"]) == (("a", "ü", "<s>"), (1, 1, 3))
    assert (found["big"], found["small"]) == (2**63, -5)
    read = {one.name: one for one in gguf.GGUFReader(path).tensors}
    a, b = header.tensors.values()
    assert (a.dtype, a.shape, a.begin, a.end - a.begin) == ("F32", (3, 5), read["a.weight"].data_offset, 60)
    assert (b.dtype, b.shape, b.begin, b.end - b.begin) == ("Q8_0", (2, 32), read["b.weight"].data_offset, 68)
    assert (header.version, header.size_bytes) == (3, path.stat().st_size)


def test_every_type_has_the_block_that_the_library_states():
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    assert {name: GGML_QUANT_SIZES[GGMLQuantizationType[name]] for name in BLOCKS} == BLOCKS
    assert all(GGMLQuantizationType(number).name == name for number, name in reader._TYPES.items())


def test_an_alignment_of_its_own_places_the_tensors(path):
    values = (value("general.alignment", U32, struct.pack("<I", 128)),)
    head = b"GGUF" + struct.pack("<IQQ", 2, 2, 1) + values[0] + tensor("a", (2,), 0) + tensor("b", (2,), 128)
    path.write_bytes(head + bytes(-len(head) % 128) + bytes(136))
    at = -(-len(head) // 128) * 128
    assert dict(read_gguf_header(path).tensors) == {
        "a": TensorEntry(dtype="F32", shape=(2,), begin=at, end=at + 8),
        "b": TensorEntry(dtype="F32", shape=(2,), begin=at + 128, end=at + 136),
    }


def test_a_file_without_tensors_is_read(path):
    path.write_bytes(whole(values=(value("a", STRING, text("b")),)))
    header = read_gguf_header(path)
    assert (header.values, header.tensors) == ({"a": "b"}, {})


def list_of(kind: int, count: int, data: bytes = b"") -> bytes:
    return value("a", ARRAY, struct.pack("<IQ", kind, count) + data)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it has 0 bytes, too few for a header"),
        (b"GGUF", "it has 4 bytes, too few for a header"),
        (b"GGML" + bytes(40), "it does not begin with GGUF"),
        (whole(version=1), "version 1 is not supported"),
        (whole(version=3 << 24), "it is big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "its header states 1,152,921,504,606,846,976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "its header states 18,446,744,073,709,551,615 values"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "ends within its header"),
        (whole(values=(value("a", STRING, struct.pack("<Q", 2**62)),)), "ends within its header"),
        (whole(values=(struct.pack("<Q", 2**62),)), "a text of 4,611,686,018,427,387,904 bytes"),
        (whole(values=(text(b"\xff" * 3),)), "a key is not UTF-8"),
        (whole(values=(value("a", 6, bytes(4)),) * 2), "its header names 'a' twice"),
        (whole(values=(value("a", 99, bytes(4)),)), "'a' has type 99"),
        (whole(values=(list_of(ARRAY, 1),)), "'a' has type 9, which is unknown here or a list of lists"),
        (whole(values=(list_of(6, 2**61),)), "'a' makes more than 4,000,000 values in lists"),
        (whole(values=(list_of(STRING, 4_000_001),)), "'a' makes more than 4,000,000 values in lists"),
        (whole(values=(list_of(STRING, 3_000_000),)), "ends within its header"),
        (whole(values=(list_of(STRING, 9, text("b")),), data=4), "ends within its header"),
        (whole(values=(value("general.alignment", U32, struct.pack("<I", 33)),)), "general.alignment is 33"),
        (whole(values=(value("general.alignment", U32, bytes(4)),)), "general.alignment is 0"),
        (whole(values=(value("general.alignment", STRING, text("x")),)), "general.alignment is 'x'"),
        (whole(values=(value("general.alignment", 7, b"\1"),)), "general.alignment is True"),
        (whole(tensors=(tensor("a" * 64, (1,), 0),), data=4), "a text of 64 bytes"),
        (whole(tensors=(tensor(b"\xff", (1,), 0),), data=4), "the name of a tensor is not UTF-8"),
        (whole(tensors=(tensor("a", (1,), 0), tensor("a", (1,), 32)), data=64), "its header names 'a' twice"),
        (whole(tensors=(tensor("a", (1,) * 5, 0),), data=4), "'a' has 5 axes"),
        (whole(tensors=(tensor("a", (1,), 0, kind=77),), data=4), "'a' has type 77"),
        (whole(tensors=(tensor("a", (33,), 0, kind=Q8_0),), data=64), "'a' has the shape [33], which Q8_0 can't have"),
        (whole(tensors=(tensor("a", (2**40, 2**40), 0),), data=4), "'a' has the shape"),
        (whole(tensors=(tensor("a", (2**62,), 0),), data=4), "'a' ends at 18,446,744,073,709,551,"),
        (whole(tensors=(tensor("a", (8,), 32),), data=64), "there is a gap before 'a', or an overlap"),
        (whole(tensors=(tensor("a", (8,), 0), tensor("b", (8,), 0)), data=64), "there is a gap before 'b'"),
        (whole(tensors=(tensor("a", (8,), 0), tensor("b", (8,), 32)), data=63), "'b' ends at"),
    ],
)
def test_a_damaged_file_is_refused_with_its_fault(path, content, words):
    path.write_bytes(content)
    with pytest.raises(DamagedHeader) as raised:
        read_gguf_header(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_pipe_is_not_opened(path):
    os.mkfifo(path)
    with pytest.raises(DamagedHeader, match="not a regular file"):
        read_gguf_header(path)


def test_a_name_is_shown_and_not_obeyed(path):
    path.write_bytes(whole(tensors=(tensor("\x1b[2J\n", (1,), 5),), data=4))
    with pytest.raises(DamagedHeader) as raised:
        read_gguf_header(path)
    assert "\x1b" not in str(raised.value)
