"""The stage that trains k nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Model, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class KnnArgs:
    """Settings of k nearest neighbours."""

    neighbours: int | None = arg(None, help="rows to ask; null: the best of 1 to 45", ge=1, le=10_000)
    weights: Literal["uniform", "distance"] = arg("uniform", help="whether nearer rows count more")
    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="most threads; null: every core; a small table uses one", ge=1, runtime=True)


@stage("tabular/train_knn", version=1, uses=("scikit-learn", "numpy", "pandas"))
def train_knn(job: StageContext, data: Split, args: KnnArgs) -> Model:
    """Train k nearest neighbours."""
    from stoker.cookbooks.tabular import neighbours as tabular_neighbours
    from stoker.cookbooks.tabular.training import produce

    settings = tabular_neighbours.Neighbours(neighbours=args.neighbours, weights=args.weights, seed=args.seed)
    model = produce(
        job,
        "knn",
        data.load(),
        args.n_jobs,
        lambda examples, watch: tabular_neighbours.train(examples, settings, watch),
    )
    return job.save(Model, model)
