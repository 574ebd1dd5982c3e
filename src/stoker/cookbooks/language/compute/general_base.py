"""A frozen base of any family: transformers' own module, whose linear layers add the adapters of several members.

A pass has the rows of all members one below the other, so each frozen product is computed once for all of them, and
the adapters' products are batched over members. No row sees another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear
from torch.utils.checkpoint import checkpoint

from stoker.cookbooks.language.arguments import IGNORED, BaseDtype
from stoker.cookbooks.language.compute.banks import Bank, narrowed, onto, scaled, scaled_back, widened
from stoker.cookbooks.language.compute.base_weights import dequantise_on, packed
from stoker.cookbooks.language.compute.blocks import PassDropout, chunk_tokens
from stoker.cookbooks.language.compute.decoding import ModuleCache
from stoker.cookbooks.language.compute.general_shape import GeneralShape, general_shape
from stoker.cookbooks.language.compute.int8 import Int8Matrix
from stoker.cookbooks.language.compute.math import AttentionMask
from stoker.cookbooks.language.compute.matrices import AdaptedMatrix
from stoker.cookbooks.language.compute.module_copies import Copies, OuterModule, embedded_back, own_embedded
from stoker.cookbooks.language.compute.nf4 import QuantisedMatrix
from stoker.cookbooks.language.compute.transformers_base import head_of, load_transformers, takes_packed_rows
from stoker.core.errors import BadInput
from stoker.core.frozen import changed
from stoker.store.weight_files.headers import read_foreign_json

_TRIED = (2, 9)
"""Rows and tokens of the pass that a module is tried with."""
_NEAR = 0.01
"""Products that differ by less, relative to the largest, are the same in any precision."""
_FUSED = 3
"""Dimensions of a matrix of all experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAdapters:
    """The adapters of one pass, by the name of their matrix."""

    members: int
    banks: Mapping[str, Bank]
    gradients: Mapping[str, Bank] | None = None
    copies: Copies = field(default_factory=dict)
    copy_gradients: Copies = field(default_factory=dict)
    dropping: PassDropout | None = None


