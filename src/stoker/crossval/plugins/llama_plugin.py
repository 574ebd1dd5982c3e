"""A plug-in: llama.cpp on GGUF files, on processors, exact (caches in F32, no flash attention).

Layers come from the evaluation callback, under llama.cpp's own names: `embd`, `l_out-0` …, `result_norm`. A single
layer can't be replayed. What `ran` says is observed in a first evaluation of one token, not copied from the request.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stoker.crossval.plugins.llama_library import F32, LARGEST_BATCH, EvaluateCallback, LlamaLibrary, find_library
from stoker.crossval.plugins.protocol_loop import (
    ModelPlugin,
    PluginError,
    Row,
    layer_row,
    logits_row,
    serve,
    verify_file,
    vocabulary_digest,
)

_LAYER = re.compile(r"embd|inp_embd|inpL|l_out-\d+|result_norm")
_EMBEDDING = ("inp_embd", "inpL")
_CACHE = re.compile(r"cache_[kv]_")
_ARRANGES = frozenset(("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"))
_UNUSED = re.compile(r"unused tensor")
_FROM_TABLE = re.compile(r"GE(?:G)?LU(?!_ERF)")
"""Activations that llama.cpp reads from a table of half precision, on processors."""


class LlamaPlugin(ModelPlugin):
    """llama.cpp with one model."""

    name = "llama.cpp"
    can = ("tokenize", "logits", "layers")

    def __init__(self) -> None:
        path, distribution, version = find_library()
        self.version = f"{distribution} {version}"
        self._library = LlamaLibrary(path)
        self._model = 0
        self._context = 0
        self._length = 0
        self._threads = 1
        self._vocabulary = 0
        self._n_vocab = 0
        self._n_layers = 0
        self._keeps_layers = False
        self._kept: dict[str, bytes] = {}
        self._ops: set[str] = set()
        self._cache_types: set[str] = set()
        self._on_tensor = EvaluateCallback(self._evaluate)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        path, library = str(request["model"]), self._library
        if request.get("device", "cpu") != "cpu":
            raise PluginError("unsupported", f"llama.cpp of {self.version} runs on cpu, not on {request['device']}")
        verify_file(path, str(request.get("sha256", "")))
        self._free()
        library.log.clear()
        types = library.tensor_types(path)
        self._model = library.llama_model_load_from_file(os.fsencode(path), library.llama_model_default_params()) or 0
        if not self._model:
            raise PluginError("load_failed", f"{path}: {library.reason() or 'llama.cpp refuses it without a reason'}")
        unused = sum(_UNUSED.search(line) is not None for line in library.log)
        self._threads = int(request.get("threads") or 1)
        self._vocabulary = library.llama_model_get_vocab(self._model)
        self._n_vocab = library.llama_vocab_n_tokens(self._vocabulary)
        self._n_layers = library.llama_model_n_layer(self._model)
        # All tensors are on this device and in these types: the first evaluation shows which kernels take them.
        for _ in self.logits([0], [(0, 1)], layers=False):
            pass
        return {
            "n_vocab": self._n_vocab,
            "n_layers": self._n_layers,
            "width": library.llama_model_n_embd(self._model),
            "ran": {
                "device": "cpu",
                "weights": _main_type(types),
                "kv": "+".join(sorted(self._cache_types)),
                "flash": any(op.startswith("FLASH") for op in self._ops),
                "compute": "F16" if any(_FROM_TABLE.match(op) for op in self._ops) else "F32",
                "kernels": sorted(f"cpu.{op}" for op in self._ops),
            },
            "tensors": len(types),
            "used": len(types) - unused,
            "tokenizer_sha256": vocabulary_digest(
                library.llama_vocab_get_text(self._vocabulary, number) or b"" for number in range(self._n_vocab)
            ),
            "build": {"library": library.path, "flags": library.llama_print_system_info().decode()},
        }

    def tokenize(self, text: str, *, special: bool) -> Sequence[int]:
        self._require_model()
        data = text.encode()
        room = len(data) + 16
        ids = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), ids, room, False, special)
        if count < 0:
            raise PluginError("failed", f"llama.cpp can't tokenize {len(data)} bytes: {count}")
        return ids[:count]

    def logits(self, ids: Sequence[int], pieces: Iterable[tuple[int, int]], *, layers: bool) -> Iterator[Row]:
        self._require_model()
        if bad := [one for one in ids if not 0 <= one < self._n_vocab]:
            raise PluginError("bad_request", f"id {bad[0]} is not in a vocabulary of {self._n_vocab}")
        self._open(len(ids))
        self._keeps_layers = layers
        batch = self._library.batch()
        try:
            for begin, end in pieces:
                for at in range(begin, end, LARGEST_BATCH):
                    yield from self._decode(batch, ids, at, min(at + LARGEST_BATCH, end))
        finally:
            self._keeps_layers = False
            self._kept.clear()
            self._library.llama_batch_free(batch)

    def _decode(self, batch: Any, ids: Sequence[int], begin: int, end: int) -> Iterator[Row]:
        count = batch.n_tokens = end - begin
        for row, pos in enumerate(range(begin, end)):
            batch.token[row], batch.pos[row] = ids[pos], pos
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, 1
        self._kept.clear()
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise PluginError("failed", f"llama_decode returned {status} at {begin}: {self._library.reason()}")
        for row in range(count):
            for name, data in self._kept.items():
                if len(data) % (4 * count):
                    raise PluginError("failed", f"{name} has {len(data)} bytes for {count} positions")
                width = len(data) // count
                yield layer_row(begin + row, name, data[row * width : (row + 1) * width])
            yield logits_row(begin + row, self._logits_at(row))

    def _logits_at(self, row: int) -> bytes:
        address = self._library.llama_get_logits_ith(self._context, row)
        if not address:
            raise PluginError("failed", f"llama.cpp has no logits for row {row}")
        return ctypes.string_at(address, 4 * self._n_vocab)

    def _open(self, length: int) -> None:
        """Have an empty context for a sequence of that length."""
        library = self._library
        if self._context and length <= self._length:
            library.llama_memory_clear(library.llama_get_memory(self._context), True)
            return
        if self._context:
            library.llama_free(self._context)
        parameters = library.context_parameters(length, self._on_tensor)
        self._context = library.llama_init_from_model(self._model, parameters) or 0
        if not self._context:
            raise PluginError("failed", f"llama.cpp makes no context for {length} positions: {library.reason()}")
        library.llama_set_n_threads(self._context, self._threads, self._threads)
        self._length = max(length, 512)

    def _evaluate(self, tensor: int, is_question: bool, _data: object) -> bool:  # noqa: FBT001 - called by llama.cpp
        """Say which tensors are wanted, and keep those."""
        name = self._library.name_of(tensor)
        is_layer = self._keeps_layers and _LAYER.fullmatch(name) is not None
        if is_question:
            self._observe(tensor, name)
            return is_layer
        if is_layer and self._library.type_of(tensor) == F32:
            self._kept["embd" if name in _EMBEDDING else name] = self._library.read(tensor)
        return True

    def _observe(self, tensor: int, name: str) -> None:
        op = self._library.op_of(tensor)
        if op.partition("(")[0] not in _ARRANGES:
            self._ops.add(op)
        if _CACHE.match(name):
            self._cache_types.add(self._library.type_name(self._library.type_of(tensor)))

    def _require_model(self) -> None:
        if not self._model:
            raise PluginError("no_model", "no model is loaded")

    def _free(self) -> None:
        if self._context:
            self._library.llama_free(self._context)
        if self._model:
            self._library.llama_model_free(self._model)
        self._context = self._model = self._length = 0
        self._ops.clear()
        self._cache_types.clear()


def _main_type(types: list[tuple[str, int]]) -> str:
    """Return the type that most bytes of a file have."""
    sizes: dict[str, int] = {}
    for name, size in types:
        sizes[name] = sizes.get(name, 0) + size
    return max(sizes, key=lambda name: sizes[name], default="")


if __name__ == "__main__":
    serve(LlamaPlugin)
