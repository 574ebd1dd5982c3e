"""The stage that trains an adapter: alone, or as a member of a shared process over one base."""

from __future__ import annotations

from stoker.authoring import Digests, ProcessSharing, RetryOn, RetryPolicy, StageContext, stage
from stoker.cookbooks.language.arguments import LoraArgs, share_key
from stoker.cookbooks.language.kinds import Adapter, Examples


def same_base(args: LoraArgs, digests: Digests) -> str:
    """Return the share key: the content of the base, its precision, how it is computed, what is trained whole."""
    return share_key(digests["base_files"], args.dtype, args.base_dtype, args.path, args.modules_to_save)


@stage(
    "language/train_lora",
    version=2,
    uses=("numpy", "safetensors", "torch", "transformers"),
    diverges_on=("loss",),
    # A shared process adds in another order than a solo run: the last digits differ.
    deterministic=False,
    # A fault of one member may end the process of all; each resumes from its own checkpoint.
    retry=RetryPolicy(attempts=3, on=RetryOn.INTERRUPTED),
    together=ProcessSharing(
        run="stoker.cookbooks.language.shared.loop:train_members",
        key=same_base,
        fits="stoker.cookbooks.language.memory_needs:what_fits",
    ),
)
def train_lora(job: StageContext, examples: Examples, args: LoraArgs) -> Adapter:
    """Train an adapter, update by update; several over one base in one process."""
    from stoker.authoring import SoloContext
    from stoker.cookbooks.language.shared.loop import train_members

    alone = SoloContext(job, {"examples": examples}, args)
    train_members(alone)
    made: Adapter = alone.result()
    return made
