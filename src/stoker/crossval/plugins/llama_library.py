"""llama.cpp's C functions by ctypes, from the shared library in an installed package. No compiler, no headers.

Parameter structures are opaque: a default is asked for, some of its slots are changed and it is handed back. Where a
slot is differs between versions, so before a slot is changed its default must be what `PARAMETERS` says; another
llama.cpp is refused by that. What the slots did is observed afterwards (`llama_plugin`).
"""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import importlib.util
import os
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from stoker.crossval.plugins.protocol_loop import PluginError

PACKAGES = {"xllamacpp": "*.so", "llama_cpp": os.path.join("lib", "libllama.*")}
"""Packages that hold the library, each with where it is below the package."""
_DISTRIBUTIONS = {"xllamacpp": "xllamacpp", "llama_cpp": "llama-cpp-python"}

SMALLEST_CONTEXT = 512
LARGEST_BATCH = 512
"""llama.cpp aborts the process on a larger one."""
F32, F16 = 0, 1
_FLASH_AUTO = -1
# int32 slots of `llama_context_params` with their defaults.
PARAMETERS = {"n_ctx": (0, SMALLEST_CONTEXT), "flash": (13, _FLASH_AUTO), "type_k": (26, F16), "type_v": (27, F16)}
# uint64 slots of the same structure.
_EVALUATE, _EVALUATE_DATA = 11, 12

_KEPT_LINES = 30
_WARN, _ERROR = 3, 4
# Places in `ggml_tensor`.
_TYPE_AT, _SHAPE_AT, _SOURCES_AT = 0, 16, 152


class Opaque(ctypes.Structure):
    """A structure that travels as it is. Longer than any of them: what is behind its end is not read."""

    _fields_ = (("words", ctypes.c_uint64 * 64),)


class Batch(ctypes.Structure):
    """Tokens with their positions, and which of them give logits."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class HeaderParameters(ctypes.Structure):
    """How the header of a GGUF file is read."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


_P, _I, _L = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_TEXT, _BOOL = ctypes.c_char_p, ctypes.c_bool
EvaluateCallback = ctypes.CFUNCTYPE(_BOOL, _P, _BOOL, _P)
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, _TEXT, _P)
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "ggml_backend_tensor_get": (None, [_P, _P, ctypes.c_size_t, ctypes.c_size_t]),
    "ggml_get_name": (_TEXT, [_P]),
    "ggml_nbytes": (ctypes.c_size_t, [_P]),
    "ggml_op_desc": (_TEXT, [_P]),
    "ggml_type_name": (_TEXT, [_I]),
    "gguf_free": (None, [_P]),
    "gguf_get_n_tensors": (_L, [_P]),
    "gguf_get_tensor_size": (ctypes.c_size_t, [_P, _L]),
    "gguf_get_tensor_type": (_I, [_P, _L]),
    "gguf_init_from_file": (_P, [_TEXT, HeaderParameters]),
    "llama_backend_init": (None, []),
    "llama_batch_free": (None, [Batch]),
    "llama_batch_init": (Batch, [_I, _I, _I]),
    "llama_context_default_params": (Opaque, []),
    "llama_decode": (_I, [_P, Batch]),
    "llama_free": (None, [_P]),
    "llama_get_logits_ith": (_P, [_P, _I]),
    "llama_get_memory": (_P, [_P]),
    "llama_init_from_model": (_P, [_P, Opaque]),
    "llama_log_set": (None, [_LogCallback, _P]),
    "llama_memory_clear": (None, [_P, _BOOL]),
    "llama_model_default_params": (Opaque, []),
    "llama_model_free": (None, [_P]),
    "llama_model_get_vocab": (_P, [_P]),
    "llama_model_load_from_file": (_P, [_TEXT, Opaque]),
    "llama_model_n_embd": (_I, [_P]),
    "llama_model_n_layer": (_I, [_P]),
    "llama_print_system_info": (_TEXT, []),
    "llama_set_n_threads": (None, [_P, _I, _I]),
    "llama_tokenize": (_I, [_P, _TEXT, _I, ctypes.POINTER(_I), _I, _BOOL, _BOOL]),
    "llama_vocab_get_text": (_TEXT, [_P, _I]),
    "llama_vocab_n_tokens": (_I, [_P]),
}


def find_library() -> tuple[str, str, str]:
    """Return the path of the library, the distribution that it is from, and its version."""
    for package, pattern in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.origin:
            continue
        for path in sorted(glob.glob(os.path.join(os.path.dirname(spec.origin), pattern))):
            name = _DISTRIBUTIONS[package]
            return path, name, importlib.metadata.version(name)
    raise PluginError("not_installed", f"no llama.cpp in {sys.prefix}: neither of {', '.join(PACKAGES)} has a library")


