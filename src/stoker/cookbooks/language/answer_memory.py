"""Memory of models that answer side by side: the base once, and for each model its adapter and its conversation.

Nothing is learned: there are no gradients and no moments, and one model computes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.authoring import Needs
from stoker.cookbooks.language.arguments import CACHE_TOKENS
from stoker.cookbooks.language.bases import TrainableBase
from stoker.cookbooks.language.memory_needs import Load, multi_adapter, rooms_here
from stoker.core.device import GIB
from stoker.core.errors import InsufficientDeviceMemory
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.devices.estimate.shared_base import MemoryLocation, MultiAdapterTraining, estimate_adapters
from stoker.devices.estimate.terms import SmallerOption, fewer_tokens, largest_fit, refusal
from stoker.devices.estimate.training_setup import Width

_FLOAT = 4
_OF_TEMPLATE = 256
"""Tokens that a template may add to a prompt."""


@frozen
class AnswerMemory:
    """What models over one base take together."""

    once_bytes: int
    """The base and the process, and what one pass computes with."""
    model_bytes: int
    """Of each: its adapter, and what is kept of its conversation."""
    models: int

    @property
    def total_bytes(self) -> int:
        return self.once_bytes + self.models * self.model_bytes


def answer_memory(base: TrainableBase, load: Load, models: int, *, gpus: int) -> AnswerMemory:
    """Estimate the memory of so many models, each with a conversation of the tokens of the load."""
    training = multi_adapter(base.shape, load, MemoryLocation.CUDA if gpus else MemoryLocation.CPU)
    count, width = training.trained(training.bank_rank), training.dtype.bytes
    held = sum(term.size_bytes for term in estimate_adapters(training).base if term.name != "loss")
    # An adapter is written in 32 bits before it is converted for products, and gathered from its slot.
    passing = count * (_FLOAT + width) + _pass_bytes(training)
    # On the CPU adapters are in RAM as they were read, too, until all are in their slots.
    read = 0 if gpus else count * _FLOAT
    return AnswerMemory(
        once_bytes=held + passing, model_bytes=count * width + read + _kept_bytes(training), models=models
    )


def _kept_bytes(training: MultiAdapterTraining) -> int:
    """Return what is kept of a conversation: keys and values."""
    shape = training.shape
    capacity = max(CACHE_TOKENS, 1 << (training.sequence - 1).bit_length())
    layer = 2 * shape.kv_width * training.dtype.bytes * capacity
    # The smaller ones of before stay with the device's allocator; on the CPU one is copied at a time.
    return layer * (2 * shape.layers if training.where is MemoryLocation.CUDA else shape.layers + 1)


def _pass_bytes(training: MultiAdapterTraining) -> int:
    """Return what the pass over a whole conversation computes with: one block at a time, some of it in 32 bits too."""
    shape, width, tokens = training.shape, training.dtype.bytes, training.sequence
    qkv = shape.q_width + 2 * shape.kv_width
    narrow = 4 * shape.hidden + 3 * qkv + 3 * shape.inner
    if training.dora:
        # What is multiplied by factors.
        narrow += sum(one.outputs for one in shape.linears)
    wide = 3 * shape.hidden + 3 * shape.inner
    row = narrow * width + wide * _FLOAT
    has_scores = training.is_general and shape.holds_scores
    # No kernel of CUDA's that holds no scores takes 32-bit floats where heads share keys.
    if training.where is MemoryLocation.CUDA and training.dtype is Width.FP32 and shape.kv_heads != shape.heads:
        has_scores = True
    scores = shape.heads * tokens * (width + _FLOAT) if has_scores else 0
    return tokens * (row + scores) + 2 * shape.vocabulary * _FLOAT


def answer_needs(base: TrainableBase, load: Load, models: int, *, gpus: int) -> Needs:
    """Return what models that answer need."""
    total_gib = answer_memory(base, load, models, gpus=gpus).total_bytes / GIB
    return Needs(gpu=gpus, vram_gib=total_gib, shares=True) if gpus else Needs(memory_gib=total_gib)


def answers_too_large(
    base: TrainableBase, load: Load, models: int, *, gpus: int, context: str = "context="
) -> InsufficientDeviceMemory | None:
    """Return why no device here can hold so many models, and what would fit; None if one can.

    Without a GPU, RAM counts. Memory of unknown size is not checked. `context`: how its user asks for less.
    """
    rooms = rooms_here(gpus=gpus)
    if not rooms:
        return None

    def takes(count: int, tokens: int) -> int:
        return answer_memory(base, changed(load, tokens=tokens), count, gpus=gpus).total_bytes

    def fitting(room_bytes: int) -> list[SmallerOption]:
        fewer = largest_fit(room_bytes, range(1, models), lambda count: takes(count, load.tokens))
        shorter = largest_fit(room_bytes, fewer_tokens(load.tokens), lambda tokens: takes(models, tokens))
        return [
            *(
                SmallerOption(change=f"{context}{tokens} (instead of {load.tokens})", total_bytes=taken)
                for tokens, taken in shorter
            ),
            *(
                SmallerOption(change=f"{count} at once (instead of {models})", total_bytes=taken)
                for count, taken in fewer
            ),
        ]

    found = answer_memory(base, load, models, gpus=gpus)
    numbers = (
        f"{models} model{'' if models == 1 else 's'} over {base.name} {'takes' if models == 1 else 'take'} "
        f"{format_size(found.total_bytes)}: {format_size(found.once_bytes)} once, {format_size(found.model_bytes)} for "
        f"each adapter and its conversation of {load.tokens:,} tokens"
    )
    return refusal(numbers, found.total_bytes, rooms, fitting, "use a smaller base")


def prompt_tokens(prompts: Sequence[str], tokens: int, positions: int, *, is_conversation: bool = False) -> int:
    """Return the most tokens that prompts and their answers may have: a token has at least one byte."""
    sizes = [len(one.encode()) + _OF_TEMPLATE + tokens for one in prompts]
    return min(positions, sum(sizes) if is_conversation else max(sizes, default=1))
