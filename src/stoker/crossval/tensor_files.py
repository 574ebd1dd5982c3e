"""Two models compared tensor by tensor, and values that are not finite.

Blocks of 256 KiB are compared as bytes first; values are computed only for blocks that differ. Two threads read, so
equal files are compared as fast as they are read, and memory does not grow with them. Tensors of different types, or in
another order of rows, are compared by values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf, isfinite, lcm, prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Self

from stoker.core.errors import Damaged
from stoker.core.frozen import frozen
from stoker.crossval.model_files import ModelFiles, StoredTensor
from stoker.crossval.tensor_values import block_of, can_read, count_of, read_values
from stoker.host.durable import translated
from stoker.store.weight_files.headers import TensorEntry
from stoker.store.weight_files.tensor_layouts import TensorLayout, interleaved

if TYPE_CHECKING:
    from stoker.crossval.tensor_values import Values

BLOCK_BYTES: Final = 256 * 1024
TensorOutcome = Literal["same", "equal", "different", "missing", "extra", "shape", "unreadable"]
OnBytes = Callable[[int], None]
"""Is called with the bytes that were read of the candidate, by any thread."""
_READERS: Final = 2
"""Threads that compare tensors: while one compares bytes, the other one reads."""


@frozen
class TensorComparison:
    """One tensor of the candidate beside that of the reference."""

    name: str
    """In the candidate; in the reference if the candidate lacks it."""
    reference_name: str
    outcome: TensorOutcome
    """`same`: the same bytes; `equal`: other bytes, as of another type, but the same values."""
    values: int = 0
    different: int = 0
    """How many values differ."""
    first: tuple[int, ...] = ()
    """Where the first one is in the reference's tensor."""
    max_abs: float = 0.0
    largest: float = 0.0
    """The largest value of the reference, without its sign, in the blocks whose values were compared."""
    nmse: float = 0.0
    """Sum of squared differences, divided by that of the reference's values, in the blocks that differ."""
    text: str = ""

    @property
    def is_same(self) -> bool:
        return self.outcome in ("same", "equal")


@frozen
class NotFinite:
    """Values of a tensor that are NaN or infinite."""

    name: str
    count: int
    first: tuple[int, ...]


def compare_models(
    candidate: ModelFiles, reference: ModelFiles, *, on_bytes: OnBytes | None = None
) -> Iterator[TensorComparison]:
    """Compare all tensors, in the order of the reference's files. Raises `Damaged` if a file became shorter."""
    with _OpenFiles() as files, ThreadPoolExecutor(_READERS) as readers:

        def compared(named: tuple[str, str, TensorLayout | None]) -> TensorComparison:
            name, other, layout = named
            one, two = candidate.tensors.get(name), reference.tensors.get(other)
            if one is None:
                return TensorComparison(name=other, reference_name=other, outcome="missing", text="missing")
            if two is None:
                return TensorComparison(name=name, reference_name="", outcome="extra", text="not in the reference")
            change = _change(layout, is_gguf_first=candidate.format == "gguf")
            pair = _Pair(name=name, other=other, one=one, two=two, change=change)
            return _PairReading(pair, files, on_bytes or _ignore).comparison()

        yield from readers.map(compared, list(_pairs(candidate, reference)))


def find_not_finite(model: ModelFiles, *, on_bytes: OnBytes | None = None) -> Iterator[NotFinite]:
    """Return the tensors with NaN or infinite values. Types that can't be read are left out."""
    import numpy as np

    with _OpenFiles() as files:
        for name, tensor in sorted(model.tensors.items(), key=lambda item: (item[1].path, item[1].entry.begin)):
            count, first, at = 0, -1, 0
            for data in files.blocks(tensor, _step(block_of(tensor.entry.dtype)[1])):
                (on_bytes or _ignore)(len(data))
                if can_read(tensor.entry.dtype):
                    wrong = np.flatnonzero(~np.isfinite(read_values(data, tensor.entry.dtype)))
                    first = at + int(wrong[0]) if wrong.size and first < 0 else first
                    count += wrong.size
                at += len(data) // block_of(tensor.entry.dtype)[1] * block_of(tensor.entry.dtype)[0]
            if count:
                yield NotFinite(name=name, count=count, first=_place(first, tensor.entry.shape))


def _ignore(_: int) -> None:
    """Do nothing."""


