"""Responses of a plug-in, read and checked: types, ranges, order and sizes, and that all numbers are finite.

Pure: what is wrong is an `InvalidResponse`, which `plugin_process` turns into an error with the plug-in's name and log.
`ran` of `Loaded` is what the plug-in says that it did; `fallbacks` compares it with what was requested.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

from stoker.core.errors import PluginFailed, PluginInvalid, PluginNotFinite, SilentFallback
from stoker.core.frozen import fresh, frozen
from stoker.core.text import one_line

VERSION = 1
ABILITIES = ("tokenize", "logits", "layers", "replay")

_ROW_BYTES = 4096
_WIDEST = 1 << 20
"""Numbers in a layer's row, if the plug-in named no width."""
_MOST_IDS = 1 << 22
_MOST_VOCAB = 1 << 24
_MOST_TOP = 1 << 16
_MOST_LAYERS = 1 << 14
_MOST_KERNELS = 10_000
_LONGEST_KERNEL = 128
_LONGEST_TEXT = 400
_MOST_WORDS = 16
_LONGEST_WORDS = 4000
# A logprob is at most 0, but for rounding.
_ROUNDING = 1e-3


class InvalidResponse(Exception):
    """What is wrong with a response, behind the plug-in's name; `kind` is the error that it becomes."""

    def __init__(self, what: str, kind: type[PluginFailed] = PluginInvalid, **data: object) -> None:
        super().__init__(what)
        self.kind = kind
        self.data = data


@frozen
class PluginInfo:
    """What a plug-in is."""

    name: str
    version: str
    can: tuple[str, ...]
    """Those of `ABILITIES` that it has."""


@frozen
class LoadRequest:
    """The model that a plug-in is to load, and how."""

    model: str
    """A file, a folder, or the address of a server."""
    sha256: str = ""
    """Digest of the file; empty: not checked by the plug-in."""
    precision: str = ""
    """`f32`, `f16`, `bf16` or `4bit`; empty: that of the file, or the runtime's own."""
    threads: int = 1
    seed: int = 42
    device: str = "cpu"
    base: str = ""
    """Folder of the model that `model` is an adapter of; empty: it is none."""


@frozen
class RanWith:
    """What a plug-in says that it ran with: evidence for `fallbacks`."""

    device: str
    weights: str
    """Type of most weights: `F32`, `BF16`, `Q8_0`."""
    kv: str
    """Type of the attention cache."""
    flash: bool
    kernels: tuple[str, ...]
    compute: str = ""
    """The coarsest type that activations passed through, if that is not the one of the weights or the cache."""


@frozen
class Loaded:
    """A model that a plug-in has loaded."""

    n_vocab: int
    """Numbers in a row of logits; 0 if the plug-in does not know: its rows are `top` then."""
    n_layers: int
    width: int
    """Numbers in a row of a layer; 0 if the plug-in does not know."""
    ran: RanWith
    tensors: int
    """In the model's files."""
    used: int
    """Of these."""
    tokenizer_sha256: str
    """`vocabulary_digest` of its tokens; empty if it has no tokenizer."""
    build: Mapping[str, str] = fresh(factory=dict)
    """What it tells of its own build: `library`, `flags`."""


@frozen
class PluginRow:
    """The numbers of one position: its logits, the values of a layer there, or its top logprobs."""

    pos: int
    layer: str | None = None
    values: memoryview[float] = memoryview(b"").cast("f")
    """float32; empty if there is only `top`."""
    top: tuple[tuple[int, float], ...] = ()
    """Ids with their logprobs."""


def read_hello(fields: ResponseFields) -> PluginInfo:
    """Return what a plug-in is."""
    version = fields.number("v", 1 << 30)
    if version != VERSION:
        raise InvalidResponse(f"speaks version {version} of the protocol, not {VERSION}")
    can = fields.texts("can", len(ABILITIES) * 4, _LONGEST_KERNEL)
    return PluginInfo(
        name=fields.text("name"), version=fields.text("version"), can=tuple(one for one in ABILITIES if one in can)
    )


