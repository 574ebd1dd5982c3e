"""Bases: finding one by what a user types, and all that can be known of it before anything runs.

`tiny` is bundled; a folder is a folder; `org/name` (or `org/name@revision`) is looked for in the hub's cache, where
`stoker fetch org/name` puts it. Whatever is wrong with a base is told at once. Nothing here reads more of the weights
than their headers and a pinch of each tensor, and nothing imports torch or transformers.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from stoker.cookbooks.language.bundled import BASES, bundled_base
from stoker.cookbooks.language.engine.shapes import FAMILIES, Shape, module_name, shape_of
from stoker.cookbooks.language.safetensors_header import INDEX, SINGLE, Header, pinch, read_header
from stoker.hardware.estimate.shape import ModelShape
from stoker.model.digests import digest_bytes, digest_value
from stoker.model.errors import BadInput, StokerError
from stoker.model.frozen import frozen
from stoker.model.suggest import did_you_mean
from stoker.plan.surroundings import surroundings

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
_LONGEST_JSON_BYTES = 64 * 1024 * 1024
_READABLE = ("F32", "F16", "BF16")
_SHOWN = 3


@frozen
class FoundBase:
    """A base that can be trained."""

    name: str
    """`org/name`, the bundled name, or what its folder is called: for people."""
    folder: Path
    config: Mapping[str, Any]
    shape: ModelShape
    positions: int
    """The longest sequence that it allows."""
    weight_files: tuple[str, ...]
    tokenizer_files: tuple[str, ...]
    size_bytes: int
    """Of its weights, as they lie on the disk."""
    word: str

    @property
    def family(self) -> str:
        return self.shape.family

    @property
    def vocabulary(self) -> int:
        return self.shape.vocabulary

    @property
    def files(self) -> tuple[str, ...]:
        """The files that make it what it is, sorted."""
        others = [name for name in (INDEX, *_OTHER_FILES) if (self.folder / name).is_file()]
        return tuple(sorted({CONFIG, *self.weight_files, *self.tokenizer_files, *others}))


def find_base(text: str) -> FoundBase:
    """Find a base and look it through. Raises `BadInput` with everything that is wrong, in one line."""
    name, folder = _folder_of(text.strip())
    stamps = _stamps(folder)
    looked = _LOOKED.get((name, folder))
    # The trials of a sweep ask for the same one again and again.
    if looked is None or looked[0] != stamps:
        looked = _LOOKED[name, folder] = stamps, read_base(folder, name=name)
    return looked[1]


_Stamps = tuple[tuple[str, int, int, int], ...]
_LOOKED: dict[tuple[str, Path], tuple[_Stamps, FoundBase]] = {}
"""What was seen in a folder, and how it looked then."""


def _stamps(folder: Path) -> _Stamps:
    stamps = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat()
                stamps.append((entry.name, info.st_ino, info.st_mtime_ns, info.st_size))
    return tuple(sorted(stamps))


def read_base(folder: Path, *, name: str = "") -> FoundBase:
    """Look a base's folder through. Raises `BadInput` with everything that is wrong, in one line."""
    name = name or folder.resolve().name
    faults: list[str] = []
    config = _config(folder, faults)
    shape = _shape(config, faults) if config is not None else None
    tokenizer = tuple(sorted(one for one in _TOKENIZER_FILES if (folder / one).is_file()))
    if not any(one in tokenizer for one in _TOKENIZERS):
        faults.append("it has no tokenizer (tokenizer.json)")
    headers = _headers(folder, faults)
    if shape is not None and headers is not None:
        faults += _misfits(shape, headers)
    if faults or shape is None or headers is None or config is None:
        raise BadInput(f"{name} can't be trained: {'; '.join(faults)}", hint=_hint(name, folder))
    return FoundBase(
        name=name,
        folder=folder,
        config=config,
        shape=shape.model,
        positions=shape.positions,
        weight_files=tuple(headers),
        tokenizer_files=tokenizer,
        size_bytes=sum(one.size_bytes for one in headers.values()),
        word=_word(folder, headers),
    )


def base_word(folder: Path) -> str:
    """Name a base by what it is, wherever it lies: 16 letters, in milliseconds. Raises `BadInput` if it is none.

    Made of config.json and of each weight file's size, header and a pinch of every tensor. It tells trainings of one
    model apart; it is no proof of every byte, so results are never kept under it.
    """
    faults: list[str] = []
    headers = _headers(folder, faults)
    if headers is None or not (folder / CONFIG).is_file():
        raise BadInput(f"{folder} is no base: {'; '.join(faults) or f'it has no {CONFIG}'}")
    return _word(folder, headers)


def _word(folder: Path, headers: Mapping[str, Header]) -> str:
    said: list[object] = [digest_bytes((folder / CONFIG).read_bytes())]
    for name, header in headers.items():
        tensors = [[key, one.dtype, list(one.shape)] for key, one in sorted(header.tensors.items())]
        said.append([header.size_bytes, tensors, digest_bytes(b"".join(pinch(folder / name, header)))])
    return digest_value("language-base", said)[:16]


def _folder_of(text: str) -> tuple[str, Path]:
    """Tell what a user means: a bundled base, a folder, or a model of the hub that is in its cache."""
    if text in BASES:
        return text, bundled_base(text)
    if not text or "\0" in text:
        raise BadInput("no base is given", hint=f"a folder, org/name of the hub, or {', '.join(BASES)}")
    path = Path(os.path.expanduser(text))
    with suppress(OSError):
        if path.is_dir():
            return path.resolve().name, path
        if path.exists():
            hint = "give the folder that holds config.json, the tokenizer and the weights as safetensors"
            raise BadInput(f"{text} is a file, and a base is a folder", hint=hint)
    return text, _in_cache(text)


