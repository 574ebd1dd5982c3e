"""The layout of adapters in flat tensors with a row per slot, and views of them by layer and group.

One row has all numbers of an adapter, so that norms, updates and copies are single operations over all slots. Adapters
of a smaller rank, or without some matrix, have zeros there; products with zeros keep their gradients zero.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

import torch
from torch import Tensor

from stoker.cookbooks.language.compute.matrices import AdaptableShape, MatrixGroup, adaptable, is_target

# An adapter outside of a bank: its settings, weights and the optimiser's moments, by the name of each matrix.

Pairs = dict[str, tuple[Tensor, ...]]
"""By the name of a matrix (`model.layers.0.self_attn.q_proj`): A `[rank, inputs]` and B `[outputs, rank]`.

With magnitudes (DoRA) also those of its outputs, `[outputs]`. Of a module that is trained whole: its parameters.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """The settings of an adapter."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float = 0.0
    seed: int = 0
    rslora: bool = False
    dora: bool = False
    """Each output has a trained magnitude: B A changes its direction only."""
    whole: tuple[str, ...] = ()
    """Full names of the modules of which the adapter has copies of its own."""
    is_transposed: bool = False
    """The base keeps its matrices by inputs, as GPT-2 does; only PEFT has to know."""

    @property
    def scale(self) -> float:
        """Factor of B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """The optimiser settings of one adapter: AdamW, with its gradient clipped to `clip`."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = math.inf
    b_rate: float = 1.0
    """Learning rate of B over that of A."""


@dataclass(slots=True, kw_only=True)
class AdapterState:
    """One adapter, in 32 bits on the CPU."""

    spec: AdapterSpec
    weights: Pairs
    first: Pairs = field(default_factory=dict)
    """Running means of the gradient; empty before the first update."""
    second: Pairs = field(default_factory=dict)
    """Of its square."""
    steps: int = 0


def fresh_adapter(shape: AdaptableShape, spec: AdapterSpec) -> AdapterState:
    """Return an adapter that changes nothing yet: A drawn from its own seed as in PEFT, B zero."""
    draws = torch.Generator().manual_seed(spec.seed)
    weights: Pairs = {}
    for matrix in adaptable(shape):
        if is_target(matrix.name, spec.targets):
            # kaiming_uniform_ with a = √5 is uniform within 1 / √inputs.
            bound = 1 / math.sqrt(matrix.inputs)
            a = torch.empty(spec.rank, matrix.inputs).uniform_(-bound, bound, generator=draws)
            weights[matrix.name] = (a, torch.zeros(matrix.outputs, spec.rank))
    return AdapterState(spec=spec, weights=weights)


# A frozen matrix with a bank of adapters: one product for all rows, and small ones member by member.
#
# The small product is written first and the large one added onto it, at no cost: a large product is limited by
# arithmetic, not by memory. Matrices with the same input share the product with their A's, which are side by side.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """The adapters of one group of matrices: views into one flat tensor, or into that of its gradients."""

    a: Tensor
    """`[n, targets · rank, inputs]`."""
    b: tuple[Tensor, ...]
    """Of each target `[n, outputs, rank]`."""
    columns: tuple[tuple[int, int], ...]
    """The columns of each target's outputs within the group."""
    factors: Tensor | None = None
    """`[n, outputs of the group]`: what the outputs are multiplied by, if an adapter has magnitudes."""

    def narrow(self, number: int) -> slice:
        """Return the columns of a target's part of x Aᵀ."""
        rank = self.b[0].shape[2]
        return slice(number * rank, (number + 1) * rank)


def narrowed(x: Tensor, bank: Bank) -> Tensor:
    """Return x Aᵀ of `[n, rows, inputs]`."""
    return torch.bmm(x, bank.a.mT)


def widened(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bank: Bank | None,
    narrow: Tensor | None,
    begin: int = 0,
) -> Tensor:
    """Return x Wᵀ with the adapters' part. The weight's outputs start at a column of the group's."""
    n, rows, inputs = x.shape
    outputs = len(weight)
    y = _added(x, weight, bank, narrow, begin)
    if bias is not None:
        y += bias
    y.view(n * rows, outputs).addmm_(x.reshape(n * rows, inputs), weight.T)
    return y


