"""The training of all weights of one model, update by update, alone or as one of several ranks.

With the same seed, on a CPU with the same number of threads and ranks, the result is the same bit for bit, however
often it was interrupted. Against one rank, several add up in another order: in 32 bits losses agree to 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stoker.cookbooks.language.arguments import FullArgs
from stoker.cookbooks.language.full_module import TrainedModule, TrainingRanks
from stoker.cookbooks.language.shared.curves import is_evaluation_due, judge, should_stop
from stoker.cookbooks.language.shared.device_memory import undisturbed
from stoker.cookbooks.language.shared.members import TrainedMember
from stoker.cookbooks.language.shared.outputs import folders_due, keep, recall
from stoker.cookbooks.language.shared.pass_schedule import is_checkpoint_due, is_report_due, progress_text
from stoker.core.clock import Clock
from stoker.core.errors import Cancelled, StageDiverged

Weights = dict[str, Tensor]
WriteFolder = Callable[[str, Weights], None]
"""Called on the first rank with the name of a requested folder (`epoch-2`, `best`) and the weights of that moment."""


@dataclass(slots=True, kw_only=True)
class FullTrainingResult:
    """The result of a training; of several ranks only the first has the weights."""

    weights: Weights
    kept: int
    """The update whose weights they are."""


class FullTraining:
    """One training of one model."""

    def __init__(
        self, member: TrainedMember[FullArgs], module: TrainedModule, ranks: TrainingRanks, *, clock: Clock
    ) -> None:
        self._member = member
        self._module = module
        self._ranks = ranks
        self._clock = clock
        self._best: Weights | None = None
        self._reported_s = self._kept_s = clock.monotonic_s()
        self._keeping_s = 0.0
        """Duration of the last checkpoint."""
        self._kept_update = self._whole_update = 0
        """The update of the last checkpoint, and the last one after which nothing was left to do."""
        self._tokens = 0
        """Number of tokens since the last report."""

    def run(self, write_folder: WriteFolder) -> FullTrainingResult:
        """Train to the end, from the checkpoint of an earlier attempt if there is one."""
        member = self._member
        self._resume()
        self._reported_s = self._kept_s = self._clock.monotonic_s()
        self._kept_update = member.update
        # A checkpoint may be of the update after which the training stopped early.
        ends = member.update >= member.updates or should_stop(member.judged, member.args.patience)
        try:
            while not ends:
                member.attempt.job.check()
                with undisturbed():
                    ends = self._one_update(write_folder)
        except Cancelled:
            # Several ranks do not hear of it after the same update, and each has to hand in its part.
            if self._ranks.count == 1 and self._kept_update < member.update == self._whole_update:
                self._write_checkpoint()
            raise
        if member.args.keep == "best" and self._best is not None:
            return FullTrainingResult(weights=self._best, kept=member.judged.best_update)
        return FullTrainingResult(weights=self._module.weights(), kept=member.update)

    def _one_update(self, write_folder: WriteFolder) -> bool:
        """Make one update, with the evaluation, report, folders and checkpoint after it; return True after the last."""
        member = self._member
        if member.update == 0 and member.held_out:
            member.before = self._module.judge(member.held_out)
        self._tokens += self._learn()
        is_judged = bool(member.held_out) and is_evaluation_due(
            member.update, updates=member.updates, per_epoch=member.per_epoch, every=member.args.eval_every
        )
        is_better = is_judged and self._take_in(self._module.judge(member.held_out))
        stops = is_judged and should_stop(member.judged, member.args.patience)
        ends = stops or member.update >= member.updates
        now_s = self._clock.monotonic_s()
        if is_report_due(now_s - self._reported_s, is_special=is_judged or ends or member.update == 1):
            self._report(self._tokens / max(1e-9, now_s - self._reported_s), is_judged=is_judged, ends=ends)
            self._reported_s, self._tokens = now_s, 0
        for name in folders_due(member, is_improved=is_better):
            weights = self._module.weights()
            if self._ranks.is_first:
                write_folder(name, weights)
        if stops and member.update < member.updates:
            self._note(
                f"Stopped after update {member.update} of {member.updates}: "
                f"{member.judged.worse_in_a_row} evaluations in a row without improvement."
            )
        if not ends:
            every, since_s = member.args.checkpoint_every, self._clock.monotonic_s() - self._kept_s
            is_due = is_checkpoint_due(
                member.update - self._kept_update, every=every, since_s=since_s, cost_s=self._keeping_s
            )
            # Clocks differ, and every rank has to hand in its part.
            if self._ranks.decide(is_due):
                self._write_checkpoint()
        self._whole_update = member.update
        return ends

    def _learn(self) -> int:
        """Make one update; return the number of tokens."""
        member = self._member
        update, rate = member.look_ahead(), member.rate
        loss, norm = self._module.learn(update.batches, seed=f"{member.args.seed}/{member.update}")
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise StageDiverged(
                f"loss is {loss}, its gradient {norm}, at step {member.update + 1}",
                hint="lower the learning rate",
                metric="loss",
                step=member.update + 1,
            )
        self._module.step(rate)
        member.updated()
        member.curve.note_update(member.update, loss=loss, tokens=update.supervised, lr=rate)
        return update.tokens

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
        member.judged = judge(member.judged, loss, update=member.update)
        if member.judged.best_update != member.update:
            return False
        if member.args.keep == "best":
            self._best = {name: one.to("cpu", copy=True) for name, one in self._module.weights().items()}
        return True

    def _report(self, tokens_per_s: float, *, is_judged: bool, ends: bool) -> None:
        member = self._member
        metrics = {"loss": member.curve.last_loss or 0.0, "lr": member.last_rate, "tokens_per_s": tokens_per_s}
        judged = member.kept_loss if ends else member.judged.last
        if is_judged and judged is not None:
            metrics["eval_loss"] = judged
        if ends and self._ranks.device != "cpu":
            metrics["peak_bytes"] = float(torch.cuda.max_memory_reserved())
        if (is_judged or ends or member.update == 1) and self._ranks.is_first:
            member.attempt.job.log(progress_text(member.update, member.updates, metrics))
        member.attempt.job.step(member.update, of=member.updates, **metrics)

    def _note(self, text: str) -> None:
        self._member.notes.append(text)
        if self._ranks.is_first:
            self._member.attempt.job.log(text)

    def _write_checkpoint(self) -> None:
        member, begun_s = self._member, self._clock.monotonic_s()
        weights, optimiser_state = self._module.weights(), self._module.optimiser_state()
        if self._ranks.is_first:
            state: dict[str, Any] = {**member.state(), "model": weights, "opt": optimiser_state, "best": self._best}
            try:
                keep(member.attempt.job.scratch, state)
            except (OSError, RuntimeError) as error:
                member.attempt.job.log(f"checkpoint not written: {error}")
        self._kept_s, self._kept_update = self._clock.monotonic_s(), member.update
        self._keeping_s = self._kept_s - begun_s

    def _resume(self) -> None:
        member, job, is_first = self._member, self._member.attempt.job, self._ranks.is_first
        for turn in self._ranks.turns():
            if not turn:
                continue
            kept = recall(job.scratch, member.config)
            for why in kept.notes if is_first else ():
                job.log(f"checkpoint: {why}")
            if kept.state is None:
                continue
            member.resume(kept.state)
            best = kept.state["best"]
            # Of several ranks only the first has weights, but all must know whether there are any.
            self._best = best if is_first or best is None else {}
            self._module.resume(kept.state["model"], kept.state["opt"])
            if is_first:
                job.tell(f"resumed after update {member.update} of {member.updates}", at_once=True)
