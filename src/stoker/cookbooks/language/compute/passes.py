"""One pass: forward, backward, gradient accumulation, update. Inputs and outputs are tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stoker.cookbooks.language.arguments import IGNORED, Objective
from stoker.cookbooks.language.compute.banks import Bank, BankLayout, Rows, squares_beside
from stoker.cookbooks.language.compute.base_weights import BaseWeights, FrozenBase
from stoker.cookbooks.language.compute.blocks import (
    Banks,
    PassContext,
    PassDropout,
    SavedActivations,
    backward_block,
    forward_block,
    keys_of,
    losses_and_gradient,
    token_losses,
)
from stoker.cookbooks.language.compute.decoding import KeyValueCache, SequenceCache
from stoker.cookbooks.language.compute.math import AttentionMask, PointwiseKernels, tables
from stoker.cookbooks.language.compute.module_copies import Copies, OuterModule, copies_of, embedded_back, own_embedded
from stoker.cookbooks.language.compute.objectives import AnswerInput, answer_logps, weigh
from stoker.cookbooks.language.compute.slot_state import AdapterSlotState
from stoker.core.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInput:
    """A pass's input, on its device."""

    slots: tuple[int, ...]
    """The slots of the rows."""
    index: Tensor | None
    """The same as a tensor; None: all slots, in order."""
    tokens: Tensor
    labels: Tensor
    mask: AttentionMask
    shares: Tensor
    """Factor of each member's token losses, `[n]`."""
    update: Tensor
    rates: Tensor
    updates_any: bool
    """True if a member is updated."""
    gathers: bool
    """True if a member has gradients of earlier passes, or keeps those of this one."""
    drops: bool
    """True if a member has dropout."""
    answers: AnswerInput | None = None
    """Of pairs; None: the loss is that of the learned tokens."""


