"""transformers' module in training: weights, gradients and moments, of one process or of one of several ranks.

In 32 bits weights are trained as they are. In bfloat16 the module computes in 16 bits, and gradients are added up and
applied in 32 bits, to master copies of the weights. Several ranks keep a part of every weight each (FSDP2): a block's
weights are together only while it computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from stoker.cookbooks.language.arguments import IGNORED, FullArgs
from stoker.cookbooks.language.compute.blocks import chunk_tokens
from stoker.cookbooks.language.compute.transformers_base import (
    blocks_of,
    head_of,
    load_transformers,
    positions_of,
    takes_packed_rows,
)
from stoker.cookbooks.language.examples import MemberRows
from stoker.core.errors import MissingExtra
from stoker.core.frozen import changed, frozen
from stoker.host.install import pip_install


@frozen
class TrainingRanks:
    """This process among the ranks of a training."""

    rank: int
    count: int
    device: str

    @classmethod
    def here(cls, device: str) -> TrainingRanks:
        """Return the process group that torch was initialised with; otherwise a group of one."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(rank=distributed.get_rank(), count=distributed.get_world_size(), device=device)
        return cls(rank=0, count=1, device=device)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sums(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks. Every rank must call it."""
        if self.count == 1:
            return list(values)
        held = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(held)
        return [float(one) for one in held]

    def decide(self, flag: bool) -> bool:  # noqa: FBT001 - the value itself
        """Return the flag of rank 0, on every rank."""
        return self.sums(float(flag and self.is_first))[0] > 0

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.count > 1:
            distributed.barrier()

    def turns(self) -> Iterator[bool]:
        """Yield True once, in turn: what is whole is in memory once, however many ranks there are."""
        for turn in range(self.count):
            yield turn == self.rank
            self.barrier()

    def share(self, rows: MemberRows) -> MemberRows:
        """Return this rank's rows of a batch."""
        if self.count == 1:
            return rows
        if self.rank < len(rows.tokens):
            part, labels = slice(self.rank, None, self.count), rows.labels
        else:
            # Every rank takes part in every exchange: with a row of which nothing is learned.
            part, labels = slice(1), np.full_like(rows.labels, IGNORED)
        segments = None if rows.segments is None else rows.segments[part]
        return changed(rows, tokens=rows.tokens[part], labels=labels[part], segments=segments)


class CausalLoss(nn.Module):
    """A model, and the sum of its losses."""

    def __init__(self, model: Any, *, is_packed: bool) -> None:
        super().__init__()
        self.model = model
        self.takes_packed_rows = is_packed and takes_packed_rows(model)
        self._head = head_of(model)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings

    def forward(self, tokens: Tensor, labels: Tensor, positions: Tensor | None) -> Tensor:
        """Return the sum of the losses of all tokens with a label, in 32 bits."""
        more = {} if positions is None else {"position_ids": positions}
        labels = labels.flatten()
        if self._head is None:
            return _loss(self.model(tokens, use_cache=False, **more).logits.flatten(0, 1), labels)
        hidden = self.model.base_model(tokens, use_cache=False, **more).last_hidden_state.flatten(0, 1)
        size = chunk_tokens(self._vocabulary, len(labels))
        losses = [
            # All logits are never in memory at once: each chunk's are computed again for its gradient.
            checkpoint(_head_loss, self._head, part, wanted, use_reentrant=False)
            for part, wanted in zip(hidden.split(size), labels.split(size), strict=True)
        ]
        return torch.stack(losses).sum()


def _head_loss(head: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor) -> Tensor:
    return _loss(head(hidden), labels)


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


class TrainedModule:
    """A model that is trained. Every rank calls the same methods in the same order."""

    def __init__(self, folder: Path, args: FullArgs, ranks: TrainingRanks) -> None:
        """Load a base. Raises what `load_transformers` raises."""
        self._ranks = ranks
        is_narrow = args.dtype == "bfloat16"
        mesh = mesh_of(ranks) if ranks.count > 1 else None
        for turn in ranks.turns():
            if turn:
                self._loss = CausalLoss(load_transformers(folder), is_packed=args.packing)
                if mesh is not None:
                    _shard(self._loss, mesh, is_narrow=is_narrow)
        self.model = self._loss.model.to(ranks.device)
        if args.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._used = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
        wide = self._used if mesh is not None or not is_narrow else _wide_names(self.model)
        self._masters = {name: one if name in wide else _master_of(one) for name, one in self._used.items()}
        self._optimiser = optimiser_of(list(self._masters.values()), args, ranks.device)
        self._clip = math.inf if args.clip is None else args.clip

    @property
    def takes_packed_rows(self) -> bool:
        return self._loss.takes_packed_rows

    @property
    def size(self) -> int:
        """Number of trained weights."""
        return sum(one.numel() for one in self._masters.values())

    def learn(self, batches: Sequence[MemberRows], *, seed: str) -> tuple[float, float]:
        """Make the gradient of some batches; return their mean loss, and the gradient's norm before it is clipped."""
        self.model.train()
        for one in self._masters.values():
            one.grad = None
        total, count = 0.0, sum(rows.supervised for rows in batches)
        for number, rows in enumerate(batches):
            # A base may have dropout. A training that was interrupted draws the same again.
            torch.manual_seed(_seed(f"{seed}/{number}/{self._ranks.rank}"))
            loss = self._loss_of(rows) / max(1, count)
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(self._masters.values(), self._clip)
        return self._ranks.sums(total)[0], float(norm.full_tensor() if self._ranks.count > 1 else norm)

    def step(self, rate: float) -> None:
        """Apply the gradient of the update."""
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self._narrow()

    def judge(self, batches: Sequence[MemberRows]) -> float:
        """Return the mean loss over batches."""
        self.model.eval()
        total, count = 0.0, sum(rows.supervised for rows in batches)
        with torch.no_grad():
            for rows in batches:
                total += float(self._loss_of(rows))
        if self._ranks.count > 1:
            # Without a backward pass the outermost weights stay together.
            self._loss.reshard()
        return self._ranks.sums(total)[0] / max(1, count)

    def weights(self) -> dict[str, Tensor]:
        """Return all weights in 32 bits by name, a tied one once; of several ranks only the first gets them."""
        return {name: self._whole(one.detach()) for name, one in self._masters.items()}

    def optimiser_state(self) -> dict[str, Any]:
        """Return the state of the optimiser; of several ranks only the first gets it."""
        state = self._optimiser.state_dict()
        of_weights = {
            number: {name: self._whole(one) for name, one in held.items()} for number, held in state["state"].items()
        }
        return {**state, "state": of_weights}

    def resume(self, weights: Mapping[str, Tensor], optimiser_state: dict[str, Any]) -> None:
        """Restore what `weights` and `optimiser_state` returned, on any number of ranks."""
        with torch.no_grad():
            for name, one in self._masters.items():
                one.copy_(self._parted(weights[name], one))
        self._narrow()
        state = {
            number: {name: self._parted(value, one) for name, value in optimiser_state["state"].get(number, {}).items()}
            for number, one in enumerate(self._optimised())
        }
        self._optimiser.load_state_dict({**optimiser_state, "state": state})

    def _optimised(self) -> list[Tensor]:
        """Return the weights in the order of the optimiser's state."""
        return [one for group in self._optimiser.param_groups for one in group["params"]]

    def _loss_of(self, rows: MemberRows) -> Tensor:
        mine, device = self._ranks.share(rows), self._ranks.device
        tokens, labels = (torch.from_numpy(one).to(device) for one in (mine.tokens, mine.labels))
        positions = None if mine.segments is None else positions_of(torch.from_numpy(mine.segments)).to(device)
        loss: Tensor = self._loss(tokens, labels, positions)
        return loss

    def _narrow(self) -> None:
        """Copy the masters to the weights that are computed with."""
        pairs = [(self._used[name], one) for name, one in self._masters.items() if self._used[name] is not one]
        with torch.no_grad():
            for used, master in pairs:
                used.copy_(master)

    def _whole(self, value: Any) -> Any:
        if self._ranks.count == 1 or not hasattr(value, "full_tensor"):
            return value
        whole = value.full_tensor()
        return whole.cpu() if self._ranks.is_first else whole.new_empty(0)

    def _parted(self, value: Any, like: Tensor) -> Any:
        """Return this rank's part of a value that belongs to a weight."""
        if self._ranks.count == 1 or not isinstance(value, Tensor) or value.shape != like.shape:
            return value
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = like.device_mesh, like.placements
        return distribute_tensor(value.to(self._ranks.device), mesh, placements, src_data_rank=None)


def mesh_of(ranks: TrainingRanks) -> Any:
    """Return all ranks in a line. Every rank must call it. Raises `MissingExtra` if this torch is too old."""
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    if not hasattr(getattr(fsdp, "FSDPModule", None), "set_force_sum_reduction_for_comms"):
        message = f"ranks={ranks.count} needs a newer torch than {torch.__version__}"
        raise MissingExtra(message, hint=pip_install("--upgrade", "torch"))
    return init_device_mesh(ranks.device, (ranks.count,))


def _shard(whole: CausalLoss, mesh: Any, *, is_narrow: bool) -> None:
    """Leave this rank its part of every weight."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if is_narrow:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*blocks_of(whole.model), whole):
        fully_shard(part, mesh=mesh, mp_policy=policy)
        # The loss is a sum over ranks, and so is its gradient.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def _wide_names(model: Any) -> frozenset[str]:
    """Return the weights that transformers computes with in 32 bits, whatever the others have."""
    parts = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    return frozenset(name for name, _ in model.named_parameters() if any(part in name for part in parts))


def _master_of(weight: nn.Parameter) -> Tensor:
    """Return a weight in 32 bits, which collects its gradients; the weight itself has 16 bits from here on."""
    master = weight.detach().requires_grad_()
    weight.data = weight.detach().to(torch.bfloat16)

    def collect(used: Tensor) -> None:
        assert used.grad is not None  # noqa: S101 - torch calls it after a gradient
        gradient = used.grad.float()
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        used.grad = None

    weight.register_post_accumulate_grad_hook(collect)
    return master


def optimiser_of(weights: Sequence[Tensor], args: FullArgs, device: str) -> torch.optim.Optimizer:
    """Return what updates weights. As usual, norms and biases have no weight decay."""
    groups = [
        {"params": [one for one in weights if one.ndim > 1], "weight_decay": args.weight_decay},
        {"params": [one for one in weights if one.ndim <= 1], "weight_decay": 0.0},
    ]
    if args.optimizer == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit

        found: torch.optim.Optimizer = AdamW8bit(groups, lr=args.lr)
        return found
    if args.optimizer == "adafactor":
        # One weight after the other: all at once take as much memory as all weights twice.
        return torch.optim.Adafactor(groups, lr=args.lr, foreach=False)
    return torch.optim.AdamW(groups, lr=args.lr, fused=device != "cpu")


def _seed(word: str) -> int:
    return int.from_bytes(sha256(word.encode()).digest()[:8], "little") >> 1
