"""Fixtures with a fault: what goes wrong when a model is converted, copied or run, one at a time.

`break_model` takes a folder with safetensors, or a GGUF file, and writes a copy with the fault. Tensors have their GGUF
names here, in both formats. Faults that are not in files (a wrong token id, wrong positions) change the input instead.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from stoker.crossval.model_files import ModelFiles, StoredTensor, open_model
from stoker.crossval.tensor_values import read_values
from stoker.store.weight_files.gguf import read_gguf_header
from stoker.store.weight_files.tensor_layouts import interleaved

LLAMAS = ("llama", "qwen2")


@dataclass(frozen=True)
class Fault:
    """One fault, and where a comparison has to find it: by logits from a position, by replay in a place."""

    name: str
    apply: Callable[[Broken], None]
    archs: tuple[str, ...] = (*LLAMAS, "gpt2")
    from_position: int | None = 0
    """None: logits may not show it."""
    place: str = "layer 1"
    """`layer N`, `every layer`, `embedding`, `head`, `end` (the tensors at the end of the file), `load`."""
    found_by_cosine: bool = True
    """Whether a cosine of logits below 0.999 shows it, for llama and qwen2 in F32."""
    changes_files: bool = True
    """False: the files are valid and alike; only numbers of their metadata differ."""


def break_model(source: Path, target: Path, fault: Fault) -> Path:
    """Write a copy with a fault; return its path. `source` is a folder with safetensors, or a GGUF file."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.gguf", "fixture.json"))
    else:
        shutil.copyfile(source, target)
    fault.apply(Broken(target))
    return target


def wrong_token(ids: Sequence[int], *, at: int = 5, vocabulary: int = 100) -> list[int]:
    """Return token ids of which one is another."""
    return [*ids[:at], (ids[at] + 1) % vocabulary, *ids[at + 1 :]]


def shifted_positions(count: int, *, start: int = 16) -> list[int]:
    """Return positions that are too large by one from a place on."""
    return [place + (place >= start) for place in range(count)]


def tensors_at_end(path: Path, size: int) -> list[str]:
    """Return which tensors have bytes among the last ones of a file, by the names in it."""
    end = (path / "model.safetensors" if path.is_dir() else path).stat().st_size
    return [name for name, one in open_model(path).tensors.items() if one.entry.end > end - size]


class Broken:
    """A copy that is being broken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "model.safetensors" if path.is_dir() else path
        self.model: ModelFiles = open_model(path)
        self._layouts = {layout.gguf: layout for layout in self.model.layouts}

    @property
    def is_gguf(self) -> bool:
        return self.model.format == "gguf"

    def heads(self, name: str) -> int:
        """Return how many heads the rows of a matrix are."""
        key = "head_count_kv" if "attn_k" in name else "head_count"
        if self.is_gguf:
            return int(self.model.values[f"{self.model.values['general.architecture']}.attention.{key}"])  # type: ignore[arg-type]
        config = json.loads((self.path / "config.json").read_text())
        return int(config["num_key_value_heads" if key == "head_count_kv" else "num_attention_heads"])

    def tensor(self, name: str) -> StoredTensor:
        return self.model.tensors[self.model.stored_name(self._layouts[name])]

    def values(self, name: str) -> np.ndarray:
        """Return a tensor as floats, with a row for each output."""
        one = self.tensor(name).entry
        found = np.array(read_values(self._bytes(one.begin, one.end), one.dtype), np.float32).reshape(one.shape)
        return found.T if self._is_transposed(name) else found

    def change(self, name: str, edit: Callable[[np.ndarray], None]) -> None:
        """Change values of a tensor."""
        one, values = self.tensor(name).entry, self.values(name).copy()
        edit(values)
        stored = values.T if self._is_transposed(name) else values
        self._patch(one.begin, _encoded(stored, one.dtype, self._bytes(one.begin, one.end)))

    def reorder(self, name: str, order: Sequence[int]) -> None:
        """Change the order of a tensor's rows; nothing is rounded."""
        one = self.tensor(name).entry
        if self._is_transposed(name):
            self.change(name, lambda values: values.__setitem__(slice(None), values[list(order)]))
            return
        rows = np.frombuffer(self._bytes(one.begin, one.end), np.uint8).reshape(one.shape[0], -1)
        self._patch(one.begin, rows[list(order)].tobytes())

    def swap(self, name: str, other: str) -> None:
        """Exchange two tensors of one shape and type."""
        one, two = self.tensor(name).entry, self.tensor(other).entry
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        first, second = self._bytes(one.begin, one.end), self._bytes(two.begin, two.end)
        self._patch(one.begin, second)
        self._patch(two.begin, first)

    def drop(self, name: str) -> None:
        """Remove a tensor."""
        stored = self.model.stored_name(self._layouts[name])
        (_drop_from_gguf if self.is_gguf else _drop_from_safetensors)(self.file, stored)

    def scale_rope_base(self, factor: float) -> None:
        """Multiply the base of the rope frequencies, in the metadata."""
        if not self.is_gguf:
            path = self.path / "config.json"
            config = json.loads(path.read_text())
            config["rope_theta"] *= factor
            path.write_text(json.dumps(config))
            return
        key = f"{self.model.values['general.architecture']}.rope.freq_base".encode()
        data = self.file.read_bytes()
        at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
        self._patch(at, struct.pack("<f", struct.unpack_from("<f", data, at)[0] * factor))

    def zero_end(self, size: int) -> None:
        """Overwrite the last bytes with zeros."""
        self._patch(self.file.stat().st_size - size, bytes(size))

    def truncate(self, size: int) -> None:
        """Remove the last bytes."""
        os.truncate(self.file, self.file.stat().st_size - size)

    def _is_transposed(self, name: str) -> bool:
        return self._layouts[name].is_transposed and not self.is_gguf

    def _bytes(self, begin: int, end: int) -> bytes:
        with self.file.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def _patch(self, at: int, data: bytes) -> None:
        with self.file.open("r+b") as file:
            file.seek(at)
            file.write(data)


