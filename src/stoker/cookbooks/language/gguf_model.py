"""A whole model as a GGUF file: its settings, its tokenizer and its tensors, for llama.cpp.

Of tokenizers those are supported that work on bytes and split texts as GPT-2, Llama 3 or Qwen 2 do; of positions those
that llama.cpp has for the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from stoker.cookbooks.language.compute.frozen_base import HEAD, DecoderShape, shape_of
from stoker.core.errors import BadInput
from stoker.store.weight_files.headers import read_foreign_json
from stoker.store.weight_files.safetensors import read_header
from stoker.store.weight_files.tensor_layouts import Architecture, TensorLayout, interleaved, tensor_layouts

if TYPE_CHECKING:
    from torch import Tensor

    from stoker.cookbooks.language.bases import TrainableBase

GgufDtype = Literal["float32", "float16", "bfloat16"]
FILE_TYPES: Final[Mapping[GgufDtype, tuple[str, int]]] = {
    "float32": ("F32", 0),
    "float16": ("F16", 1),
    "bfloat16": ("BF16", 32),
}
"""Of each dtype: its name in GGUF, and the number of a file of such matrices."""
GGUF_FAMILIES: Final[Mapping[str, tuple[str, Architecture]]] = {
    "llama": ("llama", "llama"),
    "mistral": ("llama", "llama"),
    "qwen2": ("qwen2", "qwen2"),
    "qwen3": ("qwen3", "qwen3"),
}
"""Of each family: its name in llama.cpp, and the layout of its matrices there."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Final[Mapping[str, str]] = {
    f"{_WORDS}\\p{{N}}{{1,3}}{_REST}": "llama-bpe",
    f"{_WORDS}\\p{{N}}{_REST}": "qwen2",
}
"""How a tokenizer splits texts, and its name in llama.cpp."""
_UNUSED = ("rotary_emb.inv_freq",)
_INSTEAD = "convert it with llama.cpp's convert_hf_to_gguf.py"
_NORMAL, _CONTROL, _USER, _EMPTY = 1, 3, 4, 5
_ROPE_FACTORS = "rope_freqs.weight"


def gguf_places(base: TrainableBase) -> dict[str, TensorLayout]:
    """Return where each tensor of a base is in GGUF, by its name."""
    shape = base.shape
    layouts = tensor_layouts(
        GGUF_FAMILIES[base.family][1], layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads
    )
    return {one.name: one for one in layouts}


def model_faults(base: TrainableBase) -> Iterator[tuple[str, str]]:
    """Collect why a base can't be written as GGUF, each with what to do instead."""
    if base.family not in GGUF_FAMILIES:
        yield f"models of {base.family} can't be exported", f"supported: {', '.join(GGUF_FAMILIES)}; or {_INSTEAD}"
        return
    if base.differs:
        yield f"it can't be exported: {base.differs}", _INSTEAD
        return
    shape, places = shape_of(base.config), gguf_places(base)
    kinds = ("default", "linear", "llama3") if base.family in ("llama", "mistral") else ("default", "linear")
    if shape.rotation.kind not in kinds:
        yield f"rope_type {shape.rotation.kind} can't be exported", _INSTEAD
    if any(shape.windows):
        yield "attention windows can't be exported", _INSTEAD
    tensors = {name for file in base.weight_files for name in read_header(base.folder / file).tensors}
    odd = sorted(name for name in tensors - places.keys() if not name.endswith(_UNUSED))
    if odd:
        yield f"{odd[0]} has no place in GGUF", _INSTEAD
    try:
        _split_of(_tokenizer_json(base))
    except BadInput as error:
        yield error.message, error.hint


def write_gguf_model(path: Path, base: TrainableBase, dtype: GgufDtype, step: Callable[..., None]) -> None:
    """Write a base; `step` gets the number of tensors that are written, and of all."""
    import gguf
    import numpy as np
    from safetensors import safe_open

    name, (kind, number) = GGUF_FAMILIES[base.family][0], FILE_TYPES[dtype]
    shape = shape_of(base.config)
    writer = gguf.GGUFWriter(path, name)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(base.name)
    writer.add_file_type(number)
    _add_settings(writer, shape)
    _add_tokenizer(writer, base)
    with ExitStack() as stack:
        opened = {file: stack.enter_context(safe_open(str(base.folder / file), "pt")) for file in base.weight_files}
        where = {tensor: file for file in opened.values() for tensor in file.keys()}  # noqa: SIM118 - it is no map
        places = [one for one in gguf_places(base).values() if one.name in where]
        if shape.model.is_tied:
            places = [one for one in places if one.name != HEAD]
        parts: list[tuple[str, Callable[[], Tensor]]] = [
            (one.gguf, partial(_values, where[one.name], one)) for one in places
        ]
        if shape.rotation.kind == "llama3":
            parts.insert(0, (_ROPE_FACTORS, partial(_rope_factors, shape)))
        for tensor, read in parts:
            values = read()
            stored = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else kind]
            size = gguf.GGML_QUANT_SIZES[stored]
            writer.add_tensor_info(
                tensor, values.shape, np.dtype(np.float32), values.numel() // size[0] * size[1], raw_dtype=stored
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, (_, read) in enumerate(parts, 1):
            values = read().float()
            stored = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else kind]
            writer.write_tensor_data(gguf.quants.quantize(values.numpy(), stored))
            step(done, of=len(parts))
    writer.close()