def read_loaded(fields: ResponseFields) -> Loaded:
    """Return what a plug-in has loaded."""
    ran = fields.inner("ran")
    return Loaded(
        n_vocab=fields.number("n_vocab", _MOST_VOCAB),
        n_layers=fields.number("n_layers", _MOST_LAYERS, 0),
        width=fields.number("width", _WIDEST, 0),
        ran=RanWith(
            device=ran.text("device"),
            weights=ran.text("weights", ""),
            kv=ran.text("kv", ""),
            flash=ran.flag("flash"),
            kernels=ran.texts("kernels", _MOST_KERNELS, _LONGEST_KERNEL),
            compute=ran.text("compute", ""),
        ),
        tensors=fields.number("tensors", 1 << 30, 0),
        used=fields.number("used", 1 << 30, 0),
        tokenizer_sha256=fields.text("tokenizer_sha256", ""),
        build=fields.words("build"),
    )


def require_finite(values: memoryview[float], *, layer: str | None, pos: int | None = None) -> None:
    """Raise `InvalidResponse` if a number is NaN or infinite."""
    import numpy as np

    flat = np.asarray(values)
    if np.isfinite(flat).all():
        return
    at = int(np.argmin(np.isfinite(flat)))
    where = f"{layer or 'logits'}" + ("" if pos is None else f" of position {pos}")
    message = f"returned {flat[at]} in {where}, number {at}"
    raise InvalidResponse(message, PluginNotFinite, layer=layer, pos=pos, index=at)


def encoded_bytes(count: int) -> int:
    """Return the longest line with that many numbers."""
    return (4 * count + 2) // 3 * 4 + _ROW_BYTES


class LogitsRows:
    """Checks the rows of one request: every position once, in order, its layers before its logits."""

    def __init__(self, loaded: Loaded, count: int, *, layers: bool) -> None:
        self._loaded = loaded
        self._count = count
        self._has_layers = layers
        self._pos = 0
        self._seen: set[str] = set()
        self._widths: dict[str, int] = {}
        widest = max(loaded.n_vocab, (loaded.width or _WIDEST) if layers else 0)
        self.most_bytes = encoded_bytes(widest) + 64 * _MOST_TOP

    def read(self, fields: ResponseFields) -> PluginRow | None:
        """Return a row; None at the end."""
        if fields.has("done"):
            if fields.number("done", _MOST_IDS) != self._count or self._pos != self._count:
                raise InvalidResponse(f"ended logits after {self._pos} of {self._count} positions")
            return None
        pos = fields.number("pos", _MOST_IDS)
        if pos != self._pos or pos >= self._count:
            raise InvalidResponse(f"returned position {pos} where {self._pos} of {self._count} is next")
        row = self._layer_row(fields, pos) if fields.has("layer") else self._last_row(fields, pos)
        if row.values:
            require_finite(row.values, layer=row.layer, pos=pos)
        return row

    def _layer_row(self, fields: ResponseFields, pos: int) -> PluginRow:
        name = fields.text("layer")
        if not self._has_layers or name in self._seen or len(self._seen) > 4 * self._loaded.n_layers + 16:
            raise InvalidResponse(f"returned layer {name!r} of position {pos} twice or without a request")
        self._seen.add(name)
        values = fields.vector("values", self._widths.get(name) or self._loaded.width or None)
        self._widths[name] = len(values)
        return PluginRow(pos=pos, layer=name, values=values)

    def _last_row(self, fields: ResponseFields, pos: int) -> PluginRow:
        """Return the row that ends a position."""
        if self._widths and self._seen != set(self._widths):
            missing = ", ".join(sorted(set(self._widths) - self._seen)[:3])
            raise InvalidResponse(f"left out layer {missing} of position {pos}")
        self._pos += 1
        self._seen.clear()
        if not fields.has("top"):
            if not self._loaded.n_vocab:
                raise InvalidResponse("returned logits, but no size of the vocabulary when it loaded the model")
            return PluginRow(pos=pos, values=fields.vector("logits", self._loaded.n_vocab))
        return PluginRow(pos=pos, top=fields.top("top", self._loaded.n_vocab))