def _encoded(values: np.ndarray, dtype: str, before: bytes) -> bytes:
    """Return values as bytes of a type; of a quantised one, blocks that did not change keep theirs."""
    if dtype == "Q8_0":
        old = np.frombuffer(before, np.uint8).reshape(-1, 34)
        with np.errstate(invalid="ignore"):
            new = gguf.quants.quantize(np.ascontiguousarray(values), gguf.GGMLQuantizationType.Q8_0).reshape(-1, 34)
        kept = (read_values(before, dtype).reshape(-1, 32) == values.reshape(-1, 32)).all(axis=1)
        return np.where(kept[:, None], old, new).tobytes()
    if dtype == "BF16":
        return gguf.quants.quantize(np.ascontiguousarray(values), gguf.GGMLQuantizationType.BF16).tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def _drop_from_safetensors(path: Path, name: str) -> None:
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    header.pop(name)
    body = b""
    for one in sorted(
        (one for key, one in header.items() if key != "__metadata__"), key=lambda one: one["data_offsets"]
    ):
        begin, end = one["data_offsets"]
        one["data_offsets"] = [len(body), len(body) + end - begin]
        body += data[8 + length + begin : 8 + length + end]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _drop_from_gguf(path: Path, name: str) -> None:
    data, header = path.read_bytes(), read_gguf_header(path)
    first = next(iter(header.tensors))
    head = bytearray(data[: data.index(struct.pack("<Q", len(first)) + first.encode())])
    struct.pack_into("<Q", head, 8, len(header.tensors) - 1)
    infos, body = b"", b""
    for key, one in header.tensors.items():
        if key == name:
            continue
        sides = one.shape[::-1]
        kind = gguf.GGMLQuantizationType[one.dtype]
        infos += struct.pack(
            f"<Q{len(key)}sI{len(sides)}QIQ", len(key), key.encode(), len(sides), *sides, kind, len(body)
        )
        body += _padded(data[one.begin : one.end])
    path.write_bytes(_padded(bytes(head) + infos) + body)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


# The faults themselves.


def _swap_heads(model: Broken) -> None:
    name = "blk.1.attn_q.weight"
    rows = model.tensor(name).entry.shape[0]
    size = rows // model.heads(name)
    model.reorder(name, [*range(size, 2 * size), *range(size), *range(2 * size, rows)])


