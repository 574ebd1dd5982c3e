"""The shape of a base of any family, from its config.json and the sizes of its weights.

No model is made: matrices are those that weight files or a module have. Importing this module imports no library.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stoker.cookbooks.language.compute.matrices import AdaptedMatrix, MatrixGroup
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.devices.estimate.model_shapes import Linear, ModelShape, Norm, Wiring, families, read_shape
from stoker.store.weight_files.headers import shown

Sizes = Mapping[str, tuple[int, ...]]
"""The size of each weight, by its name in weight files."""

_DEFAULT_POSITIONS = 2048
_MOST = 10**8
_MOST_LAYERS = 1000
_MOST_EXPERTS = 10_000
_MOST_POSITIONS = 1 << 24
"""Some families keep a row of numbers for each."""
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS = re.compile(r"(?:.*\.)?experts\..*")
"""Matrices of experts: tokens pass through some of them only."""
_IN_BLOCK = re.compile(r"(?:.*?\.)?(?P<block>\d+)\.(?P<name>.+)")
_NO_TEXT = ("vision", "audio", "multi_modal", "mtp")
"""Parts of the names of modules that read no text."""
_OUTSIDE = ("embed", "wte", "wpe", "lm_head", "router", *_NO_TEXT)
"""Parts of the names of matrices that never have adapters: embeddings, heads, what chooses experts, reads no text."""
_PLACE = re.compile(r"(?:.*?\.)?(?P<place>[^.]+\.\d+\..+)")
_MAPPING = re.compile(r"\nMODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict\(\n(?P<body>.*?)\n\)\n", re.DOTALL)
_FAMILY = re.compile(r'^\s*\("(?P<family>[\w.-]+)", ', re.MULTILINE)


@frozen
class GeneralShape:
    """A base whose blocks are computed by transformers."""

    model: ModelShape
    positions: int
    matrices: tuple[AdaptedMatrix, ...]
    others: tuple[str, ...] = ()
    """The names of all other modules, which targets must not mean."""

    @property
    def vocabulary(self) -> int:
        return self.model.vocabulary

    def groups(self) -> Iterator[MatrixGroup]:
        """Return each matrix by itself: which of them share an input is not known."""
        return (MatrixGroup(block=0, name=one.name, matrices=(one,)) for one in self.matrices)


@cache
def causal_families() -> frozenset[str]:
    """Return the families of which transformers has a causal language model; empty if that can't be found out."""
    match = _MAPPING.search(_source("auto"))
    return frozenset() if match is None else frozenset(_FAMILY.findall(match["body"]))


@cache
def _takes_kernels(family: str) -> bool:
    """Return True if transformers computes the attention of a family by torch's kernels, or if that is not known."""
    source = _source(family.removesuffix("_text"))
    return not source or "_supports_sdpa = True" in source


def _source(name: str) -> str:
    """Return the source of a family in transformers; importing it would take seconds. Empty if there is none."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations or not name.isidentifier():
        return ""
    try:
        file = Path(found.submodule_search_locations[0], "models", name, f"modeling_{name}.py")
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def general_shape(config: Mapping[str, Any], sizes: Sizes) -> GeneralShape:
    """Return the shape of a base of any family. Raises `BadInput` for a config.json without sizes.

    Without the sizes of its weights it has no matrices, and of a family that is not known it is like Llama.
    """
    config = _of_text(config)
    if not sizes and config.get("model_type") in families():
        return GeneralShape(model=read_shape(config), positions=_positions(config), matrices=())
    matrices = tuple(
        AdaptedMatrix(name=name, inputs=size[1], outputs=size[0]) for name, size in _matrices(sizes) if len(size) == 2
    )
    return GeneralShape(model=_model(config, matrices, sizes), positions=_positions(config), matrices=matrices)


def size_faults(config: Mapping[str, Any], sizes: Sizes) -> Iterator[str]:
    """Collect the numbers of a config.json that are not those of its weights, for which a module would be made."""
    config = _of_text(config)
    widths = {one for size in sizes.values() for one in size}
    for names in (("vocab_size",), _WIDTHS):
        name, value = _first(config, names)
        if isinstance(value, int) and value not in widths:
            yield f"config.json states {name} {value:,}, which no weight has"
    blocks = 1 + max((int(match["block"]) for name in sizes if (match := _IN_BLOCK.fullmatch(name))), default=-1)
    name, value = _first(config, _LAYERS)
    if isinstance(value, int) and value > blocks:
        yield f"config.json states {name} {value:,}; its weights have {blocks:,} blocks"


def _of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config.json of the part of a model that reads text."""
    of_text = config.get("text_config")
    return {**config, **of_text, "model_type": config.get("model_type")} if isinstance(of_text, Mapping) else config