class AdapterPasses(ABC):
    """Passes over one base: what does not depend on how the base is computed."""

    def __init__(
        self,
        frozen: FrozenBase,
        layout: BankLayout,
        state: AdapterSlotState,
        kernels: PointwiseKernels,
        whole: Sequence[OuterModule] = (),
    ) -> None:
        """Take what is trained: the adapters of a layout, and copies of the modules in `whole`."""
        self._frozen = frozen
        self._whole = whole
        self._layout = layout
        self.state = state
        self._kernels = kernels
        self._all = layout.banks(state.a.used, state.b.used, state.m.used)
        if layout.m_size:
            with torch.no_grad():
                for columns, weight, _ in self._weighed(self._all):
                    norms = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32)
                    state.base_squares[columns] = norms.square()

    @abstractmethod
    def _gradients(self, given: PassInput) -> tuple[Tensor, Rows]:
        """Return each member's loss and what else its objective scores, and the gradients of what it trains.

        Those of magnitudes are gradients of the factors.
        """

    @abstractmethod
    def _token_losses(self, given: PassInput, banks: Sequence[Banks], copies: Copies) -> Tensor:
        """Return each token's loss, `[n, rows, T]`; no gradients, no dropout."""

    @abstractmethod
    def logits(self, given: PassInput, cache: SequenceCache | None) -> Tensor:
        """Return the logits after the last token of each row, of one member.

        With a cache there is one row, and its tokens continue those of the cache.
        """

    @abstractmethod
    def prepare(self, length: int) -> None:
        """Make what sequences of a length need and can't be made in a recording."""

    def step(self, given: PassInput) -> Tensor:
        """Accumulate gradients, update, and return `[3, n]`: losses, norms, whether both are finite.

        Of pairs `[5, n]`: further how many are ranked right, and their margins.
        """
        state, index = self.state, given.index
        (loss, *ranking), (a, b, m, *copies) = self._gradients(given)
        gradients: Rows = (a, b, m * _rows(state.inverse_norms, index), *copies)
        if given.gathers:
            gradients = tuple(
                _rows(one.gathered, index) + new for one, new in zip(state.trained, gradients, strict=True)
            )
        lengths = [torch.linalg.vector_norm(one, dim=1, dtype=torch.float32, keepdim=True) for one in gradients]
        lengths[1] = lengths[1] * _rows(state.scales, index)
        squares = [one.square() for one in lengths]
        norms = sum(squares[1:], squares[0]).sqrt().squeeze(1)
        is_finite = loss.isfinite() & norms.isfinite()
        if given.updates_any:
            self._update(given, index, gradients, norms, is_finite)
        if given.gathers:
            keeps = ~given.update[:, None]
            for part, gradient in zip(state.trained, gradients, strict=True):
                _put(part.gathered, index, torch.where(keeps, gradient, 0.0))
            _put(state.passes, index, torch.where(given.update, 0, _rows(state.passes, index) + 1))
        return torch.stack([loss, norms, is_finite.float(), *ranking])

    def losses(self, given: PassInput) -> Tensor:
        """Return `[2, n]`: each member's sum of token losses, and the number of tokens.

        Of pairs `[3, n]`: loss, how many are ranked right, margins, each times its share.
        """
        losses = self._token_losses(given, self._banks(given.index), self._copies(given))
        if given.answers is not None:
            return weigh(losses, given.answers).scores
        return torch.stack([losses.flatten(1).double().sum(1), (given.labels != IGNORED).flatten(1).sum(1)])

    def reference(self, given: PassInput) -> Tensor:
        """Return the log-probability of each answer under the base alone, `[n, answers]`."""
        assert given.answers is not None  # noqa: S101 - of pairs only
        losses = self._token_losses(given, [{}] * len(self._all), {})
        return answer_logps(losses, given.answers.places, given.answers.reference.shape[1])[0]

    def set_magnitudes(self, slot: int, names: Collection[str], *, begins: bool) -> None:
        """Set the matrices of a slot that have magnitudes: at the beginning the norms of the base's outputs.

        Raises `BadInput` if one of these is zero.
        """
        state = self.state
        has = state.has_magnitude[slot]
        self._layout.mark(names, has)
        if not names:
            state.m.used[slot], state.inverse_norms[slot] = 1.0, 0.0
            return
        if begins:
            norms = state.base_squares.sqrt()
            if (has & ~(norms > 0)).any():
                message = "a matrix of the base has an output whose weights are all zero: it has no direction"
                raise BadInput(message, hint="dora=false, or other targets=")
            state.m.weights[slot] = torch.where(has, norms, 0.0)
        self._weigh(torch.tensor([slot], device=state.m.used.device))

    def _weigh(self, index: Tensor | None) -> None:
        """Compute the factors of outputs: magnitudes over the norms of the matrices with their adapters."""
        state = self.state
        if not self._layout.m_size:
            return
        squares = torch.zeros_like(_rows(state.inverse_norms, index))
        for columns, weight, bank in self._weighed(self._banks(index)):
            squares[:, columns] = squares_beside(weight, bank)
        has, norms = _rows(state.has_magnitude, index), (state.base_squares + squares).clamp(min=0.0).sqrt()
        _put(state.m.used, index, torch.where(has, _rows(state.m.weights, index) / norms, 1.0))
        _put(state.inverse_norms, index, torch.where(has, 1.0 / norms, 0.0))

    def _weighed(self, banks: Sequence[Banks]) -> Iterator[tuple[slice, Tensor, Bank]]:
        """Return the columns of each group's magnitudes, its matrices, and its adapters."""
        columns = self._layout.columns
        for block, name, weight in self._frozen.matrices():
            if (block, name) in columns:
                yield columns[block, name], weight, banks[block][name]

    def _update(
        self, given: PassInput, index: Tensor | None, gradients: Rows, norms: Tensor, is_finite: Tensor
    ) -> None:
        state = self.state
        is_moved = given.update & is_finite
        beta1, beta2, eps, decay, clip, b_rate = _rows(state.settings, index).split(1, dim=1)
        count = _rows(state.updates, index) + 1
        shortened = (clip / (norms[:, None] + 1e-6)).clamp(max=1.0)
        scales = _rows(state.scales, index)
        rates, ones = given.rates[:, None], torch.ones_like(scales)
        # In PEFT's LoRA+ magnitudes have the rate of B, modules that are trained whole that of A.
        of_banks = ((ones, rates), (scales, rates * b_rate), (ones, rates * b_rate))
        how = (*((*one, False) for one in of_banks), *[(ones, rates, True)] * len(state.copies))
        common = (shortened, beta1, beta2, eps, decay, count[:, None].float())
        for trained, gradient, (scale, rate, is_large) in zip(state.trained, gradients, how, strict=True):
            if not gradient.shape[1]:
                continue
            whole = (trained.weights, trained.first, trained.second, trained.used)
            given_rows = (gradient, scale, is_moved[:, None], rate, *common)
            if is_large:
                # In place, one by one: rows are gathered as copies, and kernels as written make some, too.
                for place, slot in enumerate(given.slots):
                    row = (one[slot : slot + 1] for one in whole)
                    self._kernels.move(*row, *(one[place : place + 1] for one in given_rows))
                continue
            parts = [_rows(one, index) for one in whole]
            self._kernels.move(*parts, *given_rows)
            for one, part in zip(whole, parts, strict=True):
                _put(one, index, part)
        _put(state.updates, index, torch.where(is_moved, count, count - 1))
        self._weigh(index)

    def _dropping(self, given: PassInput) -> PassDropout | None:
        """Return the dropout of a training pass."""
        if not given.drops:
            return None
        state, index = self.state, given.index
        keys = keys_of(*(_rows(one, index) for one in (state.seeds, state.updates, state.passes)))
        return PassDropout(shares=_rows(state.dropouts, index), keys=keys, length=given.tokens.shape[2])

    def _copies(self, given: PassInput) -> Copies:
        """Return each member's own modules."""
        rows = [[one.used[slot] for slot in given.slots] for one in self.state.copies]
        return copies_of(self._whole, rows)

    def _bank_gradients(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return zeros for the gradients of so many members' adapters."""
        device, layout = self._frozen.device, self._layout
        a, b = (
            torch.zeros(count, size, dtype=self._frozen.dtype, device=device) for size in (layout.a_size, layout.b_size)
        )
        return a, b, torch.zeros(count, layout.m_size, device=device)

    def _copy_gradients(self, count: int) -> list[Tensor]:
        """Return zeros for the gradients of so many members' own modules."""
        return [torch.zeros(count, one.size, device=self._frozen.device) for one in self._whole]

    def _banks(self, index: Tensor | None) -> Sequence[Banks]:
        if index is None:
            return self._all
        state = self.state
        return self._layout.banks(state.a.used[index], state.b.used[index], state.m.used[index])


class PassRunner(AdapterPasses):
    """Passes over a base whose blocks are computed by hand."""

    def __init__(
        self,
        base: BaseWeights,
        layout: BankLayout,
        state: AdapterSlotState,
        kernels: PointwiseKernels,
        whole: Sequence[OuterModule] = (),
    ) -> None:
        super().__init__(base, layout, state, kernels, whole)
        self._base = base
        self._tables: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))]

    def prepare(self, length: int) -> None:
        """Make the tables for sequences of a length.

        None is freed: a recorded graph reads those that it was recorded with.
        """
        if len(self._tables[-1][0]) < length:
            head_dim, rotation = self._base.shape.model.head_dim, self._base.shape.rotation
            self._tables.append(tables(rotation, head_dim, max(length, 2048), self._base.device))

    def _gradients(self, given: PassInput) -> tuple[Tensor, Rows]:
        banks, copies = self._banks(given.index), self._copies(given)
        hidden, normed, kept, now = self._forward(given, banks, copies, keeps=True)
        base, n = self._base, given.tokens.shape[0]
        whole = self._copy_gradients(n)
        own = copies_of(self._whole, whole)
        flat, normed = (one.view(-1, base.shape.hidden) for one in (hidden, normed))
        scores, dnormed = self._scores_and_gradient(given, normed, copies, own)
        dx, _ = self._kernels.norm_backward(flat, base.norm, base.shape.eps, dnormed, torch.zeros_like(flat))
        del normed, dnormed
        # Not before the loss, where the most memory is taken.
        found = self._bank_gradients(n)
        dx = self._backward(dx.view_as(hidden), banks, self._layout.banks(*found), now, kept)
        if "embedding" in own:
            embedded_back(given.tokens, dx, own, base.shape.padding)
        return scores, (*found, *whole)

    def _scores_and_gradient(
        self, given: PassInput, normed: Tensor, copies: Copies, own: Copies
    ) -> tuple[Tensor, Tensor]:
        """Return each member's loss and what else its objective scores, and the gradient of the last hidden rows.

        Gradients of heads of their own are added to `own`.
        """
        labels, n = given.labels, given.tokens.shape[0]
        shares = given.shares[:, None, None].expand_as(labels)
        if given.answers is None:
            losses, dnormed = self._losses_and_gradient(normed, labels, shares, copies, own)
            return (losses.view(n, -1).sum(1) * given.shares)[None], dnormed
        if "head" in own:
            # Its gradient needs the weights of tokens, which follow from the losses.
            weighed = weigh(self._losses_of(normed, labels, copies).view_as(labels), given.answers)
            return weighed.scores, self._losses_and_gradient(normed, labels, weighed.weights, copies, own)[1]
        # The weights follow from the losses, and scale the gradients of tokens: the head is multiplied once.
        losses, dnormed = self._losses_and_gradient(normed, labels, torch.ones_like(shares), copies, own)
        weighed = weigh(losses.view_as(given.labels), given.answers)
        return weighed.scores, dnormed.mul_(weighed.weights.view(-1, 1))

    def _losses_and_gradient(
        self, normed: Tensor, labels: Tensor, shares: Tensor, copies: Copies, own: Copies
    ) -> tuple[Tensor, Tensor]:
        if "head" not in own:
            flat = (labels.reshape(-1), shares.reshape(-1))
            return losses_and_gradient(normed, self._base.head, *flat, self._kernels)
        each = zip(normed.chunk(len(labels)), copies["head"], labels, shares, own["head"], strict=True)
        found = [
            losses_and_gradient(rows, head, label.reshape(-1), share.reshape(-1), self._kernels, dhead)
            for rows, (head, *_), label, share, (dhead, *_) in each
        ]
        losses, gradients = zip(*found, strict=True)
        return torch.cat(losses), torch.cat(gradients)

    def _losses_of(self, normed: Tensor, labels: Tensor, copies: Copies) -> Tensor:
        """Return each token's loss, in one row."""
        if "head" not in copies:
            return token_losses(normed, self._base.head, labels.reshape(-1), self._kernels)
        each = zip(normed.chunk(len(labels)), copies["head"], labels, strict=True)
        return torch.cat(
            [token_losses(rows, head, label.reshape(-1), self._kernels) for rows, (head, *_), label in each]
        )

    def _token_losses(self, given: PassInput, banks: Sequence[Banks], copies: Copies) -> Tensor:
        """Return each token's loss, `[n, rows, T]`; no gradients, no dropout."""
        _, normed, _, _ = self._forward(given, banks, copies, keeps=False)
        return self._losses_of(normed.view(-1, self._base.shape.hidden), given.labels, copies).view_as(given.labels)

    def logits(self, given: PassInput, cache: SequenceCache | None) -> Tensor:
        """Return the logits after the last token of each row, of one member."""
        rows, length = given.tokens.shape[1:]
        kept = cache if isinstance(cache, KeyValueCache) else None
        copies = self._copies(given)
        _, normed, _, _ = self._forward(given, self._banks(given.index), copies, keeps=False, cache=kept)
        if kept is not None:
            kept.length += length
        head = copies["head"][0][0] if "head" in copies else self._base.head
        return torch.nn.functional.linear(normed.view(rows, length, -1)[:, -1], head)

    def _forward(
        self,
        given: PassInput,
        banks: Sequence[Banks],
        copies: Copies,
        *,
        keeps: bool,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor, list[SavedActivations], PassContext]:
        """Return the last hidden rows, the same normed, and what the backward pass needs."""
        base = self._base
        n, rows, length = given.tokens.shape
        past = 0 if cache is None else cache.length
        self.prepare(past + length)
        cos, sin = self._tables[-1]
        positions = given.mask.positions + past if past else given.mask.positions
        now = PassContext(
            shape=base.shape,
            mask=given.mask,
            angles=(cos[positions][:, :, None], sin[positions][:, :, None]),
            kernels=self._kernels,
            keeps=keeps,
            dropping=self._dropping(given) if keeps else None,
            cache=cache,
        )
        tokens, own = given.tokens.reshape(n, rows * length), copies.get("embedding")
        x = base.embedded(tokens) if own is None else own_embedded(tokens, own)
        more = None
        kept: list[SavedActivations] = []
        for number in range(len(base.layers)):
            x, more, one = forward_block(x, more, base.layers[number], banks[number], number, now)
            if one is not None:
                kept.append(one)
        x, normed = self._kernels.norm_sum(x, more, base.norm, base.shape.eps)
        return x, normed, kept, now

    def _backward(
        self,
        dx: Tensor,
        banks: Sequence[Banks],
        gradients: Sequence[Banks],
        now: PassContext,
        kept: list[SavedActivations],
    ) -> Tensor:
        """Write the gradients of adapters; return that of the embeddings."""
        for number in reversed(range(len(self._base.layers))):
            # Free a block's activations as soon as its gradients are written.
            dx = backward_block(
                dx, self._base.layers[number], banks[number], gradients[number], number, now, kept.pop()
            )
        return dx


