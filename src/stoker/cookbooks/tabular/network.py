"""A multi-layer perceptron, trained epoch by epoch.

`train` chooses the number of epochs on rows set aside from the training part, then fits on the whole of it; `fit`
makes no choice. A loss that is no longer finite is handed to `watch` (which may stop the training) before anything
else happens.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline

from stoker.cookbooks.tabular.examples import TableExamples
from stoker.cookbooks.tabular.partition import holdout
from stoker.cookbooks.tabular.preparation import scaled
from stoker.cookbooks.tabular.schemas import CurveSeries, TabularCurve
from stoker.cookbooks.tabular.training import (
    HOLDOUT_PERCENT,
    TrainedPipeline,
    Watch,
    loss_name,
    loss_of,
    significant,
    still_falling,
    unwatched,
)

_SMALL_BATCH = 32
_LARGE_BATCH = 200
_LARGE_ROWS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceptronSettings:
    """Settings of the perceptron."""

    hidden: tuple[int, ...]
    epochs: int
    learning_rate: float
    weight_decay: float
    batch: int | None
    """None until it is chosen by the number of rows."""
    patience: int
    seed: int


def train(examples: TableExamples, settings: PerceptronSettings, watch: Watch = unwatched) -> TrainedPipeline:
    """Choose how many epochs to train for, then fit on every row."""
    settings = replace(settings, batch=_batch(settings, examples))
    parts = holdout(examples, percent=HOLDOUT_PERCENT, seed=settings.seed)
    if parts is None:
        notes = [f"Too few rows to choose the number of epochs on; all {settings.epochs} were trained."]
        return TrainedPipeline(pipeline=fit(examples, settings, watch), params=_plain(settings), curves=[], notes=notes)
    curve = _losses(examples.take(parts[0]), examples.take(parts[1]), settings, watch)
    chosen = replace(settings, epochs=int(curve["chosen"] or settings.epochs))
    notes = still_falling(curve, settings.epochs)
    return TrainedPipeline(pipeline=fit(examples, chosen), params=_plain(chosen), curves=[curve], notes=notes)


def fit(examples: TableExamples, settings: PerceptronSettings, watch: Watch = unwatched) -> Any:
    """Train for exactly `settings.epochs` epochs."""
    preparation = scaled(examples)
    matrix = preparation.fit_transform(examples.features)
    scale = _Scale.of(examples)
    model = _new_model(examples, settings)
    for epoch, loss in _epochs(model, matrix, examples, scale, settings.epochs):
        watch(epoch, settings.epochs, {"loss": loss})
    model.set_params(random_state=settings.seed)
    scale.undo_in(model)
    return Pipeline([("prepare", preparation), ("model", model)])


def _losses(fitted: TableExamples, aside: TableExamples, settings: PerceptronSettings, watch: Watch) -> TabularCurve:
    """Train until the loss on the rows set aside has not fallen for `patience` epochs."""
    preparation = scaled(fitted)
    matrix = preparation.fit_transform(fitted.features)
    aside_matrix = preparation.transform(aside.features)
    scale = _Scale.of(fitted)
    scaled_aside = replace(aside, target=scale.down(aside.target))
    scaled_fitted = replace(fitted, target=scale.down(fitted.target))
    model = _new_model(fitted, settings)
    seen: list[float] = []
    unseen: list[float] = []
    for epoch, loss in _epochs(model, matrix, fitted, scale, settings.epochs):
        if not math.isfinite(loss):
            watch(epoch, settings.epochs, {"loss": loss})
        seen.append(loss_of(model, matrix, scaled_fitted) * scale.spread)
        unseen.append(loss_of(model, aside_matrix, scaled_aside) * scale.spread)
        watch(epoch, settings.epochs, {"loss": unseen[-1], "train_loss": seen[-1]})
        if len(unseen) - unseen.index(min(unseen)) > settings.patience:
            break
    xs = [float(epoch) for epoch in range(1, len(seen) + 1)]
    return TabularCurve(
        x_label="epochs",
        y_label=loss_name(fitted.problem),
        series=[
            CurveSeries(name="training rows", x=xs, y=[significant(value) for value in seen]),
            CurveSeries(name="rows set aside", x=xs, y=[significant(value) for value in unseen]),
        ],
        chosen=xs[unseen.index(min(unseen))],
    )


def _epochs(
    model: Any, matrix: npt.NDArray[np.float64], examples: TableExamples, scale: _Scale, epochs: int
) -> Iterator[tuple[int, float]]:
    """Train one epoch at a time; gives its number and mean training loss."""
    target = scale.down(examples.target)
    classes = {"classes": examples.classes} if examples.problem == "classification" else {}
    with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")
        for epoch in range(1, epochs + 1):
            try:
                model.partial_fit(matrix, target, **classes)
            except ValueError as error:
                if "non-finite" not in str(error):
                    raise
                yield epoch, math.nan
                raise
            yield epoch, float(model.loss_)


def _new_model(examples: TableExamples, settings: PerceptronSettings) -> Any:
    family: Any = MLPClassifier if examples.problem == "classification" else MLPRegressor
    return family(
        hidden_layer_sizes=settings.hidden,
        alpha=settings.weight_decay,
        batch_size=min(_batch(settings, examples), len(examples)),
        learning_rate_init=settings.learning_rate,
        # A generator, not a number: with a number, every call of partial_fit shuffles the rows the same way again.
        random_state=np.random.RandomState(settings.seed),
    )


def _batch(settings: PerceptronSettings, examples: TableExamples) -> int:
    return settings.batch or (_LARGE_BATCH if len(examples) >= _LARGE_ROWS else _SMALL_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Mean and spread of a quantity: networks learn it standardised. Classes are left alone."""

    mean: float
    spread: float
    active: bool

    @classmethod
    def of(cls, examples: TableExamples) -> _Scale:
        if examples.problem == "classification":
            return cls(mean=0.0, spread=1.0, active=False)
        return cls(mean=float(examples.target.mean()), spread=float(examples.target.std()) or 1.0, active=True)

    def down(self, target: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return (target - self.mean) / self.spread if self.active else target

    def undo_in(self, model: Any) -> None:
        """Fold the scale into the output layer, which is linear, so that the model answers in the user's unit."""
        if self.active:
            model.coefs_[-1] = model.coefs_[-1] * self.spread
            model.intercepts_[-1] = model.intercepts_[-1] * self.spread + self.mean


def _plain(settings: PerceptronSettings) -> dict[str, Any]:
    return {**asdict(settings), "hidden": list(settings.hidden)}
