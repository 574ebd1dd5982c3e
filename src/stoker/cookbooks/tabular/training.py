"""What every family of models has in common while it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from stoker.authoring import StageContext
from stoker.cookbooks.tabular.examples import TableExamples, TrainTestExamples
from stoker.cookbooks.tabular.fitted import FittedPipeline, library_versions
from stoker.cookbooks.tabular.schemas import Family, Problem, TabularCurve, TabularModelFacts

Watch = Callable[[int, int, Mapping[str, float]], None]
"""Called with (steps done, steps planned, metrics); may raise to stop the training."""

HOLDOUT_PERCENT = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPipeline:
    """A fitted pipeline, the settings that would fit the same one again, and how it got there."""

    pipeline: Any
    params: dict[str, Any]
    curves: list[TabularCurve]
    notes: list[str] = field(default_factory=list)


def unwatched(done: int, of: int, metrics: Mapping[str, float]) -> None:
    """Watch nothing."""


def loss_name(problem: Problem) -> str:
    """Name what `loss_of` measures."""
    return "log loss" if problem == "classification" else "root mean squared error"


def loss_of(estimator: Any, matrix: npt.NDArray[np.float64], examples: TableExamples) -> float:
    """Log loss of a classifier whose classes are all known, or root mean squared error of a regressor."""
    if examples.problem == "regression":
        return float(np.sqrt(np.mean((estimator.predict(matrix) - examples.target) ** 2)))
    given = estimator.predict_proba(matrix)[np.arange(len(examples)), examples.codes]
    return float(-np.log(np.clip(given, 1e-15, 1.0)).mean())


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
    job: StageContext,
    family: Family,
    parts: TrainTestExamples,
    n_jobs: int | None,
    train: Callable[[TableExamples, Watch], TrainedPipeline],
) -> FittedPipeline:
    """Train on the training part, reporting every step, and write down what was learned about it."""

    def watch(done: int, of: int, metrics: Mapping[str, float]) -> None:
        job.step(done, of=of, **metrics)

    with limited(n_jobs, parts.train):
        trained = train(parts.train, watch)
    for note in trained.notes:
        job.log(note)
    return FittedPipeline(pipeline=trained.pipeline, facts=_facts(family, parts, trained))


def _facts(family: Family, parts: TrainTestExamples, trained: TrainedPipeline) -> TabularModelFacts:
    params: dict[str, Any] = trained.params
    return TabularModelFacts(
        family=family,
        problem=parts.facts["problem"],
        params=params,
        classes=parts.facts["classes"],
        numeric=parts.facts["numeric"],
        categorical=parts.facts["categorical"],
        target=parts.facts["target"],
        train_rows=len(parts.train),
        curves=trained.curves,
        notes=trained.notes,
        versions=library_versions(),
    )
