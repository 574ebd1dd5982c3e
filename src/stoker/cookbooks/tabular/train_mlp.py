"""The stage that trains a multi-layer perceptron."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Split, TabularModel
from stoker.cookbooks.tabular.schemas import TabularCurve, TrainArgs, Watch, unwatched

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stoker.cookbooks.tabular.examples import TableExamples
    from stoker.cookbooks.tabular.training import TrainedPipeline


@dataclass(frozen=True, kw_only=True)
class MlpSettings:
    """Settings of the perceptron."""

    hidden: tuple[int, ...] = arg((64, 32), help="width of each hidden layer", ge=1, le=4096)
    epochs: int = arg(200, help="maximum number of epochs, with early stopping", ge=1, le=100_000)
    lr: float = arg(1e-3, help="learning rate (Adam)", gt=0)
    weight_decay: float = arg(1e-4, help="strength of the L2 penalty", ge=0)
    batch: int | None = arg(None, help="rows per step; null: 32, or 200 for a large table", ge=1)
    patience: int = arg(15, help="epochs without improvement before stopping", ge=1)


@dataclass(frozen=True, kw_only=True)
class MlpArgs(TrainArgs, MlpSettings):
    """Arguments of tabular/train_mlp."""


@stage("tabular/train_mlp", version=1, uses=("scikit-learn", "numpy", "pandas"), diverges_on=("loss",))
def train_mlp(job: StageContext, data: Split, args: MlpArgs) -> TabularModel:
    """Train a multi-layer perceptron, epoch by epoch."""
    from stoker.cookbooks.tabular.training import produce

    return produce(job, "mlp", data, args, train)


# A multi-layer perceptron, trained epoch by epoch.
#
# `train` chooses the number of epochs on rows set aside from the training part, then fits on the whole of it; `fit`
# makes no choice. A loss that is no longer finite is handed to `watch` (which may stop the training) before anything
# else happens.


_SMALL_BATCH = 32
_LARGE_BATCH = 200
_LARGE_ROWS = 5_000


def train(examples: TableExamples, settings: MlpArgs, watch: Watch = unwatched) -> TrainedPipeline:
    """Choose the number of epochs, then fit on every row."""
    from stoker.cookbooks.tabular.examples import holdout
    from stoker.cookbooks.tabular.training import HOLDOUT_PERCENT, TrainedPipeline, params_of, still_falling

    settings = replace(settings, batch=_batch(settings, examples))
    parts = holdout(examples, percent=HOLDOUT_PERCENT, seed=settings.seed)
    if parts is None:
        notes = [f"Too few rows to choose the number of epochs on; all {settings.epochs} were trained."]
        return TrainedPipeline(
            pipeline=fit(examples, settings, watch), params=params_of(settings), curves=[], notes=notes
        )
    curve = _losses(examples.take(parts[0]), examples.take(parts[1]), settings, watch)
    chosen = replace(settings, epochs=int(curve["chosen"] or settings.epochs))
    notes = still_falling(curve, settings.epochs)
    return TrainedPipeline(pipeline=fit(examples, chosen), params=params_of(chosen), curves=[curve], notes=notes)


def fit(examples: TableExamples, settings: MlpArgs, watch: Watch = unwatched) -> Any:
    """Train for exactly `settings.epochs` epochs."""
    from sklearn.pipeline import Pipeline

    from stoker.cookbooks.tabular.training import scaled

    preparation = scaled(examples)
    matrix = preparation.fit_transform(examples.features)
    scale = _Scale.of(examples)
    model = _new_model(examples, settings)
    for epoch, loss in _epochs(model, matrix, examples, scale, settings.epochs):
        watch(epoch, settings.epochs, {"loss": loss})
    model.set_params(random_state=settings.seed)
    scale.undo_in(model)
    return Pipeline([("prepare", preparation), ("model", model)])


def _losses(fitted: TableExamples, aside: TableExamples, settings: MlpArgs, watch: Watch) -> TabularCurve:
    """Train until the validation loss has not fallen for `patience` epochs."""
    from stoker.cookbooks.tabular.training import loss_of, scaled, two_part_curve

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
    return two_part_curve("epochs", fitted.problem, xs, seen, unseen)


def _epochs(
    model: Any, matrix: npt.NDArray[np.float64], examples: TableExamples, scale: _Scale, epochs: int
) -> Iterator[tuple[int, float]]:
    """Train one epoch at a time; yield its number and mean training loss."""
    import numpy as np

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


def _new_model(examples: TableExamples, settings: MlpArgs) -> Any:
    import numpy as np
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    family: Any = MLPClassifier if examples.problem == "classification" else MLPRegressor
    return family(
        hidden_layer_sizes=settings.hidden,
        alpha=settings.weight_decay,
        batch_size=min(_batch(settings, examples), len(examples)),
        learning_rate_init=settings.lr,
        # A generator, not a number: with a number, every call of partial_fit shuffles the rows the same way again.
        random_state=np.random.RandomState(settings.seed),
    )


def _batch(settings: MlpArgs, examples: TableExamples) -> int:
    return settings.batch or (_LARGE_BATCH if len(examples) >= _LARGE_ROWS else _SMALL_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Mean and spread of a quantity: networks are trained on it standardised. Classes are unchanged."""

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
        """Fold the scale into the output layer, which is linear, so that the model predicts in the original unit."""
        if self.active:
            model.coefs_[-1] = model.coefs_[-1] * self.spread
            model.intercepts_[-1] = model.intercepts_[-1] * self.spread + self.mean
