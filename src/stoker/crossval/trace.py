"""A trace: what one runtime answered for given token ids, as files, so that it can be compared later and elsewhere.

    trace.json    who ran it and how, the model's digest, token ids, and what the files below have
    logits.f32    a row of the vocabulary for each position, little-endian
    decode.f32    the same for the second half of the positions, fed one by one
    layers.f32    the output of each layer, then positions, then width: what layers are replayed with
    top.jsonl     instead of logits, of servers that tell only the most probable tokens

One position is in memory at a time, on both ways: a trace of 64 positions over 150,000 tokens is 38 MB on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from stoker.core.errors import StageInputError
from stoker.core.frozen import fields_of, fresh, frozen
from stoker.core.jsontext import dumps, loads
from stoker.crossval.plugin_messages import Loaded, LoadRequest, RanWith, fallbacks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

FORMAT = 1
FLOAT_BYTES = 4
_HEADER = "trace.json"
_LARGEST_HEADER = 64 << 20
_COUNTS = ("n_vocab", "n_layers", "tensors", "used", "width")


@frozen
class TraceHeader:
    """What a trace has, and how it was made."""

    runtime: str
    version: str
    model: str
    """The name of its file or folder."""
    sha256: str
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    """What the runtime's tokenizer made of the texts; empty: it has none."""
    n_vocab: int
    n_layers: int
    ran: Mapping[str, Any]
    """Device, precision of weights and cache, kernels, as the runtime recorded them."""
    tensors: int
    """In the model's files; 0: the runtime does not tell."""
    used: int
    requested: Mapping[str, Any] = fresh(factory=dict)
    tokenizer_sha256: str = ""
    layers: tuple[str, ...] = ()
    """Names of the outputs that are kept, in the order in which they are stored."""
    width: int = 0
    has_decode: bool = False
    has_top: bool = False
    machine: Mapping[str, Any] = fresh(factory=dict)
    prefill_s: float = 0.0
    files: Mapping[str, str] = fresh(factory=dict)
    """SHA-256 of each file of the model, by its name."""
    traced_at: str = ""
    is_strict: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"v": FORMAT, **fields_of(self)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TraceHeader:
        """Parse a header. Raises `KeyError`, `TypeError` or `ValueError` on anything else."""
        if raw["v"] != FORMAT:
            raise ValueError(f"format {raw['v']!r}")
        values = {name: raw[name] for name in cls.__annotations__}
        if not all(type(values[name]) is int and values[name] >= 0 for name in _COUNTS):
            raise ValueError(f"one of {', '.join(_COUNTS)} is no count")
        ids = tuple(int(one) for one in values["ids"])
        tokens = tuple(tuple(int(one) for one in row) for row in values["tokens"])
        texts, layers = tuple(map(str, values["texts"])), tuple(map(str, values["layers"]))
        return cls(**{**values, "ids": ids, "tokens": tokens, "texts": texts, "layers": layers})

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions that decide how exact this side can be."""
        found = (str(self.ran.get(name, "")) for name in ("weights", "kv", "compute"))
        return tuple(one for one in found if one.lower() not in ("", "none"))

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """In what this side did not run as requested."""
        if not self.requested:
            return ()
        ran = {name: self.ran.get(name, "") for name in ("device", "weights", "kv", "flash", "compute")}
        loaded = Loaded(
            n_vocab=self.n_vocab,
            n_layers=self.n_layers,
            width=self.width,
            ran=RanWith(**ran, kernels=tuple(map(str, self.ran.get("kernels", ())))),
            tensors=self.tensors,
            used=self.used,
            tokenizer_sha256=self.tokenizer_sha256,
        )
        asked = {name: self.requested[name] for name in ("device", "precision") if name in self.requested}
        return fallbacks(LoadRequest(model=self.model, **asked), loaded)


class Trace:
    """A trace that was written, opened to be read."""

    def __init__(self, folder: str) -> None:
        """Read the header. Raises `StageInputError` if the folder holds no trace, or an incomplete one."""
        self.folder = folder
        try:
            with open(os.path.join(folder, _HEADER), "rb") as file:
                data = file.read(_LARGEST_HEADER + 1)
            self.header = TraceHeader.from_json(loads(data) if len(data) <= _LARGEST_HEADER else {})
            sizes = self._sizes()
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise StageInputError(f"{folder} is not a trace: {error}") from None
        for name, size_bytes in sizes.items():
            path = os.path.join(folder, name)
            if not os.path.isfile(path) or os.path.getsize(path) != size_bytes:
                raise StageInputError(f"{path} is missing or incomplete")

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all its files."""
        names = (_HEADER, *self._sizes(), *(["top.jsonl"] if self.header.has_top else []))
        return tuple(os.path.join(self.folder, name) for name in names)

    def logits(self) -> Iterator[Vector]:
        """Yield the logits of each position; a row is valid until the next one."""
        return self._rows("logits.f32")

    def decoded(self) -> Iterator[tuple[int, Vector]]:
        """Yield position and logits of the second half, which was fed one by one."""
        first = decode_from(len(self.header.ids))
        return ((first + n, row) for n, row in enumerate(self._rows("decode.f32")))

    def top(self) -> Iterator[Mapping[int, float]]:
        """Yield the most probable tokens of each position, with their log probabilities."""
        with open(os.path.join(self.folder, "top.jsonl"), "rb") as file:
            for line in file:
                yield {int(token): float(value) for token, value in loads(line)}

    def output(self, name: str) -> Vector:
        """Return an output over all positions by its name. Raises `ValueError` if it is not shown."""
        return self.layer(self.header.layers.index(name))

    def layer(self, number: int) -> Vector:
        """Return an output over all positions by its place among those that are shown."""
        import numpy as np

        shape = (len(self.header.ids), self.header.width)
        count = shape[0] * shape[1]
        with open(os.path.join(self.folder, "layers.f32"), "rb") as file:
            file.seek(number * count * FLOAT_BYTES)
            return np.fromfile(file, dtype="<f4", count=count).reshape(shape)

    def _rows(self, name: str) -> Iterator[Vector]:
        """Yield the rows of a file; each is valid until the next one."""
        import numpy as np

        row = np.empty(self.header.n_vocab, dtype="<f4")
        with open(os.path.join(self.folder, name), "rb") as file:
            while row.size and file.readinto(row.data) == row.nbytes:
                yield row

    def _sizes(self) -> dict[str, int]:
        header = self.header
        count, row = len(header.ids), header.n_vocab * FLOAT_BYTES
        sizes = {} if header.has_top else {"logits.f32": count * row}
        if header.has_decode:
            sizes["decode.f32"] = (count - decode_from(count)) * row
        if header.layers:
            sizes["layers.f32"] = len(header.layers) * count * header.width * FLOAT_BYTES
        return sizes


