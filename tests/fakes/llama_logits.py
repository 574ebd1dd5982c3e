"""Logits and tokens from llama.cpp, by the C functions in the wheel of xllamacpp. A program: it aborts on an error.

It reads one JSON object from standard input (`models`, `ids`, `texts`, `out`, and `adapters`: a LoRA for each model, or
none), and writes an array for each model into the folder `out`, and the tokens of each text to standard output. Cache
in F32, no flash attention, one thread.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import json
import os
import sys
from typing import Any

import numpy as np

POINTER, INT = ctypes.c_void_p, ctypes.c_int32


class Parameters(ctypes.Structure):
    """A structure of llama.cpp that travels as it is, longer than any of them."""

    _fields_ = (("words", ctypes.c_uint64 * 64),)


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_model_default_params": (Parameters, []),
    "llama_context_default_params": (Parameters, []),
    "llama_model_load_from_file": (POINTER, [ctypes.c_char_p, Parameters]),
    "llama_init_from_model": (POINTER, [POINTER, Parameters]),
    "llama_model_get_vocab": (POINTER, [POINTER]),
    "llama_vocab_n_tokens": (INT, [POINTER]),
    "llama_tokenize": (INT, [POINTER, ctypes.c_char_p, INT, ctypes.POINTER(INT), INT, ctypes.c_bool, ctypes.c_bool]),
    "llama_adapter_lora_init": (POINTER, [POINTER, ctypes.c_char_p]),
    "llama_set_adapters_lora": (
        INT,
        [POINTER, ctypes.POINTER(POINTER), ctypes.c_size_t, ctypes.POINTER(ctypes.c_float)],
    ),
    "llama_batch_get_one": (Parameters, [ctypes.POINTER(INT), INT]),
    "llama_decode": (INT, [POINTER, Parameters]),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [POINTER, INT]),
    "llama_set_n_threads": (None, [POINTER, INT, INT]),
    "llama_free": (None, [POINTER]),
    "llama_model_free": (None, [POINTER]),
}
FLASH, TYPE_K, TYPE_V = 13, 26, 27


def library() -> Any:
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    found = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(spec.origin), "*.so"))[0])
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    found.llama_log_set(quiet, None)
    found.llama_backend_init()
    return found


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, POINTER)
def quiet(level: int, text: bytes, _user: Any) -> None:
    if level > 3:
        sys.stderr.write(text.decode(errors="replace"))


def answers(
    llama: Any, path: str, adapter: str, ids: list[int], texts: list[str]
) -> tuple[np.ndarray, list[list[int]]]:
    model = llama.llama_model_load_from_file(os.fsencode(path), llama.llama_model_default_params())
    assert model, path
    parameters = llama.llama_context_default_params()
    slots = (INT * 128).from_buffer(parameters)
    assert (slots[0], slots[FLASH], slots[TYPE_K], slots[TYPE_V]) == (512, -1, 1, 1), "another llama.cpp"
    slots[FLASH] = slots[TYPE_K] = slots[TYPE_V] = 0
    context = llama.llama_init_from_model(model, parameters)
    assert context
    llama.llama_set_n_threads(context, 1, 1)
    if adapter:
        lora = llama.llama_adapter_lora_init(model, os.fsencode(adapter))
        assert lora, adapter
        assert llama.llama_set_adapters_lora(context, (POINTER * 1)(lora), 1, (ctypes.c_float * 1)(1.0)) == 0
    vocabulary = llama.llama_model_get_vocab(model)
    count, rows = llama.llama_vocab_n_tokens(vocabulary), []
    for id in ids:
        assert llama.llama_decode(context, llama.llama_batch_get_one((INT * 1)(id), 1)) == 0
        rows.append(np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (count,)).copy())
    tokens = [tokenized(llama, vocabulary, text) for text in texts]
    llama.llama_free(context)
    llama.llama_model_free(model)
    return np.array(rows), tokens


def tokenized(llama: Any, vocabulary: Any, text: str) -> list[int]:
    data, room = text.encode(), (INT * 4096)()
    count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), False, False)
    return list(room[:count])


def main() -> None:
    request = json.load(sys.stdin)
    llama = library()
    tokens = []
    adapters = request.get("adapters") or [""] * len(request["models"])
    for number, (path, adapter) in enumerate(zip(request["models"], adapters, strict=True)):
        rows, found = answers(llama, path, adapter, request["ids"], request["texts"])
        np.save(os.path.join(request["out"], f"{number}.npy"), rows)
        tokens.append(found)
    print(json.dumps(tokens))


if __name__ == "__main__":
    main()
