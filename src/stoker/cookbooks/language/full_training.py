"""The training of all weights of one model, update by update.

Weights, gradients and moments are kept in 32 bits; on a GPU products may be computed in bfloat16. With the same seed,
on a CPU with the same number of threads, the result is the same bit for bit, however often it was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from stoker.cookbooks.language.compute.blocks import IGNORED, chunk_tokens
from stoker.cookbooks.language.compute.frozen_base import EMBEDDING, HEAD, DecoderShape
from stoker.cookbooks.language.compute.math import AttentionMask, looking_of, tables
from stoker.cookbooks.language.examples import MemberRows
from stoker.cookbooks.language.shared.outputs import keep, recall
from stoker.cookbooks.language.shared.pass_schedule import is_checkpoint_due, is_report_due
from stoker.cookbooks.language.shared.tenant import AdapterMember, is_evaluation_due, judge, should_stop
from stoker.core.clock import Clock
from stoker.core.errors import StageDiverged

# A model of the supported families as a function of its weights, by their names in the hub's layout, for autograd.
#
# Returns the numbers that transformers returns for the same weights, except for rounding.

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Rows to learn from, on their device."""

    tokens: Tensor
    """`[rows, T]`."""
    labels: Tensor
    """`[rows, T]`: the next token, or `IGNORED`."""
    looking: AttentionMask


def batch_of(tokens: Tensor, labels: Tensor, segments: Tensor | None, device: str) -> TokenBatch:
    """Move rows to a device. `segments` are those of packed rows."""
    rows, length = tokens.shape
    looking = looking_of(rows, length, segments, is_ragged=False)
    moved = AttentionMask(
        positions=looking.positions.to(device),
        segments=None if looking.segments is None else looking.segments.to(device),
    )
    return TokenBatch(tokens=tokens.long().to(device), labels=labels.long().to(device), looking=moved)


