"""The stage that asks the training rows alone how good a model is."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Model, Split, Validation
from stoker.cookbooks.tabular.schemas import RankBy


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidateArgs:
    """How often a model is trained again."""

    folds: int = arg(5, help="parts to divide the training rows into", ge=2, le=50)
    curve_points: int = arg(5, help="sizes in the learning curve; 0 for none", ge=0, le=20)
    rank_by: RankBy = arg("auto", help="metric of the learning curve")
    seed: int = arg(0, help="decides which rows go where", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="most threads; null: every core; a small table uses one", ge=1, runtime=True)


@stage("tabular/cross_validate", version=1, uses=("scikit-learn", "numpy", "pandas"))
def cross_validate(job: StageContext, model: Model, data: Split, args: CrossValidateArgs) -> Validation:
    """Train the same model on parts of the training rows and score it on the rest."""
    from stoker.cookbooks.tabular import resampling
    from stoker.cookbooks.tabular.metrics import ranking_metric
    from stoker.cookbooks.tabular.training import limited

    facts, train = model.facts(), data.load().train
    with limited(args.n_jobs, train):
        validated = resampling.validate(
            facts,
            train,
            resampling.ResamplingSettings(folds=args.folds, curve_points=args.curve_points, seed=args.seed),
            metric=ranking_metric(facts["problem"], args.rank_by),
            after_fit=lambda done, of: job.step(done, of=of),
        )
    for note in validated["notes"]:
        job.log(note)
    return job.save(Validation, validated)
