"""How a member's losses went, as it is kept and written down: bounded, however long it trains."""

from __future__ import annotations

from typing import Any

from stoker.cookbooks.language.records import Point, significant

MOST_POINTS = 1000
"""Of training losses; evaluations come on top."""


class CurveBook:
    """Takes in what happened update by update, and gives points: each the mean since the one before it."""

    def __init__(self, *, updates: int, per_epoch: int) -> None:
        self._every = -(-updates // MOST_POINTS)
        self._per_epoch = per_epoch
        self._points: list[Point] = []
        self._losses = 0.0
        self._tokens = 0
        self._all_losses = 0.0
        self._all_tokens = 0
        self.last_loss: float | None = None

    @property
    def points(self) -> list[Point]:
        return list(self._points)

    @property
    def mean_loss(self) -> float | None:
        """Over every trained token so far."""
        return self._all_losses / self._all_tokens if self._all_tokens else None

    def note_update(self, update: int, *, loss: float, tokens: int, lr: float) -> None:
        """Take in an update's mean loss over so many trained tokens."""
        self.last_loss = loss
        self._losses += loss * tokens
        self._tokens += tokens
        self._all_losses += loss * tokens
        self._all_tokens += tokens
        if update % self._every == 0:
            self._close(update, lr, None)

    def note_evaluation(self, update: int, *, loss: float, lr: float) -> None:
        """Take in an evaluation after an update."""
        if self._points and self._points[-1]["step"] == update and not self._tokens:
            self._points[-1]["eval_loss"] = significant(loss)
        else:
            self._close(update, lr, significant(loss))

    def state(self) -> dict[str, Any]:
        """Give all of it, plain, to go on from."""
        sums = [self._losses, self._tokens, self._all_losses, self._all_tokens]
        return {"points": [dict(point) for point in self._points], "sums": sums, "last_loss": self.last_loss}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._points = list(state["points"])
        self._losses, self._tokens, self._all_losses, self._all_tokens = state["sums"]
        self.last_loss = state["last_loss"]

    def _close(self, update: int, lr: float, eval_loss: float | None) -> None:
        mean = significant(self._losses / self._tokens) if self._tokens else None
        epoch = significant(update / self._per_epoch)
        self._points.append(Point(step=update, epoch=epoch, loss=mean, eval_loss=eval_loss, lr=significant(lr)))
        self._losses, self._tokens = 0.0, 0
