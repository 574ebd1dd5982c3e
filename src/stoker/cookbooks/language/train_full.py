"""The stage that trains every weight of a base."""

from __future__ import annotations

from stoker.cookbooks.language.kinds import Examples, Model
from stoker.cookbooks.language.settings import FullArgs
from stoker.plan.authoring import RetryOn, RetryPolicy, StageContext, stage


@stage(
    "language/train_full",
    version=1,
    uses=("numpy", "safetensors", "torch"),
    diverges_on=("loss",),
    retry=RetryPolicy(attempts=3, on=RetryOn.INTERRUPTED),
)
def train_full(job: StageContext, examples: Examples, args: FullArgs) -> Model:
    """Train every weight, update by update."""
    from stoker.cookbooks.language.full.producing import produce

    produce(job, examples, args)
    return job.made(Model)
