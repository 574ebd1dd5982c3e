"""What every side of the metrics benchmark logs: three changing numbers per step, as a training loop would."""

from __future__ import annotations

NAMES = ("loss", "accuracy", "lr")


def at(step: int) -> dict[str, float]:
    return {"loss": 1.0 / (step + 1), "accuracy": 1.0 - 1.0 / (step + 1), "lr": 0.001}
