"""Bases: checks of a base's folder before anything runs.

All faults are reported at once. Of the weights only headers and a small sample of each tensor are read. Importing this
module imports no library.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.cookbooks.language.arguments import BaseDtype
from stoker.cookbooks.language.compute.base_path import block_norms, leads_elsewhere, unlike_weights
from stoker.cookbooks.language.compute.frozen_base import EMBEDDING, HEAD, module_name, shape_of, unlike
from stoker.cookbooks.language.compute.general_shape import Sizes, causal_families, general_shape, size_faults
from stoker.cookbooks.language.compute.matrices import AdaptedMatrix, adaptable
from stoker.cookbooks.language.saved_quantisation import INSTEAD, is_quantised, matrix_faults, saved_as, without_parts
from stoker.core import jsontext
from stoker.core.digests import digest_bytes, digest_value
from stoker.core.errors import BadInput, Damaged, InvalidInput, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.text import first_line
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.store.weight_files.headers import Header, TensorEntry, read_foreign_json, shown, unreadable_weights
from stoker.store.weight_files.safetensors import (
    INDEX,
    SHARD_BYTES,
    SINGLE,
    are_equal,
    pinch,
    read_header,
    read_index,
    read_tensor,
)

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor


CONFIG: Final = "config.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Any one of these is a tokenizer."""
_TOKENIZER_FILES = (
    *_TOKENIZERS,
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
_OTHER_FILES = ("generation_config.json",)
SMALL_FILES: Final = ("*.json", "*.jinja", "*.model", "*.txt")
"""The files of a base that are downloaded before its weights, and may already show that it is unusable."""
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
"""Ends of the names of embeddings that a head may be tied to."""
_READABLE = ("F32", "F16", "BF16")
_SHOWN = 3
_WANTED = f"use another base: {CONFIG} of a causal language model, a tokenizer.json, weights as safetensors"
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of causal language models; those with images or sound have one, too, if they have no encoder."""


@frozen
class TrainableBase:
    """A base that can be trained."""

    name: str
    """`org/name`, the bundled name, or the name of its folder: for display."""
    folder: Path
    config: Mapping[str, Any]
    shape: ModelShape
    positions: int
    """The maximum sequence length."""
    quantised: BaseDtype
    """How its matrices are kept on disk; `auto` if they are not quantised."""
    differs: str
    """What it has that the fast path has not; empty if nothing."""
    matrices: tuple[AdaptedMatrix, ...]
    """Those that may have adapters; with another family's own module perhaps fewer, or with another prefix."""
    weight_files: tuple[str, ...]
    tokenizer_files: tuple[str, ...]
    size_bytes: int
    """Size of its weights on disk."""
    word: str

    @property
    def family(self) -> str:
        return self.shape.family

    @property
    def vocabulary(self) -> int:
        return self.shape.vocabulary

    @property
    def files(self) -> tuple[str, ...]:
        """The files that identify it, sorted."""
        others = [name for name in (INDEX, *_OTHER_FILES) if (self.folder / name).is_file()]
        return tuple(sorted({CONFIG, *self.weight_files, *self.tokenizer_files, *others}))


class _Faults(list[str]):
    """What is wrong with a folder."""

    hint: str = ""
    """What would work instead; empty: a base of another kind."""


@frozen
class Outline:
    """The facts in the small files of a base, whether or not its weights are here."""

    name: str
    config: Mapping[str, Any]
    shape: ModelShape
    positions: int
    """The maximum sequence length."""
    quantised: BaseDtype
    differs: str
    matrices: tuple[AdaptedMatrix, ...]
    """Empty if they are not known without the weights."""
    tokenizer_files: tuple[str, ...]


def read_base(folder: Path, *, name: str = "", use: str = "trained") -> TrainableBase:
    """Check a base's folder. Raises `BadInput` with all faults, in one line.

    Raises `Damaged` if the only fault is that weight files do not match their headers. `use` names what is then
    impossible.
    """
    name = name or folder.resolve().name
    faults = _Faults()
    damage: list[str] = []
    outline = _outline(folder, name, faults)
    # Weights of the hub are not downloaded for a base that is refused anyway.
    headers = _headers(folder, faults, damage) if outline is not None or not _is_of_hub(name, folder) else None
    if outline is not None and headers is not None:
        outline = _with_weights(outline, folder, headers, faults)
    if damage and not faults:
        raise Damaged(f"{name} can't be {use}: {'; '.join(damage)}", hint=_again(name, folder))
    if outline is None or headers is None or faults:
        raise BadInput(
            f"{name} can't be {use}: {'; '.join([*faults, *damage])}", hint=faults.hint or _hint(name, folder)
        )
    return TrainableBase(
        name=name,
        folder=folder,
        config=outline.config,
        shape=outline.shape,
        positions=outline.positions,
        quantised=outline.quantised,
        differs=outline.differs,
        matrices=outline.matrices,
        weight_files=tuple(headers),
        tokenizer_files=outline.tokenizer_files,
        size_bytes=sum(one.size_bytes for one in headers.values()),
        word=_word(folder, headers),
    )


def read_outline(folder: Path, name: str) -> Outline | None:
    """Check the small files of a base; None if one is missing or invalid."""
    return _outline(folder, name, _Faults())


def read_config_alone(folder: Path, name: str) -> Outline:
    """Return the facts in config.json of a base without other files. Raises `BadInput`."""
    faults = _Faults()
    outline = _of_config(folder, name, faults)
    if outline is None:
        raise BadInput(f"{name} can't be trained: {'; '.join(faults)}", hint=faults.hint or _WANTED)
    return outline


def still_to_come(folder: Path) -> tuple[str, ...]:
    """Return the missing files of a base, by name or pattern, small files first; empty if more files would not help."""
    if not (folder / CONFIG).is_file() or not any((folder / one).is_file() for one in _TOKENIZERS):
        return SMALL_FILES
    names = _weight_names(folder, [])
    if read_outline(folder, "") is None or (not names and (folder / INDEX).is_file()):
        # The existing files show that it is unusable.
        return ()
    return tuple(one for one in names or (INDEX, SINGLE) if not (folder / one).is_file())


def is_in_hub_cache(folder: Path) -> bool:
    """Return True if a folder is a snapshot in the hub's cache."""
    return folder.parent.name == "snapshots"


def base_word(folder: Path) -> str:
    """Return a short name of a base by its content, 16 letters, in milliseconds. Raises `BadInput` if it is not a base.

    It is made from config.json and each weight file's size, header and samples of every tensor. It distinguishes
    trainings of one model; it is no proof of every byte, so results are never cached under it.
    """
    faults: list[str] = []
    headers = _headers(folder, faults, faults)
    if headers is None or not (folder / CONFIG).is_file():
        raise BadInput(f"{folder} is not a base: {'; '.join(faults) or f'it has no {CONFIG}'}", hint=_WANTED)
    return _word(folder, headers)


def _word(folder: Path, headers: Mapping[str, Header]) -> str:
    said: list[object] = [digest_bytes((folder / CONFIG).read_bytes())]
    for name, header in headers.items():
        tensors = [[key, one.dtype, list(one.shape)] for key, one in sorted(header.tensors.items())]
        said.append([header.size_bytes, tensors, digest_bytes(b"".join(pinch(folder / name, header)))])
    return digest_value("language-base", said)[:16]


def _outline(folder: Path, name: str, faults: _Faults) -> Outline | None:
    """Check the small files of a base; faults are collected."""
    outline = _of_config(folder, name, faults)
    tokenizer = tuple(sorted(one for one in _TOKENIZER_FILES if (folder / one).is_file()))
    if not any(one in tokenizer for one in _TOKENIZERS):
        faults.append("it has no tokenizer (tokenizer.json)")
        return None
    return None if outline is None else changed(outline, tokenizer_files=tokenizer)


def _of_config(folder: Path, name: str, faults: _Faults) -> Outline | None:
    config = _config(folder, faults)
    if config is None or not _is_causal(config, faults):
        return None
    if elsewhere := leads_elsewhere(folder, config):
        faults.append(elsewhere)
        return None
    differs = unlike(config)
    try:
        quantised = saved_as(config)
        shape = general_shape(config, {}) if differs else shape_of(config)
    except InvalidInput as error:
        faults.extend(map(str, error.faults))
        return None
    except StokerError as error:
        faults.append(error.message)
        faults.hint = error.hint
        return None
    if differs and quantised != "auto":
        faults.append(f"its weights are quantised, and {differs}; quantised bases take the fast path only")
        faults.hint = INSTEAD
        return None
    return Outline(
        name=name,
        config=config,
        shape=shape.model,
        positions=shape.positions,
        quantised=quantised,
        differs=differs,
        matrices=tuple(adaptable(shape)),
        tokenizer_files=(),
    )


def _config(folder: Path, faults: list[str]) -> Mapping[str, Any] | None:
    path = folder / CONFIG
    try:
        config = read_foreign_json(path)
    except FileNotFoundError:
        faults.append(f"it has no {CONFIG}")
        return None
    except (OSError, ValueError) as error:
        faults.append(f"its {CONFIG} can't be read: {_reason(error)}")
        return None
    if not isinstance(config, dict):
        faults.append(f"its {CONFIG} is not a JSON object")
        return None
    return config


def _is_causal(config: Mapping[str, Any], faults: list[str]) -> bool:
    """Return True if a config.json is that of a causal language model whose weights can be read."""
    classes = config.get("architectures")
    said = [one for one in classes if isinstance(one, str)] if isinstance(classes, list) else []
    family, known = config.get("model_type"), causal_families()
    if config.get("is_encoder_decoder") is True or (said and not any(one.endswith(_CAUSAL) for one in said)):
        faults.append(f"{shown(', '.join(said)) or 'it'} is not a causal language model")
    elif not family:
        faults.append("it names no model_type")
    elif not isinstance(family, str) or (known and family not in known):
        faults.append(
            f"its architecture {shown(repr(family))} is not supported: transformers has no causal language model of it"
        )
    else:
        return True
    return False


def _with_weights(outline: Outline, folder: Path, headers: Mapping[str, Header], faults: list[str]) -> Outline:
    """Check the weights; return what is known with them."""
    tensors = {name: one for header in headers.values() for name, one in header.tensors.items()}
    files = {name: folder / file for file, header in headers.items() for name in header.tensors}
    faults += _two_heads(outline, tensors, files)
    if outline.differs:
        sizes: Sizes = {name: one.shape for name, one in tensors.items()}
        faults += size_faults(outline.config, sizes)
        shape = general_shape(outline.config, sizes)
        faults += _unreadable((name for name in tensors if name.endswith(".weight")), tensors)
        return changed(outline, shape=shape.model, matrices=shape.matrices)
    faults += _misfits(outline, tensors, lambda name: read_tensor(files[name], tensors[name]))
    return changed(outline, differs=unlike_weights(without_parts(tensors), outline.shape))


def _headers(folder: Path, faults: list[str], damage: list[str]) -> dict[str, Header] | None:
    """Read the headers of all weight files; None if there is a fault, which is collected."""
    names = _weight_names(folder, faults)
    there = _there(folder, names)
    found: dict[str, Header] = {}
    missing = [name for name in names if name not in there]
    damaged: list[str] = []
    for name in names:
        try:
            if name in there:
                found[name] = read_header(folder / name)
        except FileNotFoundError:
            missing.append(name)
        except (OSError, ValueError) as error:
            damaged.append(f"{name} is damaged: {_reason(error)}")
    if missing:
        faults.append(f"{_some(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    if damaged:
        damage.append(_some(damaged, "; "))
    return found if names and len(found) == len(names) else None


def _there(folder: Path, names: Sequence[str]) -> frozenset[str]:
    """Return which files exist, with one query: an index may name any number."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset(names)


def _weight_names(folder: Path, faults: list[str]) -> list[str]:
    if (folder / INDEX).is_file():
        try:
            return list(read_index(folder))
        except (OSError, ValueError) as error:
            faults.append(f"{INDEX} can't be used: {_reason(error)}")
            return []
    if (folder / SINGLE).is_file():
        return [SINGLE]
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.gguf") for path in folder.glob(pattern))
    instead = f", only {others[0]}" if others else ""
    faults.append(f"it has no weights as safetensors{instead}")
    return []


def _misfits(outline: Outline, there: Mapping[str, TensorEntry], read: Callable[[str], bytes]) -> Iterator[str]:
    """Collect the differences between the weights and config.json. `read` returns the bytes of a tensor."""
    wanted = dict(_wanted(outline.shape))
    if outline.quantised != "auto":
        packed = [name for name in wanted if name in there and is_quantised(name, there)]
        for name in packed:
            yield from matrix_faults(name, wanted.pop(name), there, read, outline.quantised)
    missing = [name for name in wanted if name not in there]
    other = [name for name, size in wanted.items() if name in there and there[name].shape != size]
    if missing:
        yield f"it has no {_some(missing)}"
    if other:
        name = other[0]
        yield f"{name} is {list(there[name].shape)}; {CONFIG} states {list(wanted[name])}"
    yield from _unreadable(wanted, there)


def _unreadable(names: Iterable[str], there: Mapping[str, TensorEntry]) -> Iterator[str]:
    packed = sorted({there[name].dtype for name in names if name in there} - set(_READABLE))
    if packed:
        yield f"its weights are {', '.join(packed)}; supported: {', '.join(_READABLE)}"


def _two_heads(outline: Outline, there: Mapping[str, TensorEntry], files: Mapping[str, Path]) -> Iterator[str]:
    """Report an embedding and a head that are tied, but saved twice with different values."""
    # The defaults of other families than those of the fast path are not known.
    is_tied = outline.config.get("tie_word_embeddings") is True if outline.differs else outline.shape.is_tied
    embedding = next((name for name in there if name.endswith(_EMBEDDINGS)), None)
    if is_tied and HEAD in there and embedding is not None:
        sides = ((files[name], there[name]) for name in (embedding, HEAD))
        if not are_equal(*sides):
            yield f"{HEAD} and {embedding} differ, but {CONFIG} ties them (tie_word_embeddings)"


def _wanted(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBEDDING, (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        for linear in shape.linears:
            name = module_name(layer, linear.name)
            yield f"{name}.weight", (linear.outputs, linear.inputs)
            if linear.has_bias:
                yield f"{name}.bias", (linear.outputs,)
        for norm, size in block_norms(shape).items():
            yield f"model.layers.{layer}.{norm}.weight", (size,)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.is_tied:
        yield HEAD, (shape.vocabulary, shape.hidden)


def _some(names: list[str], between: str = ", ") -> str:
    more = len(names) - _SHOWN
    return between.join(map(shown, names[:_SHOWN])) + (f" and {more:,} more" if more > 0 else "")


def _hint(name: str, folder: Path) -> str:
    return _again(name, folder) if _is_of_hub(name, folder) and still_to_come(folder) else _WANTED


def _again(name: str, folder: Path) -> str:
    return f"stoker fetch {name}" if _is_of_hub(name, folder) else "copy it again"


def _is_of_hub(name: str, folder: Path) -> bool:
    return "/" in name and is_in_hub_cache(folder)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else first_line(error)


# A whole model on disk: its weights as one map by name, written in the layout of the hub.
#
# The same weights give the same bytes.


def read_weights(base: TrainableBase) -> dict[str, Tensor]:
    """Read every weight of a base. Raises `Damaged` if a file is."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for name in base.weight_files:
        try:
            weights |= load_file(base.folder / name)
        except (SafetensorError, OSError, ValueError) as error:
            raise unreadable_weights(str(base.folder / name), error) from error
    return weights


def write_model(folder: Path, base: TrainableBase, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write a base with other weights, with its config and tokenizer."""
    _copy_small_files(base, folder, dtype)
    shards = list(_shards(weights, dtype))
    if len(shards) == 1:
        _save(shards[0], folder / SINGLE, weights, dtype)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _save(names, folder / file, weights, dtype)
        weight_map |= dict.fromkeys(names, file)
    size_bytes = sum(one.numel() for one in weights.values()) * dtype.itemsize
    index = {"metadata": {"total_size": size_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(jsontext.dumps(index, indent=2) + "\n", encoding="utf-8", newline="")


def save_transformers(
    model: Any, weights: Mapping[str, Tensor], dtype: torch.dtype, base: TrainableBase, folder: Path
) -> None:
    """Write a model with such weights in the hub's layout, with the config and the tokenizer of its base.

    Weights that are tied are written once. The same weights give the same bytes.
    """
    buffers = {name for name, _ in model.named_buffers()}
    state = {name: one for name, one in model.state_dict().items() if name in buffers} | dict(weights)
    narrow = {
        name: one.detach().to("cpu", dtype if one.is_floating_point() else one.dtype) for name, one in state.items()
    }
    model.save_pretrained(folder, state_dict=narrow, max_shard_size=SHARD_BYTES)
    written = {one.name for one in folder.iterdir()}
    for name in written - set(base.files):
        if not name.endswith((".safetensors", INDEX)):
            (folder / name).unlink()
    _copy_small_files(base, folder, dtype)


def _copy_small_files(base: TrainableBase, folder: Path, dtype: torch.dtype) -> None:
    """Write what a base has beside its weights; its config with the precision of the new ones."""
    import shutil

    for name in base.files:
        if name not in (*base.weight_files, INDEX, CONFIG):
            shutil.copyfile(base.folder / name, folder / name)
    kept = {"torch_dtype", "dtype"} & base.config.keys() or {"torch_dtype"}
    config = {**base.config, **dict.fromkeys(kept, str(dtype).removeprefix("torch."))}
    (folder / CONFIG).write_text(jsontext.dumps(config, indent=2) + "\n", encoding="utf-8", newline="")


def stored_dtype(base: TrainableBase) -> torch.dtype:
    """Return the precision of most weights of a base."""
    import torch

    sizes: Counter[str] = Counter()
    for name in base.weight_files:
        for one in read_header(base.folder / name).tensors.values():
            sizes[one.dtype] += one.end - one.begin
    return {"F16": torch.float16, "BF16": torch.bfloat16}.get(sizes.most_common(1)[0][0], torch.float32)


def _shards(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterable[list[str]]:
    names: list[str] = []
    size_bytes = 0
    for name in sorted(weights):
        own_bytes = weights[name].numel() * dtype.itemsize
        if names and size_bytes + own_bytes > SHARD_BYTES:
            yield names
            names, size_bytes = [], 0
        names.append(name)
        size_bytes += own_bytes
    yield names


def _save(names: list[str], file: Path, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    # Integers, such as position ids, keep their type.
    from safetensors.torch import save_file

    widths = {name: dtype if weights[name].is_floating_point() else weights[name].dtype for name in names}
    tensors = {name: weights[name].detach().to("cpu", widths[name]).contiguous() for name in names}
    save_file(tensors, file, metadata={"format": "pt"})
