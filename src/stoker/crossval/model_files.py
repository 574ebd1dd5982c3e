"""A model in its files, safetensors or GGUF: which tensors it has, where they are, and which it should have.

Only headers and config.json are read, as untrusted input. Values are compared in `tensor_files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any, Final, Literal, cast

from stoker.core.errors import BadInput, Damaged, LocalFile
from stoker.core.frozen import fresh, frozen
from stoker.core.text import first_line, some_of
from stoker.host.durable import translated
from stoker.store.weight_files.gguf import GgufValue, read_gguf_header
from stoker.store.weight_files.headers import DamagedHeader, TensorEntry, read_foreign_json, shown
from stoker.store.weight_files.safetensors import INDEX, SINGLE, read_header, read_index
from stoker.store.weight_files.tensor_layouts import ARCHITECTURES, Architecture, TensorLayout, tensor_layouts

FileFormat = Literal["safetensors", "gguf"]
CONFIG: Final = "config.json"
_AGAIN = "copy or download it again"
_MOST_LAYERS = 1000
_MOST_HEADS = 10_000
_SHOWN = 5
_LARGEST = 1e300


@frozen
class StoredTensor:
    """One tensor, and the file that it is in."""

    path: Path
    entry: TensorEntry


@frozen
class ModelFiles:
    """All tensors of a model."""

    path: Path
    """As given: a file, or a folder with config.json."""
    format: FileFormat
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    """By the names of the format."""
    layouts: tuple[TensorLayout, ...]
    """Which tensors it should have; empty if its architecture is not known here."""
    settings: Mapping[str, float] = fresh(factory=dict)
    """Numbers that the computation depends on, as far as they are stated: names of GGUF without the architecture."""
    values: Mapping[str, GgufValue] = fresh(factory=dict)
    """The values of a GGUF file."""

    def stored_name(self, layout: TensorLayout) -> str:
        """Return the name of a tensor in these files; empty if it is missing."""
        if self.format == "gguf":
            return layout.gguf if layout.gguf in self.tensors else ""
        # Checkpoints of GPT-2 come with and without the prefix.
        names = (layout.name, layout.name.removeprefix("transformer."))
        return next((name for name in names if name in self.tensors), "")

    def missing(self) -> tuple[str, ...]:
        """Return the tensors that the architecture needs and the files lack, by the names of the format."""
        lacking = (layout for layout in self.layouts if not self.stored_name(layout) and not _may_lack(layout))
        return tuple(layout.gguf if self.format == "gguf" else layout.name for layout in lacking)

    def unknown(self) -> tuple[str, ...]:
        """Return the tensors that the architecture does not have: runtimes ignore them silently, or use them."""
        if not self.layouts:
            return ()
        known = {self.stored_name(layout) for layout in self.layouts}
        return tuple(name for name in self.tensors if name not in known and not name.endswith(_BUFFERS))


_BUFFERS: Final = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "rope_freqs.weight")
"""Ends of names of tensors that are computed, not trained."""


def open_model(path: Path) -> ModelFiles:
    """Read the headers of a model: a GGUF file, a safetensors file, or a folder with one of them.

    Raises `LocalFile` if it does not exist, `Damaged` if a header is, `BadInput` if it is no model.
    """
    with translated(path):
        is_folder = path.is_dir()
        if not is_folder:
            path.stat()
        files = _weights_in(path) if is_folder else (path,)
    if files[0].suffix == ".gguf":
        return _open_gguf(path, files[0])
    if files[0].suffix != ".safetensors":
        raise BadInput(f"{path} is neither .gguf nor .safetensors", hint="give a model's file, or its folder")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, entry in _header(file, read_header).tensors.items():
            if name in tensors:
                raise Damaged(f"{file}: {shown(repr(name))} is also in {tensors[name].path.name}", hint=_AGAIN)
            tensors[name] = StoredTensor(path=file, entry=entry)
    config = _config((path if is_folder else path.parent) / CONFIG)
    return ModelFiles(
        path=path,
        format="safetensors",
        files=files,
        tensors=tensors,
        layouts=_layouts_of_config(config),
        settings=_numbers({name: [config.get(word) for word in words] for name, words in _SETTINGS.items()}),
    )


def coverage_faults(model: ModelFiles) -> Iterator[str]:
    """Return what is wrong with the list of tensors, one sentence each."""
    if not model.tensors:
        yield "it has no tensors"
    for tensors, fault in ((model.missing(), "lacks"), (model.unknown(), "has, and its architecture has not,")):
        if tensors:
            yield f"it {fault} {some_of([shown(name) for name in tensors], _SHOWN)}"


@frozen
class SettingDifference:
    """A number that differs between two models. Weights are the same, and answers are not."""

    name: str
    candidate: float
    reference: float

    @property
    def text(self) -> str:
        return f"{self.name} is {self.candidate:g}; in the reference {self.reference:g}"


def compare_settings(candidate: ModelFiles, reference: ModelFiles) -> tuple[SettingDifference, ...]:
    """Return the numbers that both state, and differently."""
    return tuple(
        SettingDifference(name=name, candidate=candidate.settings[name], reference=number)
        for name, number in reference.settings.items()
        # GGUF has floats of 32 bits.
        if name in candidate.settings and not isclose(candidate.settings[name], number, rel_tol=1e-6)
    )


_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon",),
    "rope.freq_base": ("rope_theta",),
}
"""Of each setting of GGUF, its names in config.json."""


def _weights_in(folder: Path) -> tuple[Path, ...]:
    if (folder / INDEX).is_file():
        try:
            return tuple(folder / name for name in read_index(folder))
        except ValueError as error:
            raise Damaged(f"{folder / INDEX} can't be used: {first_line(error)}", hint=_AGAIN) from None
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    found = tuple(sorted(folder.glob("*.gguf")))
    if len(found) == 1:
        return found
    if not found:
        raise LocalFile(f"there are no weights in {folder}", hint=f"expected {SINGLE}, {INDEX} or one .gguf file")
    raise BadInput(
        f"{folder} has {len(found)} GGUF files", hint=f"name one: {some_of([file.name for file in found], _SHOWN)}"
    )


def _header(file: Path, read: Any) -> Any:
    try:
        with translated(file):
            return read(file)
    except DamagedHeader as error:
        raise Damaged(f"{file} is damaged: {first_line(error)}", hint=_AGAIN) from None


def _open_gguf(path: Path, file: Path) -> ModelFiles:
    header = _header(file, read_gguf_header)
    if header.values.get("split.count", 0) not in (0, 1):
        raise BadInput(f"{file} is a part of a model", hint="merge the parts: llama-gguf-split --merge FIRST WHOLE")
    tensors = {name: StoredTensor(path=file, entry=entry) for name, entry in header.tensors.items()}
    arch, get = header.values.get("general.architecture"), header.values.get
    layers, heads = get(f"{arch}.block_count"), get(f"{arch}.attention.head_count")
    kv_heads = get(f"{arch}.attention.head_count_kv", heads)
    return ModelFiles(
        path=path,
        format="gguf",
        files=(file,),
        tensors=tensors,
        layouts=_layouts(arch, layers, heads, kv_heads),
        settings=_numbers({name: [get(f"{arch}.{name}")] for name in _SETTINGS}),
        values=header.values,
    )


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        with translated(path):
            config = read_foreign_json(path)
        fault = "" if isinstance(config, dict) else "it is not a JSON object"
    except ValueError as error:
        config, fault = {}, first_line(error)
    if fault:
        raise Damaged(f"{path} can't be used: {fault}", hint=_AGAIN)
    # Since transformers 5 the settings of rope are an object of their own.
    rope = config.get("rope_parameters")
    return {**rope, **config} if isinstance(rope, dict) else config


def _layouts_of_config(config: Mapping[str, Any]) -> tuple[TensorLayout, ...]:
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    return _layouts(config.get("model_type"), layers, heads, config.get("num_key_value_heads", heads))


def _layouts(arch: Any, layers: Any, heads: Any, kv_heads: Any) -> tuple[TensorLayout, ...]:
    """Return which tensors there should be; none if the numbers describe no model of a known architecture."""
    if arch not in ARCHITECTURES:
        return ()
    counts = (layers, heads, kv_heads)
    most = (_MOST_LAYERS, _MOST_HEADS, _MOST_HEADS)
    if any(type(count) is not int or not 0 < count <= limit for count, limit in zip(counts, most, strict=True)):
        return ()
    return tensor_layouts(cast("Architecture", arch), layers=layers, heads=heads, kv_heads=kv_heads)


def _numbers(found: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Return the first number that is stated for each setting."""
    numbers = {name: [one for one in stated if type(one) in (int, float)] for name, stated in found.items()}
    return {name: float(stated[0]) for name, stated in numbers.items() if stated and abs(stated[0]) < _LARGEST}


def _may_lack(layout: TensorLayout) -> bool:
    """Return True for the head, which may be the embedding."""
    return layout.gguf == "output.weight"