def _pairs(candidate: ModelFiles, reference: ModelFiles) -> Iterator[tuple[str, str, TensorLayout | None]]:
    """Return names in both, each with its layout; an empty one if a side lacks it."""
    if candidate.format == reference.format:
        order = sorted(reference.tensors, key=lambda name: _order(reference.tensors[name]))
        yield from ((name if name in candidate.tensors else "", name, None) for name in order)
        yield from ((name, "", None) for name in candidate.tensors if name not in reference.tensors)
        return
    layouts = candidate.layouts or reference.layouts
    seen: set[str] = set()
    for layout in layouts:
        name, other = _stored(candidate, layout), _stored(reference, layout)
        if name or other:
            yield name, other, layout
        seen |= {name, other}
    yield from (("", name, None) for name in reference.unknown() if name not in seen)
    yield from ((name, "", None) for name in candidate.unknown() if name not in seen)


def _stored(model: ModelFiles, layout: TensorLayout) -> str:
    """Return the name in a model's files; for a head that is the embedding, that of the embedding."""
    name = model.stored_name(layout)
    if not name and layout.gguf == "output.weight" and model.layouts:
        return model.stored_name(model.layouts[0])
    return name


def _order(tensor: StoredTensor) -> tuple[Path, int]:
    return tensor.path, tensor.entry.begin


@frozen
class _Change:
    """How the rows of one side are turned into those of the other."""

    heads: int = 0
    is_transposed: bool = False
    is_gguf_first: bool = False


def _change(layout: TensorLayout | None, *, is_gguf_first: bool) -> _Change:
    if layout is None:
        return _Change()
    return _Change(heads=layout.heads, is_transposed=layout.is_transposed, is_gguf_first=is_gguf_first)


@frozen
class _Pair:
    """Two tensors that should be the same."""

    name: str
    other: str
    one: StoredTensor
    two: StoredTensor
    change: _Change


class _OpenFiles:
    """The files that are read, each opened once."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._lock = Lock()
        self._open: dict[Path, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def blocks(self, tensor: StoredTensor, step: int) -> Iterator[bytearray]:
        """Return a tensor's bytes in blocks; the same buffer each time, but for the last one."""
        descriptor, at, end = self._file(tensor.path).fileno(), tensor.entry.begin, tensor.entry.end
        data = bytearray(min(step, end - at))
        while at < end:
            if end - at < len(data):
                data = bytearray(end - at)
            with translated(tensor.path):
                taken = os.preadv(descriptor, (data,), at)
                if taken < len(data):
                    taken += _read_rest(descriptor, memoryview(data)[taken:], at + taken)
            if taken < len(data):
                raise Damaged(f"{tensor.path} became shorter while it was read", hint="copy or download it again")
            at += taken
            yield data

    def _file(self, path: Path) -> BinaryIO:
        with self._lock:
            if path not in self._open:
                with translated(path):
                    self._open[path] = self._stack.enter_context(path.open("rb", buffering=0))
            return self._open[path]


def _read_rest(descriptor: int, view: memoryview, at: int) -> int:
    """Read until a view is full or the file ends; return how many bytes were read. A signal may end a read early."""
    taken = 0
    while taken < len(view) and (count := os.preadv(descriptor, (view[taken:],), at + taken)):
        taken += count
    return taken


