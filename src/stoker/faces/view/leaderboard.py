"""Adapters by their best checkpoints: ascending by validation loss, by average loss where there was no validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stoker.faces.view.stages import number
from stoker.faces.view.tables import table
from stoker.model.frozen import frozen


@frozen
class Entry:
    """One adapter that has a best checkpoint."""

    label: str
    file: str
    """Which adapters file names it."""
    checkpoint: str
    """Where that checkpoint lies."""
    epoch: int
    train_loss: float | None
    val_loss: float | None
    avg_loss: float | None
    rank: int
    alpha: float
    global_step: int

    @property
    def loss(self) -> float | None:
        """What it is ranked by."""
        return self.val_loss if self.val_loss is not None else self.avg_loss


def ranked(entries: Sequence[Entry]) -> list[tuple[int, Entry]]:
    """Give entries with their places, from 1, best first; those without a loss that is a number come last."""
    return list(enumerate(sorted(entries, key=_place), 1))


def row_as_json(place: int, entry: Entry) -> dict[str, Any]:
    """Give a row as plain data; `rank` is the adapter's own."""
    return {
        "place": place,
        "label": entry.label,
        "val_loss": entry.val_loss,
        "train_loss": entry.train_loss,
        "avg_loss": entry.avg_loss,
        "epoch": entry.epoch,
        "rank": entry.rank,
        "alpha": entry.alpha,
        "global_step": entry.global_step,
        "file": entry.file,
        "checkpoint": entry.checkpoint,
    }


def board_lines(rows: Sequence[tuple[int, Entry]], columns: int, *, names_files: bool) -> list[str]:
    """Draw a leaderboard."""
    header = ["", "adapter", "val loss", "train loss", "epoch", "rank", "alpha", "step", *(["file"] * names_files)]
    body = [
        [
            str(place),
            one.label,
            _loss(one),
            "" if one.train_loss is None else number(one.train_loss),
            str(one.epoch),
            str(one.rank),
            number(one.alpha),
            f"{one.global_step:,}",
            *([one.file] * names_files),
        ]
        for place, one in rows
    ]
    return list(table(body, header=header, columns=columns))


def _place(entry: Entry) -> tuple[bool, float, str]:
    loss = entry.loss
    is_number = loss is not None and math.isfinite(loss)
    return not is_number, loss if is_number and loss is not None else 0.0, entry.label


def _loss(entry: Entry) -> str:
    if entry.val_loss is not None:
        return number(entry.val_loss)
    return "" if entry.avg_loss is None else f"{number(entry.avg_loss)} (average)"
