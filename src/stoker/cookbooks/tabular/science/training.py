"""What every family of models has in common while it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.cookbooks.tabular.records import Curve, Problem
from stoker.cookbooks.tabular.science.examples import Examples

Watch = Callable[[int, int, Mapping[str, float]], None]
"""Called with (steps done, steps planned, metrics); may raise to stop the training."""

HOLDOUT_PERCENT = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A fitted pipeline, the settings that would fit the same one again, and how it got there."""

    pipeline: Any
    params: dict[str, Any]
    curves: list[Curve]
    notes: list[str] = field(default_factory=list)


def unwatched(done: int, of: int, metrics: Mapping[str, float]) -> None:
    """Watch nothing."""


def loss_name(problem: Problem) -> str:
    """Name what `loss_of` measures."""
    return "log loss" if problem == "classification" else "root mean squared error"


def loss_of(estimator: Any, matrix: npt.NDArray[np.float64], examples: Examples) -> float:
    """Log loss of a classifier whose classes are all known, or root mean squared error of a regressor."""
    if examples.problem == "regression":
        return float(np.sqrt(np.mean((estimator.predict(matrix) - examples.target) ** 2)))
    given = estimator.predict_proba(matrix)[np.arange(len(examples)), examples.codes]
    return float(-np.log(np.clip(given, 1e-15, 1.0)).mean())


def still_falling(curve: Curve, most: int) -> list[str]:
    """Say so if the limit ended the training, not the rows set aside."""
    if curve["chosen"] != most or most == 1:
        return []
    return [f"The loss on rows set aside was still falling at {most} {curve['x_label']}: more may help."]


def significant(value: float) -> float:
    """Round to six significant digits: what lies beyond is noise of the machine, and would change bytes for nothing."""
    return float(f"{value:.6g}")