def scaled(  # noqa: PLR0913, PLR0917 - what a product is made of
    x: Tensor, seen: Tensor, weight: Tensor, bias: Tensor | None, bank: Bank, narrow: Tensor, begin: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the outputs of a matrix whose adapters have magnitudes, and what was multiplied by their factors.

    `seen` is x after dropout, which in DoRA the frozen product sees, too.
    """
    assert bank.factors is not None  # noqa: S101 - only with magnitudes
    product = widened(seen, weight, None, bank, narrow, begin)
    y = _times(product, bank.factors[:, begin : begin + len(weight)])
    if bias is not None:
        y += bias
    return (y if seen is x else onto(y, x - seen, weight.T)), product


def scaled_back(dy: Tensor, product: Tensor, bank: Bank, gradients: Bank, begin: int = 0) -> Tensor:
    """Add the gradients of the factors; return that of what was multiplied by them."""
    assert bank.factors is not None and gradients.factors is not None  # noqa: S101, PT018 - only with magnitudes
    columns = slice(begin, begin + dy.shape[-1])
    gradients.factors[:, columns] += (dy * product).sum(1, dtype=torch.float32)
    return _times(dy, bank.factors[:, columns])


def _times(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply in 32 bits, and round once."""
    return torch.mul(x, factors[:, None], out=torch.empty_like(x))


def squares_beside(weight: Tensor, bank: Bank) -> Tensor:
    """Return by how much adapters change the squared norms of a group's outputs, `[n, outputs]`, in 32 bits.

    Of (W + B A) without that of W: 2 B·(W Aᵀ) + B A Aᵀ Bᵀ, so that no sum W + B A is ever in memory.
    """
    found = torch.zeros(len(bank.a), len(weight), device=weight.device)
    for number, ((first, last), b) in enumerate(zip(bank.columns, bank.b, strict=True)):
        a, b32 = bank.a[:, bank.narrow(number)], b.float()
        n, rank, inputs = a.shape
        through = torch.mm(weight[first:last], a.reshape(n * rank, inputs).T).float().view(-1, n, rank)
        a32 = a.float()
        inside = torch.bmm(b32, torch.bmm(a32, a32.mT)) + 2 * through.transpose(0, 1)
        found[:, first:last] = (inside * b32).sum(2)
    return found


def _added(x: Tensor, weight: Tensor, bank: Bank | None, narrow: Tensor | None, begin: int) -> Tensor:
    """Return the adapters' part, to which the large product is added."""
    outputs, parts = len(weight), []
    if bank is not None and narrow is not None:
        parts = [
            (first - begin, last - begin, narrow[..., bank.narrow(number)], bank.b[number])
            for number, (first, last) in enumerate(bank.columns)
            if begin <= first < begin + outputs
        ]
    covered = sum(last - first for first, last, _, _ in parts)
    y = (torch.empty if covered == outputs else torch.zeros)(*x.shape[:2], outputs, dtype=x.dtype, device=x.device)
    for first, last, low, b in parts:
        torch.bmm(low, b.mT, out=y[..., first:last])
    return y


def narrowed_back(dys: list[tuple[Tensor, int]], narrow: Tensor, bank: Bank, gradients: Bank) -> Tensor:
    """Write the gradients of B; return dy B. Each dy comes with the column of the group at which it starts."""
    back = torch.empty_like(narrow)
    for number, (b, (first, last)) in enumerate(zip(bank.b, bank.columns, strict=True)):
        dy, begin = next((dy, begin) for dy, begin in dys if begin <= first < begin + dy.shape[-1])
        part, mine = bank.narrow(number), dy[..., first - begin : last - begin]
        torch.bmm(mine, b, out=back[..., part])
        torch.bmm(mine.mT, narrow[..., part], out=gradients.b[number])
    return back


def onto(dx: Tensor | None, dy: Tensor, weight: Tensor) -> Tensor:
    """Add dy W to dx, in place; without dx, return a new tensor."""
    n, rows, outputs = dy.shape
    flat = dy.reshape(n * rows, outputs)
    if dx is None:
        return torch.mm(flat, weight).view(n, rows, -1)
    dx.view(n * rows, -1).addmm_(flat, weight)
    return dx


@cache
def _copy_stream() -> torch.cuda.Stream:
    """Return the stream of copies to the CPU."""
    return torch.cuda.Stream()


Rows = tuple[Tensor, ...]
"""One adapter's numbers: all A's, all B's, all magnitudes; then a row for each module that is trained whole."""
PLAIN = 2
"""Tensors of a matrix without magnitudes."""
_BANKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    block: int
    name: str
    targets: tuple[str, ...]
    """The full names of its matrices that have adapters."""
    inputs: int
    columns: tuple[tuple[int, int], ...]
    outputs: int
    a_at: int
    b_at: tuple[int, ...]
    m_at: int


class BankLayout:
    """The order of all A's, all B's and all magnitudes in their rows."""

    def __init__(self, shape: AdaptableShape, targets: tuple[str, ...], rank: int, *, dora: bool = False) -> None:
        """Without `dora` there are no magnitudes."""
        self.rank = rank
        self.groups: list[_Group] = []
        self.a_size = self.b_size = self.m_size = 0
        self._dora = dora
        self._staging: Tensor | None = None
        self._staging_lock = threading.Lock()
        self._blocks = 0
        for group in shape.groups():
            self._blocks = group.block + 1
            self._place(group, frozenset(targets))

    @property
    def columns(self) -> dict[tuple[int, str], slice]:
        """The columns of each group's magnitudes, by block and name."""
        return {(one.block, one.name): slice(one.m_at, one.m_at + one.outputs) for one in self.groups}

    @property
    def names(self) -> Iterator[str]:
        """The full names of all matrices that have adapters."""
        return (target for group in self.groups for target in group.targets)

    def banks(self, a: Tensor, b: Tensor, m: Tensor) -> list[dict[str, Bank]]:
        """Return views of flat tensors `[n, a_size]`, `[n, b_size]` and `[n, m_size]`, block by block."""
        blocks: list[dict[str, Bank]] = [{} for _ in range(self._blocks)]
        n, rank = len(a), self.rank
        for group in self.groups:
            height = len(group.targets) * rank
            sizes = [end - begin for begin, end in group.columns]
            blocks[group.block][group.name] = Bank(
                a=a[:, group.a_at : group.a_at + height * group.inputs].view(n, height, group.inputs),
                b=tuple(
                    b[:, at : at + size * rank].view(n, size, rank) for at, size in zip(group.b_at, sizes, strict=True)
                ),
                columns=group.columns,
                factors=m[:, group.m_at : group.m_at + group.outputs] if self._dora else None,
            )
        return blocks

    def write(self, pairs: Pairs, rows: Rows) -> None:
        """Write one adapter into a row of each; missing parts become zero."""
        for row in rows[:_BANKS]:
            row.zero_()
        for name, a, b, m in self._pairs(rows):
            given = pairs.get(name)
            if given is not None:
                rank = len(given[0])
                a[:rank].copy_(given[0])
                b[:, :rank].copy_(given[1])
                if len(given) > PLAIN:
                    m.copy_(given[2])

    def snapshot(self, names: Iterable[str], rows: Rows, spec: AdapterSpec) -> Callable[[], Pairs]:
        """Return a function that copies the matrices of the given names, as they are now, to the CPU.

        They are collected on the device now, and copied at once: hundreds of small copies take seconds. Another thread
        may copy them while the device computes.
        """
        wanted, rank, count = set(names), spec.rank, 3 if spec.dora else PLAIN
        found = [(name, (a[:rank], b[:, :rank], m)[:count]) for name, a, b, m in self._pairs(rows) if name in wanted]
        if not found:
            return dict
        parts = [part for _, own in found for part in own]
        flat, shapes = torch.cat([part.reshape(-1) for part in parts]).float(), [part.shape for part in parts]
        ready = torch.cuda.current_stream().record_event() if flat.device.type == "cuda" else None

        def copied() -> Pairs:
            pieces = self._on_cpu(flat, ready).split([shape.numel() for shape in shapes])
            copies = iter([piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)])
            return {name: tuple(islice(copies, count)) for name, _ in found}

        return copied

    def mark(self, names: Iterable[str], row: Tensor) -> None:
        """Set the columns of magnitudes of the given names to one, all others to zero."""
        wanted = set(names)
        row.zero_()
        for group in self.groups:
            for target, (first, last) in zip(group.targets, group.columns, strict=True):
                if target in wanted:
                    row[group.m_at + first : group.m_at + last] = 1

    def _on_cpu(self, flat: Tensor, ready: torch.cuda.Event | None) -> Tensor:
        """Return a copy on the CPU, through page-locked memory: three times as fast, and kept for the next one."""
        if ready is None:
            return flat
        with self._staging_lock:
            if self._staging is None or len(self._staging) < len(flat):
                self._staging = torch.empty(len(flat), dtype=flat.dtype, pin_memory=True)
            staged, stream = self._staging[: len(flat)], _copy_stream()
            with torch.cuda.stream(stream):
                # Not behind the steps that were started since.
                stream.wait_event(ready)
                staged.copy_(flat, non_blocking=True)
            stream.synchronize()
            return staged.clone()

    def _pairs(self, rows: Rows) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        a_row, b_row, m_row = rows[:_BANKS]
        blocks = self.banks(a_row[None], b_row[None], m_row[None])
        for group in self.groups:
            bank = blocks[group.block][group.name]
            for number, target in enumerate(group.targets):
                first, last = group.columns[number]
                own = m_row[group.m_at + first : group.m_at + last]
                yield target, bank.a[0, bank.narrow(number)], bank.b[number][0], own

    def _place(self, whole: MatrixGroup, targets: frozenset[str]) -> None:
        present = tuple(one.name for one in whole.matrices if is_target(one.name, targets))
        if not present:
            return
        columns, b_at, begin = [], [], 0
        for matrix in whole.matrices:
            end = begin + matrix.outputs
            if matrix.name in present:
                columns.append((begin, end))
                b_at.append(self.b_size)
                self.b_size += matrix.outputs * self.rank
            begin = end
        inputs = whole.matrices[0].inputs
        self.groups.append(
            _Group(
                block=whole.block,
                name=whole.name,
                targets=present,
                inputs=inputs,
                columns=tuple(columns),
                outputs=begin,
                a_at=self.a_size,
                b_at=tuple(b_at),
                m_at=self.m_size,
            )
        )
        self.m_size += begin if self._dora else 0
        self.a_size += len(present) * self.rank * inputs
