"""Whether an installed llama.cpp computes: a tiny model, written here, with the answers that it must give.

The model needs no library to be written, and its answers were computed by transformers on the same file. What a
reference returns for it shows that its library loads, that its parameters are where we expect them, that caches are in
F32 and flash attention is off, and that its kernels are right on this processor.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

from stoker.core.errors import NotVerified
from stoker.crossval.plugin_messages import Loaded, LoadRequest
from stoker.crossval.plugin_process import Plugin

VOCABULARY, WIDTH, HEADS, INNER, CONTEXT = 32, 32, 2, 64, 64
TOKENS = (3, 1, 4, 1, 5)
EXPECTED: Mapping[int, tuple[float, ...]] = {
    0: (3.275930, -2.444617, -0.244688, -0.202626),
    2: (-0.929124, -0.805629, 0.677213, -0.351504),
    4: (0.856971, 0.124347, 3.249662, 1.395677),
}
"""The first logits at some positions of `TOKENS`."""
_TOLERANCE = 1e-4
_ALIGNMENT = 32
_UINT32, _FLOAT32, _STRING, _ARRAY = 4, 6, 8, 9
_F32 = 0


def check_reference(plugin: Plugin, path: str) -> Loaded:
    """Have a plug-in compute the model at a path, which `write_check_model` has made; return how it ran.

    Raises `NotVerified` if its answers are wrong, and what `Plugin` raises if it fails.
    """
    info = plugin.hello()
    loaded = plugin.load(LoadRequest(model=path))
    _require_exact(info.name, loaded)
    for row in plugin.logits(TOKENS):
        for at, expected in enumerate(EXPECTED.get(row.pos, ())):
            if abs(row.values[at] - expected) > _TOLERANCE:
                raise NotVerified(
                    f"{info.name} {info.version} computes {row.values[at]:.6f} where {expected:.6f} is right "
                    f"(position {row.pos}, logit {at})",
                    hint="stoker reference fetch --force, or another version: --tag VERSION",
                )
    return loaded


def _require_exact(name: str, loaded: Loaded) -> None:
    ran = loaded.ran
    if ran.flash or ran.kv != "F32" or not ran.kernels or loaded.n_vocab != VOCABULARY:
        raise NotVerified(
            f"{name} is not exact: caches in {ran.kv or 'an unknown type'}, flash attention {ran.flash}, "
            f"a vocabulary of {loaded.n_vocab}",
            hint="its parameters are elsewhere: use another version (--tag VERSION)",
        )


def write_check_model(path: str) -> None:
    """Write the model: llama, one layer, F32."""
    with open(path, "wb") as file:
        file.write(_model())


def _model() -> bytes:
    tensors = [(name, shape, _numbers(name, shape)) for name, shape in _SHAPES.items()]
    infos, offset = b"", 0
    for name, shape, data in tensors:
        dims = struct.pack(f"<{len(shape)}Q", *shape)
        infos += _text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", _F32, offset)
        offset += _padded(len(data))
    fields = _fields()
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)) + b"".join(fields) + infos
    body = b"".join(data.ljust(_padded(len(data)), b"\0") for _, _, data in tensors)
    return head.ljust(_padded(len(head)), b"\0") + body


_SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (WIDTH, VOCABULARY),
    "output_norm.weight": (WIDTH,),
    "output.weight": (WIDTH, VOCABULARY),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.attn_k.weight": (WIDTH, WIDTH),
    "blk.0.attn_v.weight": (WIDTH, WIDTH),
    "blk.0.attn_output.weight": (WIDTH, WIDTH),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.ffn_gate.weight": (WIDTH, INNER),
    "blk.0.ffn_up.weight": (WIDTH, INNER),
    "blk.0.ffn_down.weight": (INNER, WIDTH),
}


def _numbers(name: str, shape: Sequence[int]) -> bytes:
    """Return weights that are the same everywhere: multiples of 1/256, about 0.29 large; norms around 1."""
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    drawn = hashlib.shake_256(name.encode()).digest(count)
    shift = 1.0 if len(shape) == 1 else 0.0
    return struct.pack(f"<{count}f", *(shift + (byte - 128) / 256 for byte in drawn))


def _fields() -> list[bytes]:
    letters = ["<unk>", "<s>", "</s>", "ab", *(chr(ord("a") + at) for at in range(26)), "y1", "z1"]
    return [
        _field("general.architecture", _STRING, _text("llama")),
        _number("llama.block_count", 1),
        _number("llama.context_length", CONTEXT),
        _number("llama.embedding_length", WIDTH),
        _number("llama.feed_forward_length", INNER),
        _number("llama.attention.head_count", HEADS),
        _number("llama.attention.head_count_kv", HEADS),
        _number("llama.rope.dimension_count", WIDTH // HEADS),
        _number("llama.vocab_size", VOCABULARY),
        _field("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)),
        _field("llama.rope.freq_base", _FLOAT32, struct.pack("<f", 10000.0)),
        _field("tokenizer.ggml.model", _STRING, _text("gpt2")),
        _field("tokenizer.ggml.pre", _STRING, _text("gpt-2")),
        _texts("tokenizer.ggml.tokens", letters),
        _texts("tokenizer.ggml.merges", ["a b"]),
        _number("tokenizer.ggml.unknown_token_id", 0),
        _number("tokenizer.ggml.bos_token_id", 1),
        _number("tokenizer.ggml.eos_token_id", 2),
    ]


def _field(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _number(key: str, value: int) -> bytes:
    return _field(key, _UINT32, struct.pack("<I", value))


def _texts(key: str, values: Sequence[str]) -> bytes:
    return _field(key, _ARRAY, struct.pack("<IQ", _STRING, len(values)) + b"".join(map(_text, values)))


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
