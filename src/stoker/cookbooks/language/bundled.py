"""Bundled base and data sets, generated instead of downloaded: enough to try everything in seconds.

A bundled base is a real one in the Hugging Face layout (config, fast tokenizer with a chat template, safetensors) that
`transformers` loads. Its weights are random, the same on every machine. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any, Final, Literal, get_args

from stoker.cookbooks.language.tokenizer_files import CHATML
from stoker.core.errors import NoPermission
from stoker.core.frozen import frozen
from stoker.host.durable import translated, write_file

BaseName = Literal["tiny"]
BASES: Final[tuple[str, ...]] = get_args(BaseName)
DataName = Literal["sums", "chats", "lines", "preferences"]
DATA: Final[tuple[str, ...]] = get_args(DataName)
TEXT_SUFFIXES: Final = frozenset({".txt", ".text", ".md"})
"""Names of files of plain text."""
PREFERENCES: Final = "preferences"
"""The data set of pairs."""

Family = Literal["llama", "mistral", "qwen2", "qwen3"]

_WHO = ("the fox", "a stoker", "my neighbour", "the owl", "an engineer", "the cat")
_WHAT = ("feeds the fire", "counts the stars", "waits for rain", "mends the engine", "reads the log")
_WHEN = ("at night.", "in the morning.", "every day.", "once a year.")
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


@frozen
class TinyShape:
    """The size of a bundled base."""

    family: Family = "llama"
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    inner: int = 128
    positions: int = 2048
    is_tied: bool = False
    seed: int = 0

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def vocabulary(self) -> int:
        """Number of tokens: every byte and the special tokens, rounded up to a multiple of 8."""
        return -(-(256 + len(_SPECIALS)) // 8) * 8


TINY: Final = TinyShape()


def bundled_base(name: str) -> Path:
    """Return the folder of a bundled base, made on first use below the folder for temporary files.

    It belongs to the user and is checked first: a file that differs is written again.
    """
    if name not in BASES:
        message = f"no bundled base {name!r}"
        raise ValueError(message)
    whole = hashlib.sha256(b"".join(base_files(TINY).values())).hexdigest()[:12]
    own = Path(tempfile.gettempdir(), f"stoker-bundled-{os.getuid()}")
    with translated(own):
        _make_own(own)
        folder = own / f"{name}-{whole}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return write_base(folder)


def write_base(folder: Path, shape: TinyShape = TINY) -> Path:
    """Write the missing files of a base of this shape into a folder, which may not exist; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in base_files(shape).items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            write_file(path, content)
    return folder


@cache
def base_files(shape: TinyShape = TINY) -> Mapping[str, bytes]:
    """Return the files of a base: the same bytes for the same shape on every machine."""
    return {
        "config.json": _json(_config(shape)),
        "generation_config.json": _json({"eos_token_id": 256, "pad_token_id": 259}),
        "model.safetensors": _safetensors(shape),
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": _SPECIALS[0],
                "pad_token": _SPECIALS[3],
                "model_max_length": shape.positions,
                "clean_up_tokenization_spaces": False,
                "chat_template": CHATML,
            }
        ),
    }


def data_lines(name: str) -> list[str]:
    """Return the lines of a bundled data set, each a JSON object."""
    made = {"sums": _sums, "chats": _chats, "lines": _lines, PREFERENCES: _preferences}[name]()
    return [json.dumps(line) for line in made]


def _sums() -> Iterator[dict[str, Any]]:
    for left in range(12):
        for right in range(12):
            yield {"prompt": f"{left} plus {right} is ", "completion": f"{left + right}."}


def _chats() -> Iterator[dict[str, Any]]:
    colours = {
        "grass": "green",
        "snow": "white",
        "coal": "black",
        "blood": "red",
        "the sky": "blue",
        "a lemon": "yellow",
    }
    asked = ("What colour is {}?", "Which colour has {}?", "Name the colour of {}.", "Tell me: {}, what colour?")
    for question in asked:
        for thing, colour in colours.items():
            yield {
                "messages": [
                    {"role": "system", "content": "Answer with one word."},
                    {"role": "user", "content": question.format(thing)},
                    {"role": "assistant", "content": colour.capitalize()},
                    {"role": "user", "content": "Sure?"},
                    {"role": "assistant", "content": f"Yes, {colour}"},
                ]
            }