class ResponseFields:
    """The fields of one response."""

    def __init__(self, op: str, fields: dict[str, Any]) -> None:
        self._op = op
        self._fields = fields

    def has(self, name: str) -> bool:
        return name in self._fields

    def number(self, name: str, most: int, default: int | None = None) -> int:
        value = self._fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self._wrong(name, f"a whole number from 0 to {most}")
        return value

    def flag(self, name: str) -> bool:
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._fields.get(name, default)
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise self._wrong(name, f"a text of at most {_LONGEST_TEXT} characters")
        return one_line(value)

    def texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        value = self._fields.get(name, [])
        is_valid = isinstance(value, list) and len(value) <= most
        if not is_valid or not all(isinstance(one, str) and 0 < len(one) <= longest for one in value):
            raise self._wrong(name, f"a list of at most {most:,} texts of at most {longest} characters")
        return tuple(map(one_line, value))

    def words(self, name: str) -> dict[str, str]:
        value = self._fields.get(name, {})
        is_valid = isinstance(value, dict) and len(value) <= _MOST_WORDS
        if not is_valid or not all(isinstance(one, str) and len(one) <= _LONGEST_WORDS for one in value.values()):
            raise self._wrong(name, f"an object of at most {_MOST_WORDS} texts")
        return {key[:_LONGEST_KERNEL]: one_line(text) for key, text in value.items()}

    def inner(self, name: str) -> ResponseFields:
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return ResponseFields(self._op, value)

    def ids(self, name: str, n_vocab: int) -> tuple[int, ...]:
        value, limit = self._fields.get(name), n_vocab or _MOST_VOCAB
        is_valid = isinstance(value, list) and len(value) <= _MOST_IDS
        if not is_valid or not all(type(one) is int and 0 <= one < limit for one in value or ()):
            raise self._wrong(name, f"a list of ids below {limit}")
        return tuple(value or ())

    def vector(self, name: str, count: int | None) -> memoryview[float]:
        """Return float32 numbers; `count` of them, if it is known."""
        value = self._fields.get(name)
        try:
            data = base64.b64decode(value if isinstance(value, str) else "=", validate=True)
            values = memoryview(data).cast("f")
        except (binascii.Error, TypeError, ValueError):
            raise self._wrong(name, "base64 of float32 numbers") from None
        if not len(values) or count not in (None, len(values)):
            raise self._wrong(name, f"{count or 'some'} numbers, not {len(values)}")
        return values

    def top(self, name: str, n_vocab: int) -> tuple[tuple[int, float], ...]:
        """Return ids with their logprobs, the highest first."""
        value = self._fields.get(name)
        pairs = [_pair(one) for one in value] if isinstance(value, list) and 0 < len(value) <= _MOST_TOP else []
        found = {pair[0]: pair[1] for pair in pairs if pair is not None}
        limit = n_vocab or _MOST_VOCAB
        if not found or len(found) != len(value or ()) or max(found) >= limit or max(found.values()) > _ROUNDING:
            raise self._wrong(name, "a list of [id, logprob], each id once")
        return tuple(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))

    def _wrong(self, name: str, expected: str) -> InvalidResponse:
        shown = one_line(repr(self._fields.get(name)), 80) if name in self._fields else "nothing"
        return InvalidResponse(f"returned {shown} as {name} of {self._op}: expected {expected}")


def _pair(one: object) -> tuple[int, float] | None:
    if not isinstance(one, list) or len(one) != 2 or type(one[0]) is not int or one[0] < 0:
        return None
    if isinstance(one[1], bool) or not isinstance(one[1], int | float) or not math.isfinite(one[1]):
        return None
    return one[0], float(one[1])


# What was promised, and what ran.

_WEIGHTS = {
    "f32": ("F32",),
    "f16": ("F16",),
    "bf16": ("BF16",),
    "4bit": ("NF4", "FP4", "INT4"),
    "4bit-as-f32": ("F32",),
}


def fallbacks(request: LoadRequest, loaded: Loaded) -> tuple[str, ...]:
    """Return in what a plug-in did not do what was requested, a line for each; none if it did."""
    found = []
    ran, device = loaded.ran, request.device.partition(":")[0]
    if ran.device.partition(":")[0] != device:
        found.append(f"device {request.device} was requested, it ran on {ran.device or 'an unknown one'}")
    elif device not in ("cpu", "server") and not any(name.startswith(f"{device}.") for name in ran.kernels):
        found.append(f"no kernel of {device} ran")
    if request.precision and ran.weights not in labels_of(request.precision):
        found.append(f"precision {request.precision} was requested, its weights are {ran.weights or 'unknown'}")
    if loaded.used < loaded.tensors:
        found.append(f"{loaded.tensors - loaded.used} of {loaded.tensors} tensors of the model are not used")
    return tuple(found)


def labels_of(precision: str) -> tuple[str, ...]:
    """Return what the weights of a run may be called that was to have this precision."""
    return _WEIGHTS.get(precision, (precision.upper(),))


def require_promised(request: LoadRequest, loaded: Loaded, *, label: str) -> None:
    """Raise `SilentFallback` if a plug-in did not do what was requested: for `--strict`."""
    if found := fallbacks(request, loaded):
        raise SilentFallback(f"{label}: {'; '.join(found)}", plugin=label, fallbacks=list(found))
