"""Fixtures as GGUF files: blocks of quantised types are packed here without rounding, and `gguf` writes the file.

The same bytes on every machine. Vectors and the table of positions are F32 in every file, as converters write them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from stoker.crossval.fixture_models import (
    FixtureSpec,
    FixtureTensor,
    MatrixParts,
    matrix_parts,
    shape_of,
    tensors_of,
    vector,
)
from stoker.crossval.fixture_tokenizer import BEGIN, END, SPECIALS, UNKNOWN, fixture_tokenizer
from stoker.store.weight_files.gguf import BLOCKS
from stoker.store.weight_files.tensor_layouts import interleaved

if TYPE_CHECKING:
    import numpy as np

    Packed = np.ndarray[Any, np.dtype[np.uint8]]

GGUF_TYPES: Final[dict[str, int]] = {"f32": 0, "f16": 1, "q8_0": 7, "q4_k": 14, "bf16": 32}
"""The types that a file's matrices may have, with the number of such a file in GGUF."""
_SUPER_BLOCK = 256
_ALIGNMENT = 32
_QUANTISATION_VERSION = 2
_NORMAL_TOKEN, _UNKNOWN_TOKEN, _CONTROL_TOKEN = 1, 2, 3


def fits(spec: FixtureSpec, kind: str) -> bool:
    """Return True if the rows of all matrices are whole blocks of this type."""
    return all(tensor.columns % BLOCKS[_stored_type(tensor, kind)][0] == 0 for tensor in tensors_of(spec))


def write_gguf(path: str, spec: FixtureSpec, kind: str) -> None:
    """Write a fixture with matrices of this type. Raises `OSError`; what was written of the file stays then."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, spec.arch)
    _add_values(writer, spec, kind)
    for tensor in tensors_of(spec):
        stored = _stored_type(tensor, kind)
        values, size = BLOCKS[stored]
        sides = (tensor.columns,) if tensor.is_vector else (tensor.rows, tensor.columns)
        number = gguf.GGMLQuantizationType[stored]
        writer.add_tensor_info(
            tensor.layout.gguf, sides, np.dtype(np.float32), tensor.count // values * size, raw_dtype=number
        )
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
    except BaseException:
        # What is buffered can't be written either.
        with suppress(OSError):
            writer.close()
        raise
    # By ourselves: numpy's way to write an array does not say why it failed.
    with open(path, "ab") as file:
        _pad(file)
        for tensor in tensors_of(spec):
            file.write(_packed(spec, tensor, kind).tobytes())
            _pad(file)


def _add_values(writer: Any, spec: FixtureSpec, kind: str) -> None:
    shape, tokenizer = shape_of(spec), fixture_tokenizer(shape_of(spec).vocabulary)
    writer.add_name(f"stoker fixture {spec.arch} {spec.size}")
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_vocab_size(shape.vocabulary)
    if spec.arch == "gpt2":
        writer.add_layer_norm_eps(shape.epsilon)
    else:
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_layer_norm_rms_eps(shape.epsilon)
        writer.add_rope_freq_base(shape.rope_base)
        writer.add_rope_dimension_count(shape.head_dim)
    writer.add_file_type(GGUF_TYPES[kind])
    if kind.startswith("q"):
        writer.add_quantization_version(_QUANTISATION_VERSION)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.tokens)
    kinds = [_CONTROL_TOKEN] * len(SPECIALS) + [_NORMAL_TOKEN] * (len(tokenizer.tokens) - len(SPECIALS))
    kinds[UNKNOWN] = _UNKNOWN_TOKEN
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{left} {right}" for left, right in tokenizer.merges])
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _packed(spec: FixtureSpec, tensor: FixtureTensor, kind: str) -> Any:
    """Return the bytes of a tensor as an array."""
    if tensor.is_vector:
        return vector(spec, tensor).astype("<f4")
    parts = matrix_parts(spec, tensor)
    if tensor.layout.heads:
        order = [interleaved(row, tensor.rows, tensor.layout.heads) for row in range(tensor.rows)]
        parts = parts.reordered(order)
    return _PACKERS[_stored_type(tensor, kind)](parts)


def _stored_type(tensor: FixtureTensor, kind: str) -> str:
    is_plain = tensor.is_vector or tensor.layout.gguf == "position_embd.weight"
    return "F32" if is_plain else kind.upper()


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGNMENT))


def _packed_f32(parts: MatrixParts) -> Packed:
    import numpy as np

    return parts.floats().astype("<f4").view(np.uint8)


def _packed_f16(parts: MatrixParts) -> Packed:
    import numpy as np

    return parts.floats().astype("<f2").view(np.uint8)


def _packed_bf16(parts: MatrixParts) -> Packed:
    import numpy as np

    # The upper half of a float: the lower one is zero.
    return (parts.floats().view(np.uint32) >> 16).astype("<u2").view(np.uint8)


def _packed_q8_0(parts: MatrixParts) -> Packed:
    """Return blocks of 32 values: a scale, and a byte for each value."""
    import numpy as np

    rows, columns = parts.nibbles.shape
    blocks = np.empty((rows, columns // 32, 34), np.uint8)
    blocks[:, :, :2] = _halves(parts, 1)
    blocks[:, :, 2:] = parts.multipliers().view(np.uint8).reshape(rows, -1, 32)
    return blocks.reshape(rows, -1)


def _packed_q4_k(parts: MatrixParts) -> Packed:
    """Return blocks of 256 values: two scales, eight scales and minima of six bits, and four bits for each value.

    A value is `d × scale × q − dmin × minimum`. With equal scales and minima, `d = 2u` and `dmin = 15u` that is
    `u × scale × (2q − 15)`.
    """
    import numpy as np

    rows, columns = parts.nibbles.shape
    count = columns // _SUPER_BLOCK
    blocks = np.empty((rows, count, 144), np.uint8)
    blocks[:, :, 0:2] = _halves(parts, 2)
    blocks[:, :, 2:4] = _halves(parts, 15)
    scales = parts.scales.reshape(rows, count, 8)
    # The upper two bits of the last four scales and minima would be in the first eight bytes; these scales have four.
    blocks[:, :, 4:8] = blocks[:, :, 8:12] = scales[:, :, :4]
    blocks[:, :, 12:16] = scales[:, :, 4:] | scales[:, :, 4:] << 4
    pairs = parts.nibbles.reshape(rows, count, 4, 2, 32)
    blocks[:, :, 16:] = (pairs[:, :, :, 0] | pairs[:, :, :, 1] << 4).reshape(rows, count, 128)
    return blocks.reshape(rows, -1)


def _halves(parts: MatrixParts, factor: int) -> Packed:
    """Return the unit of each row times a factor, as the two bytes of a half."""
    import numpy as np

    units = np.ldexp(np.float32(factor), parts.exponents.astype(np.int32))
    return units.astype("<f2").view(np.uint8).reshape(-1, 1, 2)


_PACKERS: Final = {
    "F32": _packed_f32, "F16": _packed_f16, "BF16": _packed_bf16, "Q8_0": _packed_q8_0, "Q4_K": _packed_q4_k,
}  # fmt: skip