def _lines() -> Iterator[dict[str, Any]]:
    for one in _WHO:
        for does in _WHAT:
            for then in _WHEN:
                yield {"text": f"{one} {does} {then}"}


def _preferences() -> Iterator[dict[str, Any]]:
    """Return answers that are calm, and the same shouted."""
    for one in _WHO:
        for does in _WHAT:
            for then in _WHEN:
                answer = f"{one} {does} {then}"
                prompt = f"What does {one} do {then.removesuffix('.')}? "
                yield {"prompt": prompt, "chosen": answer, "rejected": f"{answer[:-1].upper()}!!"}


def _config(shape: TinyShape) -> dict[str, Any]:
    return {
        "architectures": [f"{_CLASSES[shape.family]}ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 256,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.positions,
        "model_type": shape.family,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": 259,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": shape.is_tied,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def _tokenizer() -> dict[str, Any]:
    letters = _byte_letters()
    tokens = {letters[byte]: byte for byte in range(256)}
    tokens |= {special: 256 + place for place, special in enumerate(_SPECIALS)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + place, "content": special, **flags} for place, special in enumerate(_SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": tokens,
            "merges": [],
        },
    }


def _byte_letters() -> list[str]:
    """Return the letter for each byte in byte-level tokenizers."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [""] * 256
    for byte in visible:
        letters[byte] = chr(byte)
    hidden = (byte for byte in range(256) if not letters[byte])
    for place, byte in enumerate(hidden):
        letters[byte] = chr(0x100 + place)
    return letters


def _tensors(shape: TinyShape) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Return name, shape and spread of every weight; a spread of 0 is a norm, which starts as ones."""
    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocabulary, hidden), 0.125 if shape.is_tied else 1.0
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,), 0.0
        for name, outputs in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            yield f"{at}.self_attn.{name}.weight", (outputs, hidden), 1 / sqrt(hidden)
            if shape.family == "qwen2":
                yield f"{at}.self_attn.{name}.bias", (outputs,), 0.1
        yield f"{at}.self_attn.o_proj.weight", (hidden, q), 1 / sqrt(q)
        if shape.family == "qwen3":
            yield f"{at}.self_attn.q_norm.weight", (shape.head_dim,), 0.0
            yield f"{at}.self_attn.k_norm.weight", (shape.head_dim,), 0.0
        yield f"{at}.post_attention_layernorm.weight", (hidden,), 0.0
        yield f"{at}.mlp.gate_proj.weight", (shape.inner, hidden), 1 / sqrt(hidden)
        yield f"{at}.mlp.up_proj.weight", (shape.inner, hidden), 1 / sqrt(hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, shape.inner), 1 / sqrt(shape.inner)
    yield "model.norm.weight", (hidden,), 0.0
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocabulary, hidden), 1 / sqrt(hidden)


@cache
def _safetensors(shape: TinyShape) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, size, spread in _tensors(shape):
        content = _noise(f"{shape.seed}/{name}", size, spread)
        header[name] = {"dtype": "F32", "shape": list(size), "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def _noise(word: str, size: tuple[int, ...], spread: float) -> bytes:
    """Return numbers spread evenly around 0, from a hash: independent of the generators of libraries."""
    count = size[0] * (size[1] if len(size) > 1 else 1)
    drawn = array("h", hashlib.shake_128(word.encode()).digest(2 * count))
    if sys.byteorder == "big":
        drawn.byteswap()
    reach = spread * sqrt(3) / 32768
    made = array("f", [value * reach for value in drawn] if spread else [1.0] * count)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tobytes()


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def _make_own(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    # Another user may have made this folder.
    status = folder.lstat()
    if status.st_uid != os.getuid() or folder.is_symlink() or not folder.is_dir():
        raise NoPermission(f"{folder} belongs to another user", hint="remove it, or set TMPDIR")
    folder.chmod(0o700)