class DecoderNetwork:
    """The forward pass with some weights."""

    def __init__(self, shape: DecoderShape, weights: Weights, *, device: str, longest: int) -> None:
        self._shape = shape
        self._weights = weights
        model = shape.model
        self._head = weights.get(HEAD, weights[EMBEDDING]) if not model.is_tied else weights[EMBEDDING]
        self._cos, self._sin = tables(shape.rotation, model.head_dim, longest, device)

    def loss_sum(self, batch: TokenBatch) -> Tensor:
        """Return the sum of the losses of all tokens with a label, in 32 bits."""
        hidden = self.hidden(batch).flatten(0, 1)
        labels = batch.labels.flatten()
        size = chunk_tokens(self._shape.vocabulary, len(labels))
        losses = [
            # All logits are never in memory at once: each chunk's are computed again for its gradient.
            checkpoint(_chunk_loss, part, self._head, wanted, use_reentrant=False)
            for part, wanted in zip(hidden.split(size), labels.split(size), strict=True)
        ]
        return torch.stack(losses).sum()

    def logits(self, batch: TokenBatch) -> Tensor:
        """Return `[rows, T, vocabulary]`."""
        return linear(self.hidden(batch), self._head)

    def hidden(self, batch: TokenBatch) -> Tensor:
        """Return the input of the head, `[rows, T, hidden]`."""
        x = embedding(batch.tokens, self._weights[EMBEDDING])
        cos, sin = (table[batch.looking.positions][:, None] for table in (self._cos, self._sin))
        for number in range(self._shape.layers):
            x = self._block(x, number, batch.looking, cos, sin)
        return self._norm(x, "model.norm")

    def _block(self, x: Tensor, number: int, looking: AttentionMask, cos: Tensor, sin: Tensor) -> Tensor:
        at, model = f"model.layers.{number}", self._shape.model
        rows, length, _ = x.shape
        given = self._norm(x, f"{at}.input_layernorm")
        q, k, v = (
            self._linear(given, f"{at}.self_attn.{name}_proj").view(rows, length, -1, model.head_dim)
            for name in ("q", "k", "v")
        )
        if model.has_head_norms:
            q, k = self._norm(q, f"{at}.self_attn.q_norm"), self._norm(k, f"{at}.self_attn.k_norm")
        mask = looking.mask(self._shape.windows[number], length)
        seen = scaled_dot_product_attention(
            _turned(q.transpose(1, 2), cos, sin),
            _turned(k.transpose(1, 2), cos, sin),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=model.heads != model.kv_heads,
        )
        x = x + self._linear(seen.transpose(1, 2).flatten(2), f"{at}.self_attn.o_proj")
        given = self._norm(x, f"{at}.post_attention_layernorm")
        gated = silu(self._linear(given, f"{at}.mlp.gate_proj")) * self._linear(given, f"{at}.mlp.up_proj")
        return x + self._linear(gated, f"{at}.mlp.down_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._shape.eps)
        return (self._weights[f"{name}.weight"] * scaled).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `[rows, heads, T, head_dim]` by position."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _chunk_loss(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(linear(hidden, head).float(), labels, ignore_index=IGNORED, reduction="sum")


Wrote = Callable[[str, dict[str, Tensor]], None]
"""Called with the name of a requested folder (`epoch-2`, `best`) and the weights of that moment."""


@dataclass(slots=True, kw_only=True)
class FullTrainingResult:
    """The result of a training."""

    weights: dict[str, Tensor]
    kept: int
    """The update whose weights they are."""


class FullTraining:
    """One training of one model."""

    def __init__(
        self,
        member: AdapterMember,
        shape: DecoderShape,
        weights: dict[str, Tensor],
        *,
        device: str,
        dtype: str,
        clock: Clock,
    ) -> None:
        """Take over weights: they are moved, and changed in place."""
        self._member = member
        self._device = device
        self._clock = clock
        tied = {HEAD} if shape.model.is_tied else set()
        self._weights = {
            name: one.to(device, torch.float32).requires_grad_() for name, one in weights.items() if name not in tied
        }
        self._network = DecoderNetwork(shape, self._weights, device=device, longest=member.args.max_seq_len)
        groups = [
            # As usual: norms and biases have no weight decay.
            {
                "params": [one for one in self._weights.values() if one.ndim > 1],
                "weight_decay": member.args.weight_decay,
            },
            {"params": [one for one in self._weights.values() if one.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, lr=member.args.lr, fused=device != "cpu")
        self._narrow = dtype == "bfloat16"
        self._best: dict[str, Tensor] | None = None

    def run(self, write_folder: Wrote) -> FullTrainingResult:
        """Train to the end, from the checkpoint of an earlier attempt if there is one."""
        member, job = self._member, self._member.attempt.job
        self._go_on()
        kept_s = reported_s = self._clock.monotonic_s()
        kept_update, keeping_s, tokens = member.update, 0.0, 0
        while member.update < member.updates:
            job.check()
            if member.update == 0 and member.held_out:
                member.before = self._judge()
            tokens += self._learn()
            is_judged = bool(member.held_out) and is_evaluation_due(
                member.update, updates=member.updates, per_epoch=member.per_epoch, every=member.args.eval_every
            )
            is_better = is_judged and self._take_in(self._judge())
            stops = is_judged and should_stop(member.judged, member.args.patience)
            ends = stops or member.update >= member.updates
            now_s = self._clock.monotonic_s()
            if is_report_due(now_s - reported_s, is_special=is_judged or ends or member.update == 1):
                self._report(tokens / max(1e-9, now_s - reported_s), is_judged=is_judged, ends=ends)
                reported_s, tokens = now_s, 0
            for name in _folders(member, is_better=is_better):
                write_folder(name, self._weights)
            if stops and member.update < member.updates:
                self._note(
                    f"Stopped after update {member.update} of {member.updates}: "
                    f"{member.judged.worse_in_a_row} evaluations in a row without improvement."
                )
            if ends:
                break
            since_s = self._clock.monotonic_s() - kept_s
            every = member.args.checkpoint_every
            if is_checkpoint_due(member.update - kept_update, every=every, since_s=since_s, cost_s=keeping_s):
                begun_s = self._clock.monotonic_s()
                self._keep()
                kept_s, kept_update = self._clock.monotonic_s(), member.update
                keeping_s = kept_s - begun_s
        if member.args.keep == "best" and self._best is not None:
            return FullTrainingResult(weights=self._best, kept=member.judged.best_update)
        return FullTrainingResult(weights=self._weights, kept=member.update)

    def _learn(self) -> int:
        """Make one update; return the number of tokens."""
        member = self._member
        update, rate = member.look_ahead(), member.rate
        self._optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for rows in update.batches:
            loss = self._loss(rows) / max(1, update.supervised)
            loss.backward()
            total += float(loss.detach())
        parameters = list(self._weights.values())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, member.args.clip or math.inf))
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise StageDiverged(
                f"loss is {total}, its gradient {norm}, at step {member.update + 1}",
                hint="lower the learning rate",
                metric="loss",
                step=member.update + 1,
            )
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        member.updated()
        member.curve.note_update(member.update, loss=total, tokens=update.supervised, lr=rate)
        return update.tokens

    def _judge(self) -> float:
        """Return the mean loss over the held-out examples."""
        total, count = 0.0, 0
        with torch.no_grad():
            for rows in self._member.held_out:
                total += float(self._loss(rows))
                count += rows.supervised
        return total / max(1, count)

    def _take_in(self, loss: float) -> bool:
        """Record an evaluation; return True if it is the best so far, whose weights are kept."""
        member = self._member
        if not math.isfinite(loss):
            raise StageDiverged(
                f"eval_loss is {loss} at step {member.update}",
                hint="lower the learning rate",
                metric="eval_loss",
                step=member.update,
            )
        member.curve.note_evaluation(member.update, loss=loss, lr=member.last_rate)
        member.judged = judge(member.judged, loss, update=member.update, epoch=member.epoch)
        if member.judged.best_update != member.update:
            return False
        if member.args.keep == "best":
            self._best = {name: one.detach().to("cpu", copy=True) for name, one in self._weights.items()}
        return True

    def _loss(self, rows: MemberRows) -> Tensor:
        segments = None if rows.segments is None else torch.from_numpy(rows.segments)
        batch = batch_of(torch.from_numpy(rows.tokens), torch.from_numpy(rows.labels), segments, self._device)
        with self._width():
            return self._network.loss_sum(batch)

    def _width(self) -> AbstractContextManager[Any]:
        if not self._narrow:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self._device, dtype=torch.bfloat16)
        return context

    def _report(self, tokens_per_s: float, *, is_judged: bool, ends: bool) -> None:
        member = self._member
        metrics = {"loss": member.curve.last_loss or 0.0, "lr": member.last_rate, "tokens_per_s": tokens_per_s}
        judged = member.kept_loss if ends else member.judged.last
        if is_judged and judged is not None:
            metrics["eval_loss"] = judged
        if ends and self._device != "cpu":
            metrics["peak_bytes"] = float(torch.cuda.max_memory_reserved())
        member.attempt.job.step(member.update, of=member.updates, **metrics)

    def _note(self, text: str) -> None:
        self._member.notes.append(text)
        self._member.attempt.job.log(text)

    def _keep(self) -> None:
        member = self._member
        state = {**member.state(), "model": self._weights, "opt": self._optimiser.state_dict(), "best": self._best}
        try:
            keep(member.attempt.job.scratch, state)
        except (OSError, RuntimeError) as error:
            member.attempt.job.log(f"checkpoint not written: {error}")

    def _go_on(self) -> None:
        member, job = self._member, self._member.attempt.job
        kept = recall(job.scratch, member.config)
        for why in kept.notes:
            job.log(f"checkpoint: {why}")
        if kept.state is None:
            return
        member.go_on(kept.state)
        self._best, member.best = kept.state["best"], None
        with torch.no_grad():
            for name, one in self._weights.items():
                one.copy_(kept.state["model"][name])
        self._optimiser.load_state_dict(kept.state["opt"])
        job.tell(f"resumes after update {member.update} of {member.updates}", at_once=True)


def _folders(member: AdapterMember, *, is_better: bool) -> tuple[str, ...]:
    if member.args.checkpoints is None:
        return ()
    epoch = (f"epoch-{member.epoch}",) if member.is_at_epoch_end else ()
    return (*epoch, "best") if is_better or (member.is_at_epoch_end and not member.held_out) else epoch