def _rows(of: Tensor, index: Tensor | None) -> Tensor:
    return of if index is None else of[index]


def _put(into: Tensor, index: Tensor | None, rows: Tensor) -> None:
    if index is None:
        if rows is not into:
            into.copy_(rows)
    else:
        into[index] = rows


# Inputs and outputs of a step.


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSlotRows:
    """The rows of some slots in one pass: equally many rows of one length for each. Arrays of numpy or torch."""

    slots: tuple[int, ...]
    tokens: Any
    """`[n, rows, T]`."""
    labels: Any
    """`[n, rows, T]`: the next token, or `IGNORED`."""
    denominators: Sequence[float]
    """The divisor of each sum of losses: the learned tokens of the whole update."""
    segments: Any = None
    """`[n, rows, T]`: the sequence of a token in a packed row; None: each row is one."""
    answers: AdapterSlotAnswers | None = None
    """Of pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSlotAnswers:
    """The answers in the rows of some slots: arrays of numpy or torch, as `AnswerInput` has them."""

    objective: Objective
    places: Any
    """`[n, rows, T]`."""
    pair_shares: Any
    """`[n, pairs]`."""
    token_shares: Sequence[float]
    betas: Sequence[float]
    reference: Tensor | None = None
    """On the device; None: not known yet."""


class PassResult:
    """The result of a pass. On a GPU it is copied when first read: until then the next rows can be prepared."""

    def __init__(self, losses: Tensor) -> None:
        """Of `[3, n]`: losses, norms, and whether both are finite; of pairs also accuracies and margins."""
        self._losses = losses

    @cached_property
    def _rows(self) -> list[list[float]]:
        rows: list[list[float]] = self._losses.tolist()
        return rows

    @property
    def losses(self) -> list[float]:
        """The sum of each slot's token losses over its denominator."""
        return self._rows[0]

    @property
    def norms(self) -> list[float]:
        """The norm of each slot's accumulated gradient before clipping."""
        return self._rows[1]

    @property
    def finite(self) -> list[bool]:
        """True for each slot whose loss and gradient are finite. Otherwise it was not updated."""
        return [value == 1.0 for value in self._rows[2]]

    @property
    def ranking(self) -> list[list[float]]:
        """Of pairs: each slot's accuracies, and margins, times their shares."""
        return self._rows[3:]


class LossSums:
    """Sums of token losses and numbers of tokens by slot; of pairs, scores. On a GPU copied when first read."""

    def __init__(self, sums: Tensor) -> None:
        """Of what `PassRunner.losses` returns."""
        self._sums = sums

    @cached_property
    def read(self) -> list[tuple[float, ...]]:
        """Each slot's sum and number; of pairs its loss, accuracy and margin, times their shares."""
        return list(zip(*self._sums.tolist(), strict=True))


# Detection of out-of-memory errors.

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means too little memory, on a device or in RAM."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