def _first(config: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    """Return the first of these keys that has a value, with it."""
    return next(((name, config[name]) for name in names if config.get(name) is not None), (names[0], None))


def _matrices(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    for key, size in sizes.items():
        name = key.removesuffix(".weight")
        is_outside = any(part in name for part in _OUTSIDE) or _EXPERTS.fullmatch(name)
        if name != key and not is_outside and _IN_BLOCK.fullmatch(name):
            yield name, size


def block_name(matrix: str) -> str:
    """Return the name of a matrix within its block."""
    match = _IN_BLOCK.fullmatch(matrix)
    return match["name"] if match else matrix


def named_as(names: Iterable[str], modules: Iterable[str]) -> dict[str, str]:
    """Return the name that each module of an adapter has in a base, of those that are there.

    Classes of transformers and files differ in what is before the list of blocks, the embedding and the head. A module
    that reads no text is never taken for one that does.
    """
    known, wanted = set(names), tuple(modules)
    places: dict[str, list[str]] = {}
    for name in known:
        if not _reads_no_text(name):
            places.setdefault(_place_of(name), []).append(name)
    found = {one: one for one in wanted if one in known}
    taken = set(found)
    for module in wanted:
        of_place = places.get(_place_of(module), [])
        if module not in found and len(of_place) == 1 and not _reads_no_text(module) and of_place[0] not in taken:
            found[module] = of_place[0]
            taken.add(of_place[0])
    return found


def _reads_no_text(module: str) -> bool:
    return any(part in module for part in _NO_TEXT)


def _place_of(module: str) -> str:
    """Return the name of a module from the list of blocks on; its last part outside of blocks."""
    match = _PLACE.fullmatch(module)
    return match["place"] if match else module.rpartition(".")[2]


def _model(config: Mapping[str, Any], matrices: tuple[AdaptedMatrix, ...], sizes: Sizes) -> ModelShape:
    hidden = _count(config, *_WIDTHS)
    layers = _count(config, *_LAYERS, most=_MOST_LAYERS)
    heads = _count(config, "num_attention_heads", "n_head", "n_heads", "num_heads", default=1)
    inner = _count(config, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", default=4 * hidden)
    kv_heads = _count(config, "num_key_value_heads", "num_kv_heads", default=heads)
    in_block = {block_name(one.name): one for one in matrices}
    leaves = Counter(name.rpartition(".")[2] for name in in_block)
    linears = tuple(
        Linear(name=_short(name, leaves), inputs=one.inputs, outputs=one.outputs) for name, one in in_block.items()
    )
    return ModelShape(
        family=str(config.get("model_type")),
        wiring=Wiring.SEPARATE,
        norm=Norm.LAYER,
        activation=str(config.get("hidden_act") or config.get("activation_function") or ""),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(config, "head_dim", default=max(1, hidden // heads)),
        inner=inner,
        vocabulary=_count(config, "vocab_size"),
        is_tied=config.get("tie_word_embeddings", True) is True,
        linears=linears or _like_llama(hidden, inner),
        holds_scores=not _takes_kernels(str(config.get("model_type"))),
        counted=sum(_product(size) for size in sizes.values()) or _weights_of(config, hidden, layers, inner),
    )


def _short(name: str, leaves: Counter[str]) -> str:
    """Return the last part of a name if it means one matrix of a block."""
    leaf = name.rpartition(".")[2]
    return leaf if leaves[leaf] == 1 else name


def _like_llama(hidden: int, inner: int) -> tuple[Linear, ...]:
    inputs = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"), hidden)
    outputs = {"gate_proj": inner, "up_proj": inner}
    block = (*inputs.items(), ("down_proj", inner))
    return tuple(Linear(name=name, inputs=size, outputs=outputs.get(name, hidden)) for name, size in block)


def _weights_of(config: Mapping[str, Any], hidden: int, layers: int, inner: int) -> int:
    """Return an upper limit of the weights of a model like Llama, or of one with experts."""
    experts = _count(config, *_EXPERT_COUNTS, default=1, most=_MOST_EXPERTS)
    width = _count(config, "moe_intermediate_size", default=inner) if experts > 1 else inner
    block = 4 * hidden * hidden + 3 * hidden * (experts * width + (inner if width != inner else 0))
    return layers * block + 2 * hidden * _count(config, "vocab_size")


def _product(size: tuple[int, ...]) -> int:
    found = 1
    for one in size:
        found *= one
    return found


def _positions(config: Mapping[str, Any]) -> int:
    names = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")
    return _count(config, *names, default=_DEFAULT_POSITIONS, most=_MOST_POSITIONS)


def _count(config: Mapping[str, Any], *names: str, default: int | None = None, most: int = _MOST) -> int:
    name, value = _first(config, names)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        said = "is missing" if value is None else f"is {shown(repr(value))}, not a whole number from 1 to {most:,}"
        raise BadInput(f"config.json: {name} {said}", hint="download or copy the file again")
    return value
