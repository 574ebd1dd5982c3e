"""Turn what a training gave into the model that is stored, in the same way for every family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.cookbooks.tabular.records import Family, ModelFacts
from stoker.cookbooks.tabular.science.examples import Examples, Parts
from stoker.cookbooks.tabular.science.fitted import FittedModel, library_versions
from stoker.cookbooks.tabular.science.threads import limited
from stoker.cookbooks.tabular.science.training import Trained, Watch
from stoker.plan.authoring import StageContext


def produce(
    job: StageContext, family: Family, parts: Parts, n_jobs: int | None, train: Callable[[Examples, Watch], Trained]
) -> FittedModel:
    """Train on the training part, reporting every step, and write down what was learned about it."""

    def watch(done: int, of: int, metrics: Mapping[str, float]) -> None:
        job.step(done, of=of, **metrics)

    with limited(n_jobs, parts.train):
        trained = train(parts.train, watch)
    for note in trained.notes:
        job.log(note)
    return FittedModel(pipeline=trained.pipeline, facts=_facts(family, parts, trained))


def _facts(family: Family, parts: Parts, trained: Trained) -> ModelFacts:
    params: dict[str, Any] = trained.params
    return ModelFacts(
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