class _PairReading:
    """The comparison of one pair."""

    def __init__(self, pair: _Pair, files: _OpenFiles, on_bytes: OnBytes) -> None:
        self._pair, self._change = pair, pair.change
        self._one, self._two = pair.one, pair.two
        self._files, self._on_bytes = files, on_bytes
        self._different = 0
        self._first = -1
        self._max_abs = 0.0
        self._largest = 0.0
        self._squares = [0.0, 0.0]
        self._is_same = True

    def comparison(self) -> TensorComparison:
        one, two = self._one.entry, self._two.entry
        shape = one.shape[::-1] if self._change.is_transposed else one.shape
        if shape != two.shape:
            return self._result("shape", f"its shape is {list(one.shape)}; in the reference {list(two.shape)}")
        is_plain = one.dtype == two.dtype and not self._change.heads and not self._change.is_transposed
        is_readable = can_read(one.dtype) and can_read(two.dtype)
        if is_plain and not is_readable:
            is_readable = one.end - one.begin == two.end - two.begin
        if not is_readable:
            return self._result("unreadable", f"{one.dtype} can't be compared with {two.dtype}")
        if self._change.heads and shape[0] % (2 * self._change.heads):
            return self._result("shape", f"its {shape[0]} rows can't be those of {self._change.heads} heads")
        for part in self._parts_alike() if is_plain else self._parts_changed():
            self._add(*part)
        if self._is_same and is_plain:
            return self._result("same", "")
        if not self._different:
            return self._result("equal", f"{one.dtype} and {two.dtype}" if one.dtype != two.dtype else "")
        return self._result("different", self._text())

    def _parts_alike(self) -> Iterator[tuple[Values, Values, int]]:
        """Return the values of blocks that differ, and the number of the first value."""
        dtype = self._one.entry.dtype
        values, size = block_of(dtype)
        step, at = _step(size), 0
        for data, other in zip(self._files.blocks(self._one, step), self._files.blocks(self._two, step), strict=True):
            self._on_bytes(len(data))
            if data != other:
                self._is_same = False
                kind = dtype if can_read(dtype) else "U8"
                yield read_values(data, kind), read_values(other, kind), at
            at += len(data) // size * values

    def _parts_changed(self) -> Iterator[tuple[Values, Values, int]]:
        """Return all values, those of the candidate in the reference's order."""
        one, two = self._one.entry, self._two.entry
        self._is_same = False
        count = self._values_at_once()
        at = 0
        mine = self._files.blocks(self._one, _bytes_of(one, count))
        theirs = self._files.blocks(self._two, _bytes_of(two, count))
        for data, other in zip(mine, theirs, strict=True):
            self._on_bytes(len(data))
            found, wanted = read_values(data, one.dtype), read_values(other, two.dtype)
            yield self._reordered(found), wanted, at
            at += found.size

    def _values_at_once(self) -> int:
        """Return how many values are read at once: whole heads if rows of heads are reordered."""
        one, two = self._one.entry, self._two.entry
        if self._change.is_transposed:
            return max(1, count_of(one))
        if self._change.heads:
            return max(1, count_of(one) // self._change.heads)
        together = lcm(block_of(one.dtype)[0], block_of(two.dtype)[0])
        return BLOCK_BYTES // 4 // together * together

    def _reordered(self, values: Values) -> Values:
        shape = self._one.entry.shape
        if self._change.is_transposed:
            return values.reshape(shape).T.reshape(-1)
        if not self._change.heads:
            return values
        columns = prod(shape[1:])
        rows = values.size // columns
        order = [interleaved(row, rows, 1) for row in range(rows)]
        if self._change.is_gguf_first:
            inverse = [0] * rows
            for row, source in enumerate(order):
                inverse[source] = row
            order = inverse
        return values.reshape(rows, columns)[order].reshape(-1)

    def _add(self, found: Values, wanted: Values, at: int) -> None:
        import numpy as np

        exact, other = wanted.astype(np.float64), found.astype(np.float64)
        if exact.size:
            self._largest = max(self._largest, float(exact.max()), -float(exact.min()))
        different = np.flatnonzero((found != wanted) & ~(np.isnan(other) & np.isnan(exact)))
        if not different.size:
            return
        if self._first < 0:
            self._first = at + int(different[0])
        self._different += different.size
        with np.errstate(invalid="ignore", over="ignore"):
            distance = other - exact
            self._max_abs = max(self._max_abs, float(np.nan_to_num(np.abs(distance), nan=inf, posinf=inf).max()))
            self._squares[0] += float(distance @ distance)
            self._squares[1] += float(exact @ exact)

    def _result(self, outcome: TensorOutcome, text: str) -> TensorComparison:
        two = self._two.entry
        above, below = self._squares
        nmse = above / below if below else inf if above else 0.0
        is_placed = self._first >= 0 and can_read(two.dtype)
        return TensorComparison(
            name=self._pair.name,
            reference_name=self._pair.other,
            outcome=outcome,
            values=count_of(two),
            different=self._different,
            first=_place(self._first, two.shape) if is_placed else (),
            max_abs=self._max_abs,
            largest=self._largest,
            nmse=nmse if isfinite(nmse) else inf,
            text=text,
        )

    def _text(self) -> str:
        place = list(_place(self._first, self._two.entry.shape)) if can_read(self._two.entry.dtype) else self._first
        return f"{self._different:,} of {count_of(self._two.entry):,} values differ, the first at {place}"


def _step(size: int) -> int:
    """Return the size of a block in bytes: whole groups of values."""
    return max(BLOCK_BYTES // size, 1) * size


def _bytes_of(entry: TensorEntry, count: int) -> int:
    values, size = block_of(entry.dtype)
    return max(count // values, 1) * size


def _place(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indices of a value by its number."""
    place: list[int] = []
    for side in reversed(shape):
        number, index = divmod(number, side)
        place.append(index)
    return tuple(reversed(place))
