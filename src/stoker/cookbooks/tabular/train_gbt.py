"""The stage that trains gradient boosted trees."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Model, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class GbtArgs:
    """Settings of boosted trees."""

    trees: int = arg(200, help="most trees to grow; fewer are kept if more do not help", ge=1, le=10_000)
    depth: int | None = arg(None, help="deepest tree; null for no limit", ge=1, le=64)
    lr: float = arg(0.1, help="learning rate", gt=0, le=1)
    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="most threads; null: every core; a small table uses one", ge=1, runtime=True)


@stage("tabular/train_gbt", version=1, uses=("scikit-learn", "numpy", "pandas"), diverges_on=("loss",))
def train_gbt(job: StageContext, data: Split, args: GbtArgs) -> Model:
    """Train gradient boosted trees."""
    from stoker.cookbooks.tabular import boosting
    from stoker.cookbooks.tabular.training import produce

    settings = boosting.Boosting(trees=args.trees, depth=args.depth, learning_rate=args.lr, seed=args.seed)
    model = produce(
        job, "gbt", data.load(), args.n_jobs, lambda examples, watch: boosting.train(examples, settings, watch)
    )
    return job.save(Model, model)
