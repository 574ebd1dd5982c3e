"""Common parts of trainings of all model families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from stoker.authoring import StageContext
from stoker.cookbooks.tabular.examples import FittedPipeline, TableExamples, library_versions
from stoker.cookbooks.tabular.kinds import Split, TabularModel
from stoker.cookbooks.tabular.schemas import (
    CurveSeries,
    Family,
    Problem,
    TabularCurve,
    TabularModelFacts,
    TrainArgs,
    Watch,
)

HOLDOUT_PERCENT = 15
_STORED_NAMES = {"lr": "learning_rate"}
A = TypeVar("A", bound=TrainArgs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPipeline:
    """A fitted pipeline, the settings to fit the same one again, and its training curve."""

    pipeline: Any
    params: dict[str, Any]
    curves: list[TabularCurve]
    notes: list[str] = field(default_factory=list)


def loss_name(problem: Problem) -> str:
    """Return the name of the loss of `loss_of`."""
    return "log loss" if problem == "classification" else "root mean squared error"


def loss_of(estimator: Any, matrix: npt.NDArray[np.float64], examples: TableExamples) -> float:
    """Return the log loss of a classifier with known classes, or the root mean squared error of a regressor."""
    if examples.problem == "regression":
        return float(np.sqrt(np.mean((estimator.predict(matrix) - examples.target) ** 2)))
    given = estimator.predict_proba(matrix)[np.arange(len(examples)), examples.codes]
    return float(-np.log(np.clip(given, 1e-15, 1.0)).mean())


def two_part_curve(
    x_label: str, problem: Problem, xs: list[float], seen: list[float], unseen: list[float]
) -> TabularCurve:
    """Return the curve of training and validation losses; the lowest validation loss is chosen."""
    return TabularCurve(
        x_label=x_label,
        y_label=loss_name(problem),
        series=[
            CurveSeries(name="training rows", x=xs, y=[significant(value) for value in seen]),
            CurveSeries(name="rows set aside", x=xs, y=[significant(value) for value in unseen]),
        ],
        chosen=xs[unseen.index(min(unseen))],
    )


def still_falling(curve: TabularCurve, most: int) -> list[str]:
    """Return a note if the limit ended the training, not the validation loss."""
    if curve["chosen"] != most or most == 1:
        return []
    return [f"The loss on rows set aside was still falling at {most} {curve['x_label']}: more may help."]


def significant(value: float) -> float:
    """Round to six significant digits: further digits differ between machines and would change bytes."""
    return float(f"{value:.6g}")


# Thread limits of numeric libraries.

_LARGE_CELLS = 500_000


def limited(n_jobs: int | None, examples: TableExamples) -> Any:
    """Limit OpenMP and BLAS to `n_jobs` threads (None: every core) during a block, and to one for a small table.

    With little work, threads wait for each other longer than they work, above all on a busy machine.
    """
    most = n_jobs if n_jobs is not None else int(joblib.cpu_count())
    return threadpool_limits(limits=most if examples.features.size >= _LARGE_CELLS else 1)


# Store a trained pipeline, in the same way for every family.


def produce(
    job: StageContext, family: Family, data: Split, args: A, train: Callable[[TableExamples, A, Watch], TrainedPipeline]
) -> TabularModel:
    """Train on the training part, report every step, and store the pipeline with its facts."""
    parts = data.load()
    with limited(args.n_jobs, parts.train):
        trained = train(parts.train, args, lambda done, of, metrics: job.step(done, of=of, **metrics))
    for note in trained.notes:
        job.log(note)
    facts = TabularModelFacts(
        family=family,
        problem=parts.facts["problem"],
        params=trained.params,
        classes=parts.facts["classes"],
        numeric=parts.facts["numeric"],
        categorical=parts.facts["categorical"],
        target=parts.facts["target"],
        train_rows=len(parts.train),
        curves=trained.curves,
        notes=trained.notes,
        versions=library_versions(),
    )
    return job.save(TabularModel, FittedPipeline(pipeline=trained.pipeline, facts=facts))


def params_of(args: TrainArgs) -> dict[str, Any]:
    """Return the settings that decide what is learned, by their names in a model's facts."""
    params = {_STORED_NAMES.get(name, name): value for name, value in asdict(args).items() if name != "n_jobs"}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def args_of(of: type[A], params: Mapping[str, Any]) -> A:
    """Return the arguments of the settings of `params_of`."""
    named: dict[str, Any] = {
        one.name: params[_STORED_NAMES.get(one.name, one.name)] for one in fields(of) if one.name != "n_jobs"
    }
    named |= {name: tuple(value) for name, value in named.items() if isinstance(value, list)}
    return of(**named)


# Preprocessing: the first step of every pipeline, fitted on training rows only.


_MOST_CATEGORIES = 50
# HistGradientBoosting bins categories like numbers: 255 bins, one of them for missing values.
_MOST_TREE_CATEGORIES = 254


def scaled(examples: TableExamples) -> Any:
    """For models that use distances: gaps filled, numbers standardised, categories one-hot encoded."""
    numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    categories = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=_MOST_CATEGORIES, sparse_output=False
    )
    return ColumnTransformer(
        [("numbers", numbers, list(examples.numeric)), ("categories", categories, list(examples.categorical))]
    )


def for_trees(examples: TableExamples) -> Any:
    """For trees, which support gaps and categories natively: categories first, as codes."""
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
        max_categories=_MOST_TREE_CATEGORIES,
    )
    return ColumnTransformer(
        [("categories", codes, list(examples.categorical)), ("numbers", "passthrough", list(examples.numeric))]
    )