class AdaptedLinear:
    """A linear layer of a module, with adapters during a pass. Its weight is that of the module, or in few bits."""

    def __init__(self, layer: Any, matrix: AdaptedMatrix, place: int, base: GeneralBase) -> None:
        """Take the place of the layer's forward pass. `place` is its number among all."""
        self._plain: Callable[[Tensor], Tensor] = layer.forward
        self.matrix = matrix
        self.place = place
        self._base = base
        self._layer = layer
        self._packed: QuantisedMatrix | Int8Matrix | None = None
        layer.forward = self.forward

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self._layer.bias
        return bias

    @property
    def weight(self) -> Tensor:
        """The weight, `[outputs, inputs]`; dequantised at each use if it has few bits."""
        if self._packed is None:
            return _weight(self._layer)
        base, matrix = self._base, self.matrix
        whole = torch.empty(matrix.outputs, matrix.inputs, dtype=base.dtype, device=base.device)
        base.dequantise(self._packed, whole)
        return whole

    @property
    def packed_bytes(self) -> int:
        return 0 if self._packed is None else self._packed.size_bytes

    def pack(self, base_dtype: BaseDtype) -> None:
        """Keep the weight in few bits, on the base's device."""
        whole = self._layer.weight
        self._packed = packed(_weight(self._layer).to(self._base.device), base_dtype)
        self._layer.weight = torch.nn.Parameter(whole.new_empty(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, with that of the adapters in a pass."""
        now = self._base.now
        if now is None or self.matrix.name not in now.banks:
            # Autograd would keep each dequantised weight for the backward pass.
            plain: Tensor = self._plain(x) if self._packed is None else _PackedProduct.apply(x, self)
            return plain
        made: Tensor = _AdaptedProduct.apply(x, self._base.anchor, self, now)
        return made.view(*x.shape[:-1], -1)


class _PackedProduct(torch.autograd.Function):
    """The product with a matrix in few bits, which is dequantised once more for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: AdaptedLinear) -> Tensor:
        ctx.layer = layer
        return linear(x, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy @ ctx.layer.weight, None


class _AdaptedProduct(torch.autograd.Function):
    """The product with a frozen matrix and with adapters. Gradients of adapters are added to those of the pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: AdaptedLinear, now: PassAdapters) -> Tensor:  # noqa: ARG004 - see below
        """`anchor` requires a gradient, so that there is a backward pass where `x` depends on no adapter."""
        bank = now.banks[layer.matrix.name]
        rows = x.reshape(now.members, -1, x.shape[-1])
        seen = _dropped(rows, layer, now)
        narrow = narrowed(seen, bank)
        ctx.layer, ctx.now, ctx.shape = layer, now, x.shape
        if bank.factors is None:
            ctx.save_for_backward(rows, narrow, None)
            return widened(rows, layer.weight, layer.bias, bank, narrow)
        y, product = scaled(rows, seen, layer.weight, layer.bias, bank, narrow)
        ctx.save_for_backward(rows, narrow, product)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        rows, narrow, product = ctx.saved_tensors
        layer, now = ctx.layer, ctx.now
        bank, gradient = now.banks[layer.matrix.name], now.gradients[layer.matrix.name]
        own = dy if product is None else scaled_back(dy, product, bank, gradient)
        back = torch.bmm(own, bank.b[0])
        # Added: a module may use a matrix more than once.
        gradient.b[0].baddbmm_(own.mT, narrow)
        gradient.a.baddbmm_(back.mT, _dropped(rows, layer, now))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        weight, added = layer.weight, torch.bmm(back, bank.a)
        if now.dropping is None:
            dx = onto(added, own, weight)
        else:
            # Own is dy, but for magnitudes: their products see x after dropout alone.
            added = added if own is dy else onto(added, own - dy, weight)
            dx = onto(_dropped(added, layer, now), dy, weight)
        return dx.view(ctx.shape), None, None, None


class _CopiedRows(torch.autograd.Function):
    """The embeddings of tokens, of each member by its own table."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens: Tensor, padding: int | None, now: PassAdapters) -> Tensor:  # noqa: ARG004 - as above
        mine = tokens.reshape(now.members, -1)
        ctx.tokens, ctx.padding, ctx.now = mine, padding, now
        return own_embedded(mine, now.copies["embedding"]).view(*tokens.shape, -1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, ...]:
        rows = dy.reshape(*ctx.tokens.shape, -1)
        embedded_back(ctx.tokens, rows, ctx.now.copy_gradients, ctx.padding)
        return (None,) * 4


class _CopiedProduct(torch.autograd.Function):
    """The product of one member's rows with its own head."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, member: int, now: PassAdapters) -> Tensor:  # noqa: ARG004 - as above
        weight, *bias = now.copies["head"][member]
        ctx.save_for_backward(x)
        ctx.member, ctx.now = member, now
        return linear(x, weight, *bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        flat = dy.reshape(-1, dy.shape[-1])
        dweight, *dbias = ctx.now.copy_gradients["head"][ctx.member]
        dweight += torch.mm(flat.T, x.reshape(len(flat), -1))
        for gradient in dbias:
            gradient.add_(flat.sum(0, dtype=torch.float32))
        return dy @ ctx.now.copies["head"][ctx.member][0], None, None, None


class _HeadLosses(torch.autograd.Function):
    """The losses of tokens, a chunk at a time: all logits are never in memory at once.

    A token's loss depends on its own hidden row only. So the gradients are computed with the losses, and scaled by
    those of the losses afterwards: the head is multiplied twice, not three times.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor], size: int) -> Tensor:
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        losses = []
        for begin in range(0, len(labels), size):
            part = slice(begin, begin + size)
            rows = hidden[part].detach().requires_grad_(gradient is not None)
            with torch.set_grad_enabled(gradient is not None):
                loss = _losses(head(rows), labels[part])
                if gradient is not None:
                    (gradient[part],) = torch.autograd.grad(loss.sum(), rows)
            losses.append(loss.detach())
        ctx.save_for_backward(gradient)
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, dlosses: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul(dlosses[:, None].to(gradient.dtype)), None, None, None


def _dropped(rows: Tensor, layer: AdaptedLinear, now: PassAdapters) -> Tensor:
    return rows if now.dropping is None else now.dropping.applied(rows, layer.place)


def _is_linear(layer: Any) -> bool:
    return isinstance(layer, torch.nn.Linear)


