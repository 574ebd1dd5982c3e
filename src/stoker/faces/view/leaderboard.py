"""Adapters by their best checkpoints: ascending by validation loss, by average loss where there was no validation.

A loss over one text says nothing about an adapter that was measured on another: each has its place among those with
the same data, cut and held out alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.faces.view.grounds import ground_value
from stoker.faces.view.stages import number
from stoker.faces.view.tables import table
from stoker.model.frozen import frozen
from stoker.worker.grounds import Ground, on_grounds


@frozen
class Entry:
    """One adapter that has a best checkpoint."""

    n: int
    """Its number among those of all files."""
    label: str
    file: str
    """Which adapters file names it."""
    checkpoint: str
    """Where that checkpoint lies."""
    measured_on: Mapping[str, Any]
    """What decided over which text its losses are: `data`, where its examples lie or what they are called, and more."""
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


@frozen
class Row:
    """An adapter with its places, each from 1."""

    entry: Entry
    place: int
    """In the order of losses, whatever they are over."""
    place_on_data: int
    """Among those that were measured on the same."""


def ranked(entries: Sequence[Entry]) -> list[Row]:
    """Give entries in the order of their losses; those without a loss that is a number come last."""
    places = {entry.n: place for ground in grounds_of(entries) for place, entry in enumerate(ground.trials, 1)}
    return [
        Row(entry=entry, place=place, place_on_data=places[entry.n])
        for place, entry in enumerate(sorted(entries, key=_place), 1)
    ]


def grounds_of(entries: Sequence[Entry]) -> list[Ground[Entry]]:
    """Put entries together whose losses may be compared, best first."""
    ordered = sorted(entries, key=_place)
    return on_grounds(ordered, [entry for entry in ordered if entry.loss is not None])


def row_as_json(row: Row) -> dict[str, Any]:
    """Give a row as plain data; `rank` is the adapter's own."""
    entry = row.entry
    return {
        "place": row.place,
        "place_on_data": row.place_on_data,
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
        "data": entry.measured_on["data"],
        "measured_on": dict(entry.measured_on),
    }


def board_lines(rows: Sequence[Row], columns: int, *, names_files: bool, near: str) -> list[str]:
    """Draw a leaderboard, with each one's place on its data, and what tells those apart as seen from folder `near`."""
    grounds = grounds_of([row.entry for row in rows])
    apart = list(grounds[0].told_by) if grounds else []
    losses = ["val loss", "train loss"]
    header = ["", "adapter", *apart, *losses, "epoch", "rank", "alpha", "step", *(["file"] * names_files)]
    body = [
        [
            str(row.place_on_data),
            one.label,
            *(ground_value(one.measured_on.get(name), near) for name in apart),
            _loss(one),
            "" if one.train_loss is None else number(one.train_loss),
            str(one.epoch),
            str(one.rank),
            number(one.alpha),
            f"{one.global_step:,}",
            *([one.file] * names_files),
        ]
        for row in rows
        for one in [row.entry]
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
