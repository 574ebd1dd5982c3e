"""k nearest neighbours that learn from few labels and many rows without one.

The labels of all but a share of the training rows are hidden. In rounds, rows that the model is sure about get its
own answer as their label and join the rows to learn from. The pipeline that results is an ordinary nearest-neighbour
classifier over the rows labelled by then.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.semi_supervised import SelfTrainingClassifier

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.examples import TableExamples
from stoker.cookbooks.tabular.partition import nested_subset
from stoker.cookbooks.tabular.preparation import scaled
from stoker.cookbooks.tabular.schemas import CurveSeries, TabularCurve
from stoker.cookbooks.tabular.training import TrainedPipeline, Watch, significant, unwatched

_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTraining:
    """Settings of the semi-supervised neighbours."""

    neighbours: int
    labelled_percent: int
    confidence: float
    rounds: int
    seed: int


def train(examples: TableExamples, settings: SelfTraining, watch: Watch = unwatched) -> TrainedPipeline:
    """Hide labels, let the model fill them in, and say how well it did."""
    if examples.problem != "classification":
        raise StageInputError(
            "knn_semi needs classes to predict, not quantities", hint="use knn, gbt or mlp for regression"
        )
    pipeline, teacher, known = _taught(examples, settings)
    last_round = int(teacher.n_iter_)
    watch(last_round, last_round, {})
    curve = _progress(examples, teacher, last_round)
    filled = int((teacher.transduction_ != _UNKNOWN).sum()) - len(known)
    note = (
        f"{len(known)} of {len(examples)} training rows kept their label; {filled} were given one by the model in "
        f"{last_round} {'round' if last_round == 1 else 'rounds'}."
    )
    return TrainedPipeline(pipeline=pipeline, params=asdict(settings), curves=[curve], notes=[note])


def fit(examples: TableExamples, settings: SelfTraining) -> Any:
    """Train again with the same settings."""
    return _taught(examples, settings)[0]


def _taught(examples: TableExamples, settings: SelfTraining) -> tuple[Any, Any, npt.NDArray[np.int64]]:
    keep = max(len(np.unique(examples.codes)), -(-len(examples) * settings.labelled_percent // 100))
    known = nested_subset(examples, rows=keep, seed=settings.seed)
    labels = np.full(len(examples), _UNKNOWN, dtype=np.int64)
    labels[known] = examples.codes[known]
    preparation = scaled(examples)
    matrix = preparation.fit_transform(examples.features)
    count = min(settings.neighbours, len(known))
    teacher = SelfTrainingClassifier(
        KNeighborsClassifier(n_neighbors=count), threshold=settings.confidence, max_iter=settings.rounds
    ).fit(matrix, labels)
    labelled = teacher.transduction_ != _UNKNOWN
    model = KNeighborsClassifier(n_neighbors=count)
    model.fit(matrix[labelled], examples.classes[teacher.transduction_[labelled]])
    return Pipeline([("prepare", preparation), ("model", model)]), teacher, known


def _progress(examples: TableExamples, teacher: Any, last_round: int) -> TabularCurve:
    """Share of rows that have a label after each round, and how many of the model's own labels are right."""
    given_in = teacher.labeled_iter_
    right = teacher.transduction_ == examples.codes
    rounds = list(range(last_round + 1))
    share = [float(((given_in >= 0) & (given_in <= number)).mean()) for number in rounds]
    own = [(given_in > 0) & (given_in <= number) for number in rounds]
    series = [
        CurveSeries(
            name="rows with a label", x=[float(number) for number in rounds], y=[significant(value) for value in share]
        )
    ]
    known = [(float(number), float(right[mine].mean())) for number, mine in zip(rounds, own, strict=True) if mine.any()]
    if known:
        series.append(
            CurveSeries(name="own labels that are right", x=[x for x, _ in known], y=[significant(y) for _, y in known])
        )
    return TabularCurve(x_label="round", y_label="share", series=series, chosen=None)