def _in_cache(text: str) -> Path:
    from stoker.store.hub.address import MAIN, Repo, check_revision, read_repo
    from stoker.store.hub.cache import HubCache

    name, _, revision = text.partition("@")
    repo: Repo | None = None
    if "/" in name.rstrip("/") and not name.startswith(("/", ".", "~")):
        with suppress(BadInput):
            # First, for it names a folder, too: none outside of the cache.
            check_revision(revision or MAIN)
            repo = read_repo(name)
    if repo is None or repo.kind != "model":
        raise BadInput(
            f"there is no folder {text}",
            hint=did_you_mean(text, BASES) or f"a folder, org/name of the hub, or {', '.join(BASES)}",
        )
    cache = HubCache(surroundings().hub_cache() or os.path.expanduser("~/.cache/huggingface/hub"))
    commit = cache.read_ref(repo, revision or MAIN) or revision
    folder = Path(cache.snapshot(repo, commit)) if commit else Path()
    if not commit or not folder.is_dir():
        raise BadInput(f"{text} is no folder here and is not in the hub's cache", hint=f"stoker fetch {text}")
    return folder


def _config(folder: Path, faults: list[str]) -> Mapping[str, Any] | None:
    path = folder / CONFIG
    try:
        told = _read_json(path)
    except FileNotFoundError:
        faults.append(f"it has no {CONFIG}")
        return None
    except (OSError, ValueError) as error:
        faults.append(f"its {CONFIG} can't be read: {_reason(error)}")
        return None
    if not isinstance(told, dict):
        faults.append(f"its {CONFIG} is no table")
        return None
    return told


def _shape(config: Mapping[str, Any], faults: list[str]) -> Shape | None:
    classes = config.get("architectures")
    said = [one for one in classes if isinstance(one, str)] if isinstance(classes, list) else []
    if config.get("is_encoder_decoder") is True or (said and not any(one.endswith("ForCausalLM") for one in said)):
        faults.append(f"{', '.join(said) or 'it'} is no causal language model")
        return None
    family = config.get("model_type")
    if family not in FAMILIES:
        known = f"known are {', '.join(FAMILIES)}"
        faults.append(
            f"its architecture, {family!r}, is not known here ({known})" if family else "it names no model_type"
        )
        return None
    if config.get("quantization_config"):
        faults.append("its weights are quantised, and 32 or 16 bits are wanted")
        return None
    try:
        return shape_of(config)
    except StokerError as error:
        faults.append(error.message)
        return None


def _headers(folder: Path, faults: list[str]) -> dict[str, Header] | None:
    """Read the headers of all weight files; None if there is something wrong, which is noted."""
    names = _weight_names(folder, faults)
    found: dict[str, Header] = {}
    missing: list[str] = []
    for name in names:
        try:
            found[name] = read_header(folder / name)
        except FileNotFoundError:
            missing.append(name)
        except (OSError, ValueError) as error:
            faults.append(f"{name} is damaged: {_reason(error)}")
    if missing:
        faults.append(f"{_some(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return found if names and len(found) == len(names) else None


def _weight_names(folder: Path, faults: list[str]) -> list[str]:
    if (folder / INDEX).is_file():
        try:
            named = set(_read_json(folder / INDEX)["weight_map"].values())
            if not named or any(not isinstance(one, str) or Path(one).name != one for one in named):
                raise ValueError("it does not name files of this folder")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            faults.append(f"{INDEX} can't be used: {_reason(error)}")
            return []
        return sorted(named)
    if (folder / SINGLE).is_file():
        return [SINGLE]
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.gguf") for path in folder.glob(pattern))
    instead = f", only {others[0]}" if others else ""
    faults.append(f"it has no weights as safetensors{instead}")
    return []


def _misfits(shape: Shape, headers: Mapping[str, Header]) -> Iterator[str]:
    """Tell where the weights are not what config.json promises."""
    there = {name: one for header in headers.values() for name, one in header.tensors.items()}
    wanted = dict(_wanted(shape))
    missing = [name for name in wanted if name not in there]
    other = [name for name, size in wanted.items() if name in there and there[name].shape != size]
    packed = sorted({there[name].dtype for name in wanted if name in there} - set(_READABLE))
    if missing:
        yield f"it has no {_some(missing)}"
    if other:
        name = other[0]
        yield f"{name} is {list(there[name].shape)}, and {CONFIG} says {list(wanted[name])}"
    if packed:
        yield f"its weights are {', '.join(packed)}, and {', '.join(_READABLE)} can be read"


def _wanted(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    model = shape.model
    yield "model.embed_tokens.weight", (model.vocabulary, model.hidden)
    for layer in range(model.layers):
        for linear in model.linears:
            yield f"{module_name(layer, linear.name)}.weight", (linear.outputs, linear.inputs)
    yield "model.norm.weight", (model.hidden,)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _hint(name: str, folder: Path) -> str:
    return f"stoker fetch {name}" if "/" in name and folder.parent.name == "snapshots" else ""


def _read_json(path: Path) -> Any:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no file")
    if found.st_size > _LONGEST_JSON_BYTES:
        raise ValueError("it is too large")
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error).split("\n")[0] or repr(error)
