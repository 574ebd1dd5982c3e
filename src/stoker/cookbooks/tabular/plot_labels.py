"""How metrics, models, numbers and data are named to people, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from stoker.cookbooks.tabular.schemas import LESS_IS_BETTER, Interval, ModelScores, TableFacts, TabularEvaluation

METRIC_NAMES: Final[Mapping[str, str]] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "roc_auc": "ROC AUC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
}
SHORT_METRIC_NAMES: Final[Mapping[str, str]] = {
    **METRIC_NAMES,
    "balanced_accuracy": "balanced",
    "mae": "MAE",
    "rmse": "RMSE",
}
MODEL_NAMES: Final[Mapping[str, str]] = {
    "gbt": "gradient boosted trees (HistGradientBoosting)",
    "knn": "k nearest neighbours",
    "knn_semi": "k nearest neighbours, self-trained from few labels",
    "mlp": "multi-layer perceptron",
    "baseline": "baseline that never looks at a feature",
}


def number(value: float) -> str:
    """Return a score in the precision that its size and spread make meaningful."""
    if not math.isfinite(value):
        return "–"
    if value != 0 and abs(value) >= 100:
        return f"{value:,.1f}"
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text


def with_interval(score: Interval) -> str:
    """Return a score with its 95 % interval."""
    return f"{number(score['value'])} [{number(score['low'])}, {number(score['high'])}]"


def cross_validated(model: ModelScores, metric: str) -> str:
    """Return the cross-validated mean and spread, or a dash where there is none."""
    validated = model["cross_validation"]
    if validated is None:
        return "–"
    return f"{number(validated['mean'][metric])} ± {number(validated['std'][metric])}"


def ranked(book: TabularEvaluation) -> list[ModelScores]:
    """Return the models from best to worst by what decides, the baseline last."""
    sign = 1.0 if book["rank_by"] in LESS_IS_BETTER else -1.0

    def place(model: ModelScores) -> tuple[bool, bool, float]:
        validated = model["cross_validation"]
        score = validated["mean"] if validated is not None else {}
        value = score.get(book["rank_by"], model["test"][book["rank_by"]]["value"])
        return model["name"] == "baseline", model["name"] != book["best"], sign * value

    return sorted(book["models"], key=place)


def verdicts(book: TabularEvaluation) -> list[str]:
    """Return in words which differences the test rows can and can't show."""
    best, metric = book["best"], METRIC_NAMES[book["rank_by"]]
    beaten: list[str] = []
    level: list[str] = []
    ahead: list[str] = []
    for model in ranked(book):
        gap = model["behind_best"]
        if gap is not None:
            (beaten if gap["low"] > 0 else ahead if gap["high"] < 0 else level).append(model["name"])
    said = []
    if beaten:
        said.append(f"{best} is better than {_joined(beaten, 'and')} on the held-out rows ({metric}, 95 % sure).")
    if level:
        said.append(f"The held-out rows can't tell {_joined(level, 'or')} from {best} ({metric}, 95 %).")
    if ahead:
        said.append(
            f"On the held-out rows {_joined(ahead, 'and')} did better than {best} ({metric}, 95 % sure); on the "
            "training rows, which decide, it was the other way round."
        )
    return said


def data_name(facts: TableFacts) -> str:
    """Name the data in words that hold on every machine."""
    origin = facts["origin"]
    return origin["name"] or f"a {'CSV' if origin['format'] == 'csv' else 'Parquet'} file"


def params_text(params: Mapping[str, Any]) -> str:
    """Return settings on one line."""
    return ", ".join(f"{name}={_setting(value)}" for name, value in sorted(params.items())) or "–"


def _setting(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _joined(names: list[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
