"""What every family of models has in common while it trains."""

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
from stoker.cookbooks.tabular.kinds import Model, Split
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
    """A fitted pipeline, the settings that would fit the same one again, and how it got there."""

    pipeline: Any
    params: dict[str, Any]
    curves: list[TabularCurve]
    notes: list[str] = field(default_factory=list)


def loss_name(problem: Problem) -> str:
    """Name what `loss_of` measures."""
    return "log loss" if problem == "classification" else "root mean squared error"


def loss_of(estimator: Any, matrix: npt.NDArray[np.float64], examples: TableExamples) -> float:
    """Log loss of a classifier whose classes are all known, or root mean squared error of a regressor."""
    if examples.problem == "regression":
        return float(np.sqrt(np.mean((estimator.predict(matrix) - examples.target) ** 2)))
    given = estimator.predict_proba(matrix)[np.arange(len(examples)), examples.codes]
    return float(-np.log(np.clip(given, 1e-15, 1.0)).mean())


def two_part_curve(
    x_label: str, problem: Problem, xs: list[float], seen: list[float], unseen: list[float]
) -> TabularCurve:
    """Return the losses on the rows that were fitted and on those set aside; the lowest of the latter is chosen."""
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
    """Say so if the limit ended the training, not the rows set aside."""
    if curve["chosen"] != most or most == 1:
        return []
    return [f"The loss on rows set aside was still falling at {most} {curve['x_label']}: more may help."]


def significant(value: float) -> float:
    """Round to six significant digits: what lies beyond is noise of the machine, and would change bytes for nothing."""
    return float(f"{value:.6g}")


# How many threads the numeric libraries may use.

_LARGE_CELLS = 500_000


def limited(n_jobs: int | None, examples: TableExamples) -> Any:
    """Hold OpenMP and BLAS to `n_jobs` threads (None: every core) while open, and to one for a small table.

    Threads that share a small piece of work wait for each other longer than they work, above all on a busy machine.
    """
    most = n_jobs if n_jobs is not None else int(joblib.cpu_count())
    return threadpool_limits(limits=most if examples.features.size >= _LARGE_CELLS else 1)


# Turn what a training gave into the model that is stored, in the same way for every family.


def produce(
    job: StageContext, family: Family, data: Split, args: A, train: Callable[[TableExamples, A, Watch], TrainedPipeline]
) -> Model:
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
    return job.save(Model, FittedPipeline(pipeline=trained.pipeline, facts=facts))


def params_of(args: TrainArgs) -> dict[str, Any]:
    """Return the settings that decide what is learned, by the names that a model's facts have for them."""
    params = {_STORED_NAMES.get(name, name): value for name, value in asdict(args).items() if name != "n_jobs"}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def args_of(of: type[A], params: Mapping[str, Any]) -> A:
    """Return the arguments of which `params_of` made these settings."""
    named: dict[str, Any] = {
        one.name: params[_STORED_NAMES.get(one.name, one.name)] for one in fields(of) if one.name != "n_jobs"
    }
    named |= {name: tuple(value) for name, value in named.items() if isinstance(value, list)}
    return of(**named)


# From columns to the numbers that a model sees. Fitted on training rows only, as the first step of every pipeline.


_MOST_CATEGORIES = 50
# HistGradientBoosting bins categories like numbers: 255 bins, one of them for missing values.
_MOST_TREE_CATEGORIES = 254


def scaled(examples: TableExamples) -> Any:
    """For models that measure distances: gaps filled, numbers standardised, categories as one column each."""
    numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    categories = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=_MOST_CATEGORIES, sparse_output=False
    )
    return ColumnTransformer(
        [("numbers", numbers, list(examples.numeric)), ("categories", categories, list(examples.categorical))]
    )


def for_trees(examples: TableExamples) -> Any:
    """For trees, which take gaps as they are and split on categories natively: categories come first, as codes."""
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
        max_categories=_MOST_TREE_CATEGORIES,
    )
    return ColumnTransformer(
        [("categories", codes, list(examples.categorical)), ("numbers", "passthrough", list(examples.numeric))]
    )
