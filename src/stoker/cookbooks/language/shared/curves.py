"""The losses of a training and what they decide: its curve, its best evaluation, its rates, and when it ends early."""

from __future__ import annotations

import math
from typing import Any

from stoker.cookbooks.language.arguments import Schedule
from stoker.cookbooks.language.schemas import LanguageCurvePoint, significant
from stoker.core.errors import StageDiverged
from stoker.core.frozen import changed, fields_of, frozen, frozen_by_position


@frozen_by_position
class AnswerRanking:
    """How an adapter ranks the answers of pairs."""

    accuracy: float
    """The share of pairs whose chosen answer has the higher reward."""
    margin: float
    """The mean difference of these rewards."""

    @classmethod
    def of(cls, accuracy: float, margin: float) -> AnswerRanking:
        """Return what shares of pairs add up to: in 32 bits, so that equal accuracies may differ in the last digits."""
        return cls(round(accuracy, 6), margin)

    def state(self) -> list[float]:
        """Return it as plain data."""
        return [self.accuracy, self.margin]

    @classmethod
    def from_state(cls, state: list[float] | None) -> AnswerRanking | None:
        """Restore what `state` returned; None stays None."""
        return cls(*state) if state else None


# A member's losses, bounded however long it trains.

MOST_POINTS = 1000
"""Of training losses; evaluations are counted separately."""


