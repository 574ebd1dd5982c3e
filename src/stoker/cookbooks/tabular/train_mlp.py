"""The stage that trains a multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.cookbooks.tabular.kinds import Model, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpArgs:
    """Settings of the perceptron."""

    hidden: tuple[int, ...] = arg((64, 32), help="width of each hidden layer", ge=1, le=4096)
    epochs: int = arg(200, help="most epochs; fewer are kept if more do not help", ge=1, le=100_000)
    lr: float = arg(1e-3, help="learning rate (Adam)", gt=0)
    weight_decay: float = arg(1e-4, help="strength of the L2 penalty", ge=0)
    batch: int | None = arg(None, help="rows per step; null: 32, or 200 for a large table", ge=1)
    patience: int = arg(15, help="epochs without improvement before stopping", ge=1)
    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    n_jobs: int | None = arg(None, help="most threads; null: every core; a small table uses one", ge=1, runtime=True)


@stage("tabular/train_mlp", version=1, uses=("scikit-learn", "numpy", "pandas"), diverges_on=("loss",))
def train_mlp(job: StageContext, data: Split, args: MlpArgs) -> Model:
    """Train a multi-layer perceptron, epoch by epoch."""
    from stoker.cookbooks.tabular import network
    from stoker.cookbooks.tabular.training import produce

    settings = network.PerceptronSettings(
        hidden=args.hidden,
        epochs=args.epochs,
        learning_rate=args.lr,
        weight_decay=args.weight_decay,
        batch=args.batch,
        patience=args.patience,
        seed=args.seed,
    )
    model = produce(
        job, "mlp", data.load(), args.n_jobs, lambda examples, watch: network.train(examples, settings, watch)
    )
    return job.save(Model, model)