def _forget_permutation(model: Broken) -> None:
    for layer in range(2):
        for letter in "qk":
            name = f"blk.{layer}.attn_{letter}.weight"
            rows, heads = model.tensor(name).entry.shape[0], model.heads(f"blk.{layer}.attn_{letter}.weight")
            model.reorder(name, [interleaved(row, rows, heads) for row in range(rows)])


def _swap_layers(model: Broken) -> None:
    for layout in model.model.layouts:
        if layout.gguf.startswith("blk.0."):
            model.swap(layout.gguf, layout.gguf.replace("blk.0.", "blk.1."))


def _add(amount: float) -> Callable[[Broken], None]:
    def edit(values: np.ndarray) -> None:
        values[3, 7] += amount

    return lambda model: model.change("blk.1.ffn_up.weight", edit)


def _negate(model: Broken) -> None:
    def edit(values: np.ndarray) -> None:
        values[3, 7] *= -1

    model.change("blk.1.attn_q.weight", edit)


def _zero_bias(letter: str) -> Callable[[Broken], None]:
    return lambda model: model.change(f"blk.1.attn_{letter}.bias", lambda values: values.fill(0))


def _scale_head(model: Broken) -> None:
    def edit(values: np.ndarray) -> None:
        values *= np.float32(1.05)

    model.change("output.weight", edit)


def _zero_head_row(model: Broken) -> None:
    model.change("output.weight", lambda values: values[42].fill(0))


def _change_unused_row(model: Broken) -> None:
    # Of <unk>, which no text has.
    model.change("token_embd.weight", lambda values: values[0].fill(1))


def _shift_positions(start: int) -> Callable[[Broken], None]:
    def shift(model: Broken) -> None:
        rows = model.tensor("position_embd.weight").entry.shape[0]
        model.reorder("position_embd.weight", [min(row + (row >= start), rows - 1) for row in range(rows)])

    return shift


def _set(value: float) -> Callable[[Broken], None]:
    return lambda model: model.change("blk.1.ffn_down.weight", lambda values: values.__setitem__((3, 7), value))


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("q heads swapped", _swap_heads, LLAMAS, from_position=1),
        Fault("q and k not permuted", _forget_permutation, LLAMAS, from_position=1, place="every layer"),
        Fault(
            "rope base 50 times",
            lambda model: model.scale_rope_base(50),
            LLAMAS,
            from_position=1,
            place="every layer",
            changes_files=False,
        ),
        Fault(
            "rope base 1 % more",
            lambda model: model.scale_rope_base(1.01),
            LLAMAS,
            from_position=1,
            place="every layer",
            found_by_cosine=False,
            changes_files=False,
        ),
        Fault("layers swapped", _swap_layers, place="layer 0"),
        Fault("weight + 1", _add(1)),
        Fault("weight + 0.1", _add(0.1), found_by_cosine=False),
        Fault("weight + 0.001", _add(0.001), from_position=None, found_by_cosine=False),
        Fault("weight negated", _negate, LLAMAS, from_position=1, found_by_cosine=False),
        Fault("q bias dropped", _zero_bias("q"), ("qwen2",), from_position=1),
        Fault("k bias dropped", _zero_bias("k"), ("qwen2",), from_position=1),
        Fault("v bias dropped", _zero_bias("v"), ("qwen2",)),
        Fault("q bias missing", lambda model: model.drop("blk.1.attn_q.bias"), ("qwen2",), None, "load"),
        Fault("positions + 1 from 16", _shift_positions(16), ("gpt2",), from_position=16, place="embedding"),
        Fault("all positions + 1", _shift_positions(0), ("gpt2",), place="embedding"),
        Fault("head scaled", _scale_head, place="head", found_by_cosine=False),
        Fault("head row zero", _zero_head_row, place="head"),
        Fault("unused row", _change_unused_row, from_position=None, place="embedding", found_by_cosine=False),
        Fault("end zero", lambda model: model.zero_end(4096), place="end"),
        Fault("truncated", lambda model: model.truncate(4096), from_position=None, place="load"),
        Fault("not a number", _set(float("nan"))),
        Fault("infinite", _set(float("inf"))),
    )
}
"""Every fault by its name. `LLAMAS`: those with a matrix of their own for queries."""
