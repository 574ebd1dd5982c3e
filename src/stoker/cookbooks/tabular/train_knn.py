"""The stages that train k nearest neighbours: from all labels, or from few."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from stoker.authoring import StageContext, StageInputError, arg, stage
from stoker.cookbooks.tabular.kinds import Split, TabularModel
from stoker.cookbooks.tabular.schemas import CurveSeries, TabularCurve, TrainArgs, Watch, unwatched

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stoker.cookbooks.tabular.examples import TableExamples
    from stoker.cookbooks.tabular.training import TrainedPipeline


@dataclass(frozen=True, kw_only=True)
class KnnSettings:
    """Settings of k nearest neighbours."""

    neighbours: int | None = arg(None, help="number of neighbours; null: the best of 1 to 45", ge=1, le=10_000)
    weights: Literal["uniform", "distance"] = arg("uniform", help="equal weights, or by distance")


@dataclass(frozen=True, kw_only=True)
class KnnArgs(TrainArgs, KnnSettings):
    """Arguments of tabular/train_knn."""


@stage("tabular/train_knn", version=1, uses=("scikit-learn", "numpy", "pandas"))
def train_knn(job: StageContext, data: Split, args: KnnArgs) -> TabularModel:
    """Train k nearest neighbours."""
    from stoker.cookbooks.tabular.training import produce

    return produce(job, "knn", data, args, train)


@dataclass(frozen=True, kw_only=True)
class KnnSemiSettings:
    """Settings of self-training neighbours."""

    neighbours: int = arg(5, help="rows to ask", ge=1, le=10_000)
    labelled_percent: int = arg(20, help="share of training rows that keep their label", ge=1, le=100)
    confidence: float = arg(0.9, help="minimum confidence for the model's own labels", gt=0, lt=1)
    rounds: int = arg(10, help="maximum rounds of labelling", ge=1, le=1000)


@dataclass(frozen=True, kw_only=True)
class KnnSemiArgs(TrainArgs, KnnSemiSettings):
    """Arguments of tabular/train_knn_semi."""

    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)


@stage("tabular/train_knn_semi", version=1, uses=("scikit-learn", "numpy", "pandas"))
def train_knn_semi(job: StageContext, data: Split, args: KnnSemiArgs) -> TabularModel:
    """Train k nearest neighbours that label most of their rows themselves."""
    from stoker.cookbooks.tabular.training import produce

    return produce(job, "knn_semi", data, args, train_semi)


# k nearest neighbours on standardised columns.
#
# `train` chooses the number of neighbours, if it is not given, by cross-validation on the training rows; `fit` makes no
# choice.


_CANDIDATES = (1, 3, 5, 7, 9, 11, 15, 21, 31, 45)
_USUAL = 5
_CHOICE_FOLDS = 5


def train(examples: TableExamples, settings: KnnArgs, watch: Watch = unwatched) -> TrainedPipeline:
    """Choose the number of neighbours if it is not given, then fit on every row."""
    from stoker.cookbooks.tabular.training import TrainedPipeline, params_of

    notes: list[str] = []
    curves: list[TabularCurve] = []
    if settings.neighbours is None:
        curve = _losses(examples, settings, watch)
        if curve is None:
            notes.append("Too few rows to choose the number of neighbours on.")
        else:
            curves.append(curve)
        settings = replace(settings, neighbours=int(curve["chosen"] or _USUAL) if curve else _USUAL)
    chosen = settings.neighbours or _USUAL
    if chosen > len(examples):
        notes.append(
            f"There are only {len(examples)} training rows, so as many neighbours are used instead of {chosen}."
        )
        settings = replace(settings, neighbours=len(examples))
    return TrainedPipeline(pipeline=fit(examples, settings), params=params_of(settings), curves=curves, notes=notes)


def fit(examples: TableExamples, settings: KnnArgs) -> Any:
    """Store the rows. With fewer rows than neighbours, all rows are used."""
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
    from sklearn.pipeline import Pipeline

    from stoker.cookbooks.tabular.training import scaled

    preparation = scaled(examples)
    matrix = preparation.fit_transform(examples.features)
    family: Any = KNeighborsClassifier if examples.problem == "classification" else KNeighborsRegressor
    model = family(n_neighbors=min(settings.neighbours or _USUAL, len(examples)), weights=settings.weights)
    return Pipeline([("prepare", preparation), ("model", model.fit(matrix, examples.target))])


def _losses(examples: TableExamples, settings: KnnArgs, watch: Watch) -> TabularCurve | None:
    import numpy as np

    from stoker.cookbooks.tabular.examples import fold_count, folds_of
    from stoker.cookbooks.tabular.training import loss_name, significant

    folds = fold_count(examples, _CHOICE_FOLDS)
    smallest = len(examples) - -(-len(examples) // folds) if folds else 0
    candidates = [count for count in _CANDIDATES if count <= smallest]
    if not candidates:
        return None
    losses: list[list[float]] = []
    for done, (fit_rows, score_rows) in enumerate(folds_of(examples, folds=folds, seed=settings.seed), start=1):
        losses.append(_losses_in_fold(examples.take(fit_rows), examples.take(score_rows), candidates, settings))
        watch(done, folds, {})
    mean = np.mean(losses, axis=0)
    return TabularCurve(
        x_label="neighbours",
        y_label="error rate" if examples.problem == "classification" else loss_name(examples.problem),
        series=[
            CurveSeries(
                name="cross-validation", x=[float(k) for k in candidates], y=[significant(value) for value in mean]
            )
        ],
        # Of equally good counts the largest, which is the smoothest.
        chosen=float(candidates[int(len(mean) - 1 - np.argmin(mean[::-1]))]),
    )


def _losses_in_fold(
    fitted: TableExamples, scored: TableExamples, candidates: list[int], settings: KnnArgs
) -> list[float]:
    """Search the nearest rows once, and score every candidate count of them."""
    import numpy as np
    from sklearn.neighbors import NearestNeighbors

    from stoker.cookbooks.tabular.training import scaled

    preparation = scaled(fitted)
    index = NearestNeighbors(n_neighbors=candidates[-1]).fit(preparation.fit_transform(fitted.features))
    distances, nearest = index.kneighbors(preparation.transform(scored.features))
    losses = []
    for count in candidates:
        weights = _weights(distances[:, :count], settings.weights)
        if fitted.problem == "regression":
            predicted = (fitted.target[nearest[:, :count]] * weights).sum(axis=1) / weights.sum(axis=1)
            losses.append(float(np.sqrt(np.mean((predicted - scored.target) ** 2))))
            continue
        votes = np.zeros((len(scored), len(fitted.classes)))
        for place in range(count):
            np.add.at(votes, (np.arange(len(scored)), fitted.codes[nearest[:, place]]), weights[:, place])
        losses.append(float((votes.argmax(axis=1) != scored.codes).mean()))
    return losses


def _weights(distances: npt.NDArray[np.float64], kind: str) -> npt.NDArray[np.float64]:
    import numpy as np

    if kind == "uniform":
        return np.ones_like(distances)
    exact = distances == 0
    with np.errstate(divide="ignore"):
        inverse = 1.0 / distances
    inverse[exact.any(axis=1)] = 0.0
    inverse[exact] = 1.0
    return inverse


# Self-training: k nearest neighbours from few labels.
#
# All but a share of the labels of the training rows are hidden. In rounds, rows with a confident prediction get it as
# their label and join the training rows. The resulting pipeline is an ordinary nearest-neighbour classifier over the
# labelled rows.


_UNKNOWN = -1


def train_semi(examples: TableExamples, settings: KnnSemiArgs, watch: Watch = unwatched) -> TrainedPipeline:
    """Hide labels, train with the model's own labels, and report their accuracy."""
    from stoker.cookbooks.tabular.training import TrainedPipeline, params_of

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
    return TrainedPipeline(pipeline=pipeline, params=params_of(settings), curves=[curve], notes=[note])


def fit_semi(examples: TableExamples, settings: KnnSemiArgs) -> Any:
    """Train again with the same settings."""
    return _taught(examples, settings)[0]


def _taught(examples: TableExamples, settings: KnnSemiArgs) -> tuple[Any, Any, npt.NDArray[np.int64]]:
    import numpy as np
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.semi_supervised import SelfTrainingClassifier

    from stoker.cookbooks.tabular.examples import nested_subset
    from stoker.cookbooks.tabular.training import scaled

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
    """Return the share of labelled rows after each round, and the accuracy of the model's own labels."""
    from stoker.cookbooks.tabular.training import significant

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