class GeneralBase:
    """A model of transformers that is read and never written."""

    takes_ragged = False
    records = False

    def __init__(
        self, module: Any, shape: GeneralShape, *, device: str, dtype: torch.dtype, base_dtype: BaseDtype = "auto"
    ) -> None:
        """Take over a module, and move it to the device; in few bits its matrices are quantised there one by one.

        Which of its matrices can have adapters is found out by a small pass.
        """
        self.module = module
        self.device = device
        self.dtype = dtype
        self.now: PassAdapters | None = None
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        layers = dict(_linear_layers(module))
        called = self._called(layers, shape)
        self.left_alone = tuple(name for name in layers if name not in called)
        """Matrices without adapters: not every token passes through them, or the module computes without the layer."""
        matrices = tuple(AdaptedMatrix(name=name, inputs=size[0], outputs=size[1]) for name, size in called.items())
        others = tuple(name for name, _ in module.named_modules() if name not in called)
        self.shape = changed(shape, matrices=matrices, others=others)
        self.dequantise = dequantise_on(device)
        self._layers = [AdaptedLinear(layers[one.name], one, place, self) for place, one in enumerate(matrices)]
        for layer in self._layers if base_dtype != "auto" else ():
            layer.pack(base_dtype)
        module.to(device)
        self.is_transposed = bool(called) and not any(_is_linear(layers[name]) for name in called)
        self.experts = sum(one.ndim == _FUSED and "expert" in name for name, one in module.named_parameters())
        """Number of matrices of all experts of a block at once."""
        self._head = head_of(module)
        self._member: int | None = None
        """The member whose rows the head gets; None: it gets those of all."""
        self._wrap_outer_modules()
        self.packs = takes_packed_rows(module)
        """True if the sequences of a packed row do not see each other."""

    @property
    def size_bytes(self) -> int:
        unlike = {one.data_ptr(): one for one in self.module.state_dict(keep_vars=True).values()}
        whole: int = sum(one.numel() * one.element_size() for one in unlike.values())
        return whole + sum(layer.packed_bytes for layer in self._layers)

    def matrices(self) -> Iterator[tuple[int, str, Tensor]]:
        """Return all matrices that may have adapters."""
        return ((0, layer.matrix.name, layer.weight) for layer in self._layers)

    def _wrap_outer_modules(self) -> None:
        """Let the module's embedding and head use the members' own copies, if they have any."""
        table, head = self.module.get_input_embeddings(), self.module.get_output_embeddings()
        looked_up: Callable[[Tensor], Tensor] = table.forward
        scale = getattr(table, "embed_scale", 1.0)

        def look_up(tokens: Tensor) -> Tensor:
            now = self.now
            if now is None or "embedding" not in now.copies:
                return looked_up(tokens)
            own: Tensor = _CopiedRows.apply(self.anchor, tokens, table.padding_idx, now)
            return own * scale

        table.forward = look_up
        if head is None:
            return
        multiplied: Callable[[Tensor], Tensor] = head.forward

        def multiply(x: Tensor) -> Tensor:
            now = self.now
            if now is None or "head" not in now.copies:
                return multiplied(x)
            if self._member is not None:
                made: Tensor = _CopiedProduct.apply(x, self.anchor, self._member, now)
                return made
            parts = enumerate(x.chunk(now.members))
            return torch.cat([_CopiedProduct.apply(part, self.anchor, member, now) for member, part in parts])

        head.forward = multiply

    def outer_modules(self) -> tuple[OuterModule, ...]:
        """Return the module's embedding and its head. Raises `BadInput` if it computes more with them."""
        table, head = self.module.get_input_embeddings(), self.module.get_output_embeddings()
        names = {id(one): name for name, one in self.module.named_modules()}
        found = [
            OuterModule(name=names[id(table)], role="embedding", weight=table.weight, padding=table.padding_idx),
        ]
        tokens = self._few_tokens(self.shape.vocabulary)
        with torch.no_grad():
            plain = embedding(tokens, table.weight) * getattr(table, "embed_scale", 1.0)
            is_known = torch.allclose(table(tokens), plain)
        if not is_known:
            message = f"modules_to_save: {self.shape.model.family} computes more with its embedding than its rows"
            raise BadInput(message, hint="leave it out")
        if isinstance(head, torch.nn.Linear):
            found.append(OuterModule(name=names[id(head)], role="head", weight=head.weight, bias=head.bias))
        return tuple(found)

    def cache(self) -> ModuleCache:
        """Return a cache of one sequence, which is empty."""
        return ModuleCache()

    @contextmanager
    def adapted(self, now: PassAdapters) -> Iterator[None]:
        """Compute with adapters during a block."""
        self.now = now
        try:
            yield
        finally:
            self.now = None

    def token_losses(self, tokens: Tensor, labels: Tensor, mask: AttentionMask) -> Tensor:
        """Return the loss of each token of `[rows, T]`, in 32 bits; zero without a label."""
        if self._head is None:
            return _losses(self._called_with(self.module, tokens, mask).logits.flatten(0, 1), labels.flatten())
        hidden, wanted = self._hidden(tokens, mask).flatten(0, 1), labels.flatten()
        size = chunk_tokens(self.shape.vocabulary, len(wanted))
        if self.now is not None and "head" in self.now.copies:
            return self._own_losses(hidden, wanted, self.now.members, size)
        losses: Tensor = _HeadLosses.apply(hidden, wanted, self._head, size)
        return losses

    def _own_losses(self, hidden: Tensor, labels: Tensor, members: int, size: int) -> Tensor:
        """Return the same of members with heads of their own, whose gradients depend on those of the losses.

        So a chunk's logits are computed again for the backward pass.
        """
        head = self._head
        assert head is not None  # noqa: S101 - otherwise all logits are computed at once

        def compute(member: int, rows: Tensor, wanted: Tensor) -> Tensor:
            self._member = member
            try:
                return _losses(head(rows), wanted)
            finally:
                self._member = None

        found = []
        for member, (rows, wanted) in enumerate(zip(hidden.chunk(members), labels.chunk(members), strict=True)):
            for part, own in zip(rows.split(size), wanted.split(size), strict=True):
                found.append(checkpoint(compute, member, part, own, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(found)

    def logits(self, tokens: Tensor, mask: AttentionMask, cache: ModuleCache | None) -> Tensor:
        """Return the logits after the last token of each row, or of the one that continues a cache."""
        if cache is not None:
            continued: Tensor = cache.call(self.module, tokens).logits
            return continued[:, -1]
        if self._head is None:
            logits: Tensor = self._called_with(self.module, tokens, mask).logits
            return logits[:, -1]
        return self._head(self._hidden(tokens, mask)[:, -1])

    def _hidden(self, tokens: Tensor, mask: AttentionMask) -> Tensor:
        found: Tensor = self._called_with(self.module.base_model, tokens, mask).last_hidden_state
        return found

    def _called_with(self, module: Any, tokens: Tensor, mask: AttentionMask) -> Any:
        given: dict[str, Any] = {}
        if mask.segments is not None:
            given["position_ids"] = mask.positions
        # Rows are padded at their end, where no token sees it: no mask is needed.
        return module(input_ids=tokens, use_cache=False, **given)

    def _called(self, layers: Mapping[str, Any], shape: GeneralShape) -> dict[str, tuple[int, int]]:
        """Return inputs and outputs of the layers through which all tokens of a pass go, in the order of the module."""
        rows, length = _TRIED
        seen: dict[str, tuple[int, int]] = {}
        odd: set[str] = set()

        def hook(name: str) -> Callable[[Any, tuple[Any, ...], Any], None]:
            def note(layer: Any, given: tuple[Any, ...], made: Any) -> None:
                x = given[0]
                if x.shape[:-1].numel() == rows * length and _is_product(layer, x, made):
                    seen[name] = (x.shape[-1], made.shape[-1])
                else:
                    odd.add(name)

            return note

        handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
        try:
            self._try(shape.vocabulary)
        finally:
            for handle in handles:
                handle.remove()
        return {name: seen[name] for name in layers if name in seen and name not in odd}

    def _try(self, vocabulary: int) -> Tensor:
        """Return the logits of a few tokens, `[rows, T, vocabulary]`."""
        tokens = self._few_tokens(vocabulary)
        with torch.no_grad():
            logits: Tensor = self.module(input_ids=tokens, use_cache=False).logits
        return logits

    def _few_tokens(self, vocabulary: int) -> Tensor:
        rows, length = _TRIED
        return ((torch.arange(rows * length) * 7 + 3) % vocabulary).view(rows, length).to(self.module.device)


def load_general(folder: Path, *, device: str, dtype: str, base_dtype: BaseDtype = "auto") -> GeneralBase:
    """Load a base as transformers loads it. Raises `BadInput` if transformers can't, or weights are missing."""
    # Whole weights of a base in few bits may not fit on the device.
    at_first = device if base_dtype == "auto" else "cpu"
    module = load_transformers(folder, dtype=dtype, device=at_first).requires_grad_(requires_grad=False)
    config = read_foreign_json(folder / "config.json")
    sizes = {name: tuple(one.shape) for name, one in module.named_parameters()}
    shape = general_shape(config, sizes)
    return GeneralBase(module, shape, device=device, dtype=getattr(torch, dtype), base_dtype=base_dtype)


def _linear_layers(module: Any) -> Iterator[tuple[str, Any]]:
    """Return the linear layers of a module by name, without its head."""
    from transformers.pytorch_utils import Conv1D

    head = module.get_output_embeddings()
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear | Conv1D) and layer is not head:
            yield name, layer


def _weight(layer: Any) -> Tensor:
    """Return the weight of a linear layer, `[outputs, inputs]`."""
    weight: Tensor = layer.weight if _is_linear(layer) else layer.weight.T
    return weight


def _is_product(layer: Any, x: Tensor, made: Any) -> bool:
    """Return True if a layer returned what linear layers return: some of their subclasses do more."""
    wanted = linear(x, _weight(layer), layer.bias)
    if not isinstance(made, Tensor) or made.shape != wanted.shape:
        return False
    # Weights that are no numbers are found by the losses.
    largest = float(wanted.abs().nan_to_num().max())
    return bool(torch.allclose(made, wanted, rtol=0.0, atol=_NEAR * largest, equal_nan=True))


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")
