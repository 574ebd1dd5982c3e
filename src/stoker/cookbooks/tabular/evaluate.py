"""The stage that scores models on test rows."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Split, TabularModel, TabularScores, Validation
from stoker.cookbooks.tabular.schemas import RankBy


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateArgs:
    """Precision of the scores, and the metric that decides."""

    bootstraps: int = arg(1000, help="resamples of the test rows behind each interval", ge=100, le=100_000)
    rank_by: RankBy = arg("auto", help="metric that decides which model is best")
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)


@stage("tabular/evaluate", version=1, uses=("scikit-learn", "numpy", "pandas"))
def evaluate(
    job: StageContext, models: list[TabularModel], validations: list[Validation], data: Split, args: EvaluateArgs
) -> TabularScores:
    """Score every model and a baseline on the held-out rows, with intervals."""
    from stoker.cookbooks.tabular.evaluation import evaluate_models, headline_scores
    from stoker.cookbooks.tabular.metrics import ranking_metric
    from stoker.cookbooks.tabular.training import limited

    parts = data.load()
    with limited(None, parts.test):
        book = evaluate_models(
            parts,
            [model.load() for model in models],
            [validation.load() for validation in validations],
            metric=ranking_metric(parts.facts["problem"], args.rank_by),
            bootstraps=args.bootstraps,
            seed=args.seed,
            watch=lambda done, of: job.step(done, of=of),
        )
    steps = len(models) + 2
    job.step(steps, of=steps, **headline_scores(book))
    job.log(f"best by {book['rank_by']}: {book['best']}")
    return job.save(TabularScores, book)
