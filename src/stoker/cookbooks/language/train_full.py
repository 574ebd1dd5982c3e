"""The stage that trains every weight of a base."""

from __future__ import annotations

from stoker.authoring import RetryOn, RetryPolicy, StageContext, stage
from stoker.cookbooks.language.arguments import FullArgs
from stoker.cookbooks.language.kinds import Examples, Model


@stage(
    "language/train_full",
    version=1,
    uses=("numpy", "safetensors", "torch"),
    diverges_on=("loss",),
    retry=RetryPolicy(attempts=3, on=RetryOn.INTERRUPTED),
)
def train_full(job: StageContext, examples: Examples, args: FullArgs) -> Model:
    """Train every weight, update by update."""
    from stoker.cookbooks.language.full.outputs import produce

    produce(job, examples, args)
    return job.made(Model)