class CurveRecorder:
    """Collects losses update by update; each point is the mean since the previous one."""

    def __init__(self, *, updates: int, per_epoch: int) -> None:
        self._every = -(-updates // MOST_POINTS)
        self._per_epoch = per_epoch
        self._points: list[LanguageCurvePoint] = []
        self._losses = 0.0
        self._tokens = 0
        self._all_losses = 0.0
        self._all_tokens = 0
        self._ranked = [0.0, 0.0]
        """Of pairs: sums of accuracies and margins."""
        self.last_loss: float | None = None
        self.last_ranking: AnswerRanking | None = None

    @property
    def points(self) -> list[LanguageCurvePoint]:
        return list(self._points)

    @property
    def mean_loss(self) -> float | None:
        """Over every trained token so far."""
        return self._all_losses / self._all_tokens if self._all_tokens else None

    def note_update(
        self, update: int, *, loss: float, tokens: int, lr: float, ranking: AnswerRanking | None = None
    ) -> None:
        """Add an update's mean loss over so many trained tokens, or pairs."""
        self.last_loss, self.last_ranking = loss, ranking
        if ranking is not None:
            self._ranked = [self._ranked[0] + ranking.accuracy * tokens, self._ranked[1] + ranking.margin * tokens]
        self._losses += loss * tokens
        self._tokens += tokens
        self._all_losses += loss * tokens
        self._all_tokens += tokens
        if update % self._every == 0:
            self._close(update, lr, None)

    def note_evaluation(self, update: int, *, loss: float, lr: float, ranking: AnswerRanking | None = None) -> None:
        """Add an evaluation after an update."""
        if self._points and self._points[-1]["step"] == update and not self._tokens:
            self._points[-1]["eval_loss"] = significant(loss)
        else:
            self._close(update, lr, significant(loss))
        if ranking is not None:
            self._points[-1]["eval_accuracy"] = significant(ranking.accuracy)
            self._points[-1]["eval_margin"] = significant(ranking.margin)

    def state(self) -> dict[str, Any]:
        """Return the state as plain data."""
        sums = [self._losses, self._tokens, self._all_losses, self._all_tokens]
        return {
            "points": [dict(point) for point in self._points],
            "sums": sums,
            "ranked": list(self._ranked),
            "last_loss": self.last_loss,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._points = list(state["points"])
        self._losses, self._tokens, self._all_losses, self._all_tokens = state["sums"]
        self._ranked = list(state["ranked"])
        self.last_loss = state["last_loss"]

    def _close(self, update: int, lr: float, eval_loss: float | None) -> None:
        mean = significant(self._losses / self._tokens) if self._tokens else None
        epoch = significant(update / self._per_epoch)
        point = LanguageCurvePoint(step=update, epoch=epoch, loss=mean, eval_loss=eval_loss, lr=significant(lr))
        if self._tokens and self.last_ranking is not None:
            point["accuracy"], point["margin"] = (significant(one / self._tokens) for one in self._ranked)
        self._points.append(point)
        self._losses, self._tokens, self._ranked = 0.0, 0, [0.0, 0.0]


# When a member is evaluated, which evaluation is the best, and when to stop early.


@frozen
class MemberEvaluations:
    """The evaluations of a member so far."""

    last: float | None = None
    best: float | None = None
    best_update: int = 0
    worse_in_a_row: int = 0
    """Number of evaluations since the best one."""
    last_ranking: AnswerRanking | None = None
    """Of pairs."""
    best_ranking: AnswerRanking | None = None

    def state(self) -> dict[str, Any]:
        """Return them as plain data."""
        rankings = (self.last_ranking, self.best_ranking)
        last_ranking, best_ranking = (None if one is None else one.state() for one in rankings)
        return {**fields_of(self), "last_ranking": last_ranking, "best_ranking": best_ranking}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> MemberEvaluations:
        """Restore what `state` returned."""
        return cls(
            last=state["last"],
            best=state["best"],
            best_update=state["best_update"],
            worse_in_a_row=state["worse_in_a_row"],
            last_ranking=AnswerRanking.from_state(state["last_ranking"]),
            best_ranking=AnswerRanking.from_state(state["best_ranking"]),
        )


def is_evaluation_due(update: int, *, updates: int, per_epoch: int, every: int | None) -> bool:
    """Return True if a member is evaluated after this update (from 1): each so many, each epoch, or at the end."""
    return update >= updates or update % (every or per_epoch) == 0


def judge(
    before: MemberEvaluations, loss: float, *, update: int, ranking: AnswerRanking | None = None
) -> MemberEvaluations:
    """Add an evaluation. Equal is no improvement: the earlier one stays the best."""
    if before.best is None or loss < before.best:
        return MemberEvaluations(last=loss, best=loss, best_update=update, last_ranking=ranking, best_ranking=ranking)
    return changed(before, last=loss, worse_in_a_row=before.worse_in_a_row + 1, last_ranking=ranking)


def should_stop(judged: MemberEvaluations, patience: int | None) -> bool:
    """Return True after so many evaluations without improvement; without patience, never."""
    return patience is not None and judged.worse_in_a_row >= patience


# Learning rates, by the formulas of transformers' `get_scheduler`.


def rate_at(update: int, *, peak: float, schedule: Schedule, warmup: int, updates: int) -> float:
    """Return the learning rate of an update (counted from 0): up to `peak` over `warmup` updates, then by the schedule.

    The first update of a warm-up has the rate 0, as in transformers.
    """
    return peak * _share(update, schedule, warmup, updates)


def _share(update: int, schedule: Schedule, warmup: int, updates: int) -> float:
    if update < warmup:
        return update / max(1, warmup)
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return max(0.0, (updates - update) / max(1, updates - warmup))
    done = (update - warmup) / max(1, updates - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))


def warmup_of(updates: int, percent: float) -> int:
    """Return the number of warm-up updates."""
    return math.ceil(updates * percent / 100)


# When a member with non-finite numbers ends.
#
# A loss that is not finite ends it at once: the same weights would give the same loss again. A gradient that is not
# finite with a finite loss may be a single overflow, so that update is skipped and the next batch is tried; the third
# such update in a row ends it. Weights and moments stay unchanged each time, and other members are not affected.

PATIENCE = 3
"""Maximum of consecutive updates with a non-finite gradient."""


@frozen
class SkippedUpdates:
    """It continues, with so many consecutive updates skipped."""

    left_out: int


@frozen
class MemberDivergence:
    """It ends, with the metric and the reason."""

    metric: str
    why: str


def after_update(left_out: int, *, loss: float, is_finite: bool) -> SkippedUpdates | MemberDivergence:
    """Decide after an update, given the number of consecutive skipped ones before it."""
    if not math.isfinite(loss):
        return MemberDivergence(metric="loss", why=f"loss is {loss}")
    if is_finite:
        return SkippedUpdates(left_out=0)
    if left_out + 1 < PATIENCE:
        return SkippedUpdates(left_out=left_out + 1)
    return MemberDivergence(metric="gradient", why=f"the gradient was not finite {PATIENCE} updates in a row")


def after_evaluation(loss: float) -> MemberDivergence | None:
    """Decide after an evaluation."""
    return None if math.isfinite(loss) else MemberDivergence(metric="eval_loss", why=f"eval_loss is {loss}")


def ranking_metrics(trained: AnswerRanking | None, evaluated: AnswerRanking | None) -> dict[str, float]:
    """Return how a member ranks the answers of pairs, in an update and in an evaluation."""
    metrics: dict[str, float] = {}
    for split, ranking in (("", trained), ("eval_", evaluated)):
        if ranking is not None:
            metrics |= {f"{split}accuracy": ranking.accuracy, f"{split}margin": ranking.margin}
    return metrics


def diverged(verdict: MemberDivergence, update: int) -> StageDiverged:
    """Return the error of a member that diverged in an update, or before the first one."""
    # Before the first update nothing was learned yet: a lower rate would change nothing.
    hint = "lower the learning rate" if update else "nothing was learned yet: the weights of the base are damaged"
    return StageDiverged(f"{verdict.why} at step {update}", hint=hint, metric=verdict.metric, step=update)