def decode_from(count: int) -> int:
    """Return the first position that is fed alone."""
    return count // 2


class TraceWriter:
    """Writes a trace into a new folder, row by row."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._open = ExitStack()
        self._files: dict[str, Any] = {}
        self._layers: dict[str, int] = {}
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def append(self, name: str, values: bytes | memoryview) -> None:
        """Append a row to `logits.f32` or `decode.f32`."""
        self._file(name).write(values)

    def append_top(self, top: Sequence[tuple[int, float]]) -> None:
        """Append the most probable tokens of the next position."""
        self._file("top.jsonl").write(f"{dumps([list(pair) for pair in top])}\n".encode())

    def put_layer(self, name: str, pos: int, count: int, values: bytes | memoryview) -> None:
        """Write one output at one of `count` positions to its place."""
        size = memoryview(values).nbytes
        self._width = self._width or size // FLOAT_BYTES
        number = self._layers.setdefault(name, len(self._layers))
        file = self._file("layers.f32")
        file.seek((number * count + pos) * size)
        file.write(values)

    def has(self, name: str) -> bool:
        """Return True if a row of that file was written."""
        return name in self._files

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self._layers)

    @property
    def width(self) -> int:
        return self._width

    def finish(self, header: TraceHeader) -> None:
        """Write the header: the trace is complete."""
        for file in self._files.values():
            file.flush()
        with open(os.path.join(self.folder, _HEADER), "w", encoding="utf-8") as out:
            out.write(f"{dumps(header.to_json())}\n")

    def _file(self, name: str) -> Any:
        if name not in self._files:
            file = open(os.path.join(self.folder, name), "wb")  # noqa: SIM115 - closed with the others
            self._files[name] = self._open.enter_context(file)
        return self._files[name]
