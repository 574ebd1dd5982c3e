"""Passes over a base of any family: one forward pass for all members, gradients by autograd, into the banks only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stoker.cookbooks.language.compute.banks import BankLayout, Rows
from stoker.cookbooks.language.compute.blocks import Banks
from stoker.cookbooks.language.compute.decoding import ModuleCache, SequenceCache
from stoker.cookbooks.language.compute.general_base import GeneralBase, PassAdapters
from stoker.cookbooks.language.compute.math import PointwiseKernels
from stoker.cookbooks.language.compute.module_copies import Copies, OuterModule, copies_of
from stoker.cookbooks.language.compute.objectives import weigh
from stoker.cookbooks.language.compute.passes import AdapterPasses, PassInput
from stoker.cookbooks.language.compute.slot_state import AdapterSlotState


class GeneralPassRunner(AdapterPasses):
    """Passes over a module of transformers."""

    def __init__(
        self,
        base: GeneralBase,
        layout: BankLayout,
        state: AdapterSlotState,
        kernels: PointwiseKernels,
        whole: Sequence[OuterModule] = (),
    ) -> None:
        super().__init__(base, layout, state, kernels, whole)
        self._base = base

    def prepare(self, length: int) -> None:
        """Make nothing: the module has its own tables."""

    def logits(self, given: PassInput, cache: SequenceCache | None) -> Tensor:
        """Return the logits after the last token of each row, of one member."""
        now = PassAdapters(members=1, banks=self._banks(given.index)[0], copies=self._copies(given))
        with self._base.adapted(now):
            return self._base.logits(
                given.tokens.flatten(0, 1), given.mask, cache if isinstance(cache, ModuleCache) else None
            )

    def _gradients(self, given: PassInput) -> tuple[Tensor, Rows]:
        base, n = self._base, len(given.tokens)
        found, whole = self._bank_gradients(n), self._copy_gradients(n)
        now = PassAdapters(
            members=n,
            banks=self._banks(given.index)[0],
            gradients=self._layout.banks(*found)[0],
            copies=self._copies(given),
            copy_gradients=copies_of(self._whole, whole),
            dropping=self._dropping(given),
        )
        with torch.enable_grad(), base.adapted(now):
            losses = self._computed(given)
            if given.answers is None:
                scores = (losses.detach().flatten(1).sum(1) * given.shares)[None]
                weights = given.shares[:, None, None]
            else:
                weighed = weigh(losses, given.answers)
                scores, weights = weighed.scores, weighed.weights
            (losses * weights).sum().backward()
        return scores, (*found, *whole)

    def _token_losses(self, given: PassInput, banks: Sequence[Banks], copies: Copies) -> Tensor:
        with self._base.adapted(PassAdapters(members=len(given.tokens), banks=banks[0], copies=copies)):
            return self._computed(given)

    def _computed(self, given: PassInput) -> Tensor:
        tokens, labels = (one.flatten(0, 1) for one in (given.tokens, given.labels))
        return self._base.token_losses(tokens, labels, given.mask).view_as(given.labels)