def _values(file: Any, place: TensorLayout) -> Tensor:
    """Return a tensor of a file in the order of GGUF."""
    tensor: Tensor = file.get_tensor(place.name)
    if not place.heads:
        return tensor
    return tensor[[interleaved(row, len(tensor), place.heads) for row in range(len(tensor))]]


def _rope_factors(shape: DecoderShape) -> Tensor:
    """Return the divisor of each frequency."""
    from stoker.cookbooks.language.compute.math import frequencies
    from stoker.core.frozen import changed

    head_dim, rotation = shape.model.head_dim, shape.rotation
    return frequencies(changed(rotation, kind="default"), head_dim) / frequencies(rotation, head_dim)


def _add_settings(writer: Any, shape: DecoderShape) -> None:
    import gguf

    model, rotation = shape.model, shape.rotation
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(model.hidden)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.inner)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_freq_base(rotation.theta)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_vocab_size(model.vocabulary)
    if rotation.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rotation.factor)


# The tokenizer: byte-level BPE.


def _tokenizer_json(base: TrainableBase) -> Mapping[str, Any]:
    try:
        said = read_foreign_json(base.folder / "tokenizer.json")
    except (OSError, ValueError) as error:
        raise BadInput(f"its tokenizer.json can't be read: {error}", hint=_INSTEAD) from None
    return said if isinstance(said, dict) else {}


def _split_of(said: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of how a tokenizer splits texts. Raises `BadInput` if it has none."""
    with suppress(AttributeError, TypeError, IndexError, KeyError):
        if name := _known_split(said):
            return name
    raise BadInput("its tokenizer can't be exported", hint=_INSTEAD)


def _known_split(said: Mapping[str, Any]) -> str:
    model, before = said.get("model") or {}, said.get("pre_tokenizer") or {}
    parts = before.get("pretokenizers") or [before]
    is_bytes = any(isinstance(one, dict) and one.get("type") == "ByteLevel" for one in parts)
    if model.get("type") == "BPE" and is_bytes and not model.get("byte_fallback"):
        if len(parts) == 1 and (parts[0].get("use_regex", True) or not model.get("merges")):
            return "gpt-2"
        pattern = str((parts[0].get("pattern") or {}).get("Regex"))
        if len(parts) == 2 and parts[0].get("type") == "Split" and pattern in _SPLITS:
            return _SPLITS[pattern]
    return ""


def _add_tokenizer(writer: Any, base: TrainableBase) -> None:
    from stoker.cookbooks.language.tokens import open_tokenizer

    said, tokenizer = _tokenizer_json(base), open_tokenizer(base.folder)
    added = {one["id"]: (one["content"], one.get("special")) for one in said.get("added_tokens", ())}
    tokens = {number: token for token, number in said["model"]["vocab"].items()}
    tokens |= {number: text for number, (text, _) in added.items()}
    numbers = range(base.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_split_of(said))
    # A vocabulary may be larger than its tokenizer.
    writer.add_token_list([tokens.get(number, f"[PAD{number}]") for number in numbers])
    kinds = {number: _CONTROL if is_special else _USER for number, (_, is_special) in added.items()}
    writer.add_token_types([kinds.get(number, _NORMAL if number in tokens else _EMPTY) for number in numbers])
    pairs = [one if isinstance(one, str) else " ".join(one) for one in said["model"]["merges"]]
    # llama.cpp requires merges; texts have no such letters.
    writer.add_token_merges(pairs or ["[PAD] [PAD]"])
    for add, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    plain, whole = (tokenizer("a", add_special_tokens=adds)["input_ids"] for adds in (False, True))
    writer.add_add_bos_token(whole[:1] != plain[:1])
    writer.add_add_eos_token(whole[-1:] != plain[-1:])
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
