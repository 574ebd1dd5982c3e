"""The stage that trains an adapter: alone, or as a member of a company over one base."""

from __future__ import annotations

from stoker.authoring import Digests, RetryOn, RetryPolicy, StageContext, Together, stage
from stoker.cookbooks.language.arguments import LoraArgs, company_word
from stoker.cookbooks.language.kinds import Adapter, Examples


def same_base(args: LoraArgs, digests: Digests) -> str:
    """Return the word that members of one company have in common: the content of their base, and how it is held."""
    return company_word(digests["base_files"], args.dtype)


@stage(
    "language/train_lora",
    version=1,
    uses=("numpy", "safetensors", "torch"),
    diverges_on=("loss",),
    # In company sums are added in another order than alone: the last digits differ.
    deterministic=False,
    # The process that trains many may be lost by a fault of one; each resumes from its own checkpoint.
    retry=RetryPolicy(attempts=3, on=RetryOn.INTERRUPTED),
    together=Together(
        run="stoker.cookbooks.language.shared.loop:run_company",
        key=same_base,
        fits="stoker.cookbooks.language.memory_needs:what_fits",
    ),
)
def train_lora(job: StageContext, examples: Examples, args: LoraArgs) -> Adapter:
    """Train an adapter, update by update; several over one base in one process."""
    from stoker.authoring import Alone
    from stoker.cookbooks.language.shared.loop import run_company

    alone = Alone(job, {"examples": examples}, args)
    run_company(alone)
    made: Adapter = alone.result()
    return made