class LlamaLibrary:
    """The library with its functions as attributes. One for each process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.log: deque[str] = deque(maxlen=_KEPT_LINES)
        """The last lines that it logged as warnings or errors."""
        self._library = ctypes.CDLL(path)
        missing = [name for name in _SIGNATURES if not hasattr(self._library, name)]
        if missing:
            raise PluginError("another_version", f"{path} lacks {', '.join(missing)}: another llama.cpp")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._on_log = _LogCallback(self._keep_line)
        self._library.llama_log_set(self._on_log, None)
        self._library.llama_backend_init()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def context_parameters(self, length: int, on_tensor: Any) -> Opaque:
        """Return parameters for exact results: caches in F32, no flash attention, every tensor shown to a callback.

        `on_tensor` is an `EvaluateCallback`, which the caller keeps.
        """
        parameters: Opaque = self._library.llama_context_default_params()
        slots = (ctypes.c_int32 * 128).from_buffer(parameters)
        found = {name: slots[at] for name, (at, _) in PARAMETERS.items()}
        words = (ctypes.c_uint64 * 64).from_buffer(parameters)
        if found != {name: default for name, (_, default) in PARAMETERS.items()} or words[_EVALUATE]:
            raise PluginError("another_version", f"{self.path} has other parameters ({found}): another llama.cpp")
        slots[PARAMETERS["n_ctx"][0]] = max(SMALLEST_CONTEXT, -(-length // 256) * 256)
        for name in ("flash", "type_k", "type_v"):
            slots[PARAMETERS[name][0]] = F32
        words[_EVALUATE] = ctypes.cast(on_tensor, _P).value or 0
        words[_EVALUATE_DATA] = 0
        return parameters

    def batch(self) -> Batch:
        """Return an empty batch for `LARGEST_BATCH` tokens of one sequence. The caller frees it."""
        made: Batch = self._library.llama_batch_init(LARGEST_BATCH, 0, 1)
        if made.n_tokens or made.embd or not all((made.token, made.pos, made.n_seq_id, made.seq_id, made.logits)):
            raise PluginError("another_version", f"{self.path} has other batches: another llama.cpp")
        return made

    def tensor_types(self, path: str) -> list[tuple[str, int]]:
        """Return the type of each tensor of a GGUF file, with its size in bytes."""
        header = self._library.gguf_init_from_file(os.fsencode(path), HeaderParameters(no_alloc=True, context=None))
        if not header:
            raise PluginError("load_failed", f"{path}: {self.reason() or 'not a GGUF file'}")
        try:
            count = self._library.gguf_get_n_tensors(header)
            return [
                (
                    self.type_name(self._library.gguf_get_tensor_type(header, at)),
                    self._library.gguf_get_tensor_size(header, at),
                )
                for at in range(count)
            ]
        finally:
            self._library.gguf_free(header)

    def reason(self) -> str:
        """Return what it logged last, in one line."""
        return "; ".join(line.split(": ", 1)[-1] for line in list(self.log)[-3:])

    def type_name(self, number: int) -> str:
        """Return the name of a data type: `F32`, `Q8_0`."""
        return str(self._library.ggml_type_name(number).decode()).upper()

    def name_of(self, tensor: int) -> str:
        return str(self._library.ggml_get_name(tensor).decode("utf-8", "replace"))

    def type_of(self, tensor: int) -> int:
        return int(ctypes.c_int32.from_address(tensor + _TYPE_AT).value)

    def rows_of(self, tensor: int) -> int:
        """Return the number of rows of a matrix."""
        return int(ctypes.c_int64.from_address(tensor + _SHAPE_AT + 8).value)

    def op_of(self, tensor: int) -> str:
        """Return the operation that makes a tensor, with the type of its first source: `MUL_MAT(Q8_0)`, `GELU(F32)`."""
        name = self._library.ggml_op_desc(tensor).decode()
        source = ctypes.c_void_p.from_address(tensor + _SOURCES_AT).value
        return f"{name}({self.type_name(self.type_of(source))})" if source else str(name)

    def read(self, tensor: int) -> bytes:
        """Return the bytes of a tensor."""
        size = self._library.ggml_nbytes(tensor)
        held = ctypes.create_string_buffer(size)
        self._library.ggml_backend_tensor_get(tensor, held, 0, size)
        return held.raw

    def _keep_line(self, level: int, text: bytes, _data: object) -> None:
        if level in (_WARN, _ERROR):
            self.log.append(text.decode("utf-8", "replace").strip())
