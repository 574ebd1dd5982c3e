"""The stage that trains k nearest neighbours from few labels."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Model, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class KnnSemiArgs:
    """Settings of self-training neighbours."""

    neighbours: int = arg(5, help="rows to ask", ge=1, le=10_000)
    labelled_percent: int = arg(20, help="share of training rows that keep their label", ge=1, le=100)
    confidence: float = arg(0.9, help="how sure the model must be to label a row itself", gt=0, lt=1)
    rounds: int = arg(10, help="most rounds of labelling", ge=1, le=1000)
    seed: int = arg(0, help="decides which labels are kept", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="most threads; null: every core; a small table uses one", ge=1, runtime=True)


@stage("tabular/train_knn_semi", version=1, uses=("scikit-learn", "numpy", "pandas"))
def train_knn_semi(job: StageContext, data: Split, args: KnnSemiArgs) -> Model:
    """Train k nearest neighbours that label most of their rows themselves."""
    from stoker.cookbooks.tabular import self_training
    from stoker.cookbooks.tabular.training import produce

    settings = self_training.SelfTraining(
        neighbours=args.neighbours,
        labelled_percent=args.labelled_percent,
        confidence=args.confidence,
        rounds=args.rounds,
        seed=args.seed,
    )
    model = produce(
        job,
        "knn_semi",
        data.load(),
        args.n_jobs,
        lambda examples, watch: self_training.train(examples, settings, watch),
    )
    return job.save(Model, model)
