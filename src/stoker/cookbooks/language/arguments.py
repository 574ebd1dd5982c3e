"""What the recipes and stages of this cookbook ask: declared once for both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from stoker.authoring import InputPath, arg
from stoker.core.digests import digest_value

Schedule = Literal["cosine", "linear", "constant"]
Dtype = Literal["auto", "float32", "bfloat16"]
SettledDtype = Literal["float32", "bfloat16"]
"""Of a stage: what it computes in decides what it gives, so it stands in its key as what it is."""
TrainOn = Literal["completion", "all"]
Keep = Literal["best", "last"]
Turns = Literal["synchronized", "round_robin", "priority"]

LORA: Final = "language/lora"
FULL: Final = "language/full"
MERGE: Final = "language/merge"
"""What the recipes are called."""
ALL_LINEAR: Final = "all-linear"
DEFAULT_TOKENS: Final = 512
"""The longest row of a training whose user says nothing, if the base allows it."""
LARGEST: Final = 1_000_000
"""Of what a gradient or an adapter is multiplied by: nothing is learned beyond, and infinity is a slip."""
_SETTLED: Final = "what is computed in"


# Mixins are without slots: two bases with slots don't go together.
@dataclass(frozen=True, kw_only=True)
class BaseArgs:
    """The base that a stage reads: a folder, which is only a place, and the files in it that make it what it is."""

    base: InputPath = arg(help="the folder of the base", runtime=True)
    base_files: tuple[InputPath, ...] = arg(help="the files of the base that decide what comes out")
    base_name: str = arg("", help="what the base is called", runtime=True)


@dataclass(frozen=True, kw_only=True)
class LearningArgs:
    """How to train, whatever is trained."""

    lr: float = arg(2e-4, help="learning rate (AdamW)", gt=0, le=LARGEST)
    schedule: Schedule = arg("cosine", help="learning rate after the warm-up: down to zero, or constant")
    warmup_percent: float = arg(3.0, help="share of the updates over which the learning rate rises", ge=0, lt=100)
    epochs: int = arg(3, help="times that every example is seen", ge=1, le=100_000)
    steps: int | None = arg(None, help="updates; null: as many as the epochs have", ge=1, le=1_000_000_000)
    batch: int = arg(8, help="rows of one pass", ge=1, le=65_536)
    accumulate: int = arg(1, help="passes for each update", ge=1, le=65_536)
    clip: float | None = arg(1.0, help="longest gradient, a longer one is shortened; null: any", gt=0)
    weight_decay: float = arg(0.0, help="how strongly weights are pulled to zero", ge=0, le=LARGEST)
    seed: int = arg(0, help="decides every random choice", ge=0, le=1_000_000_000)
    eval_every: int | None = arg(
        None, help="updates from one evaluation to the next; null: one after every epoch", ge=1
    )
    patience: int | None = arg(None, help="evaluations without improvement before stopping; null: never", ge=1)
    dtype: Dtype = arg("auto", help="what is computed in; auto: bfloat16 on a GPU, float32 on the CPU")
    keep: Keep = arg("best", help="which weights are the result: those of the lowest evaluation loss, or the last ones")
    checkpoint_every: int | None = arg(
        None, help="updates between checkpoints to go on from; null: about one a minute", ge=1, runtime=True
    )
    checkpoints: str | None = arg(
        None,
        help="a folder for what was learned after every epoch (epoch-N) and at its best (best), of a sweep one each",
        runtime=True,
        each=True,
    )
    label: str = arg("", help="what this one is called in its checkpoints", runtime=True)
    threads: int | None = arg(
        None, help="most threads on the CPU; null: as many as torch takes", ge=1, le=1024, runtime=True
    )


@dataclass(frozen=True, kw_only=True)
class AdapterArgs:
    """What an adapter is."""

    rank: int = arg(16, help="rank of the two small matrices beside each large one", ge=1, le=65_536)
    dropout: float = arg(0.0, help="share of inputs that an adapter does not see in training", ge=0, lt=1)
    rslora: bool = arg(False, help="scale by alpha/√rank, not alpha/rank")
    turns: Turns = arg(
        "synchronized",
        help="whose turn it is where adapters are trained together: all in every step; one after the other; the worst",
        runtime=True,
    )
    most: int = arg(0, help="most adapters trained together; 0: as many as fit", ge=0, le=65_536, runtime=True)
    adapter_index: int = arg(0, help="number of this one in a file of adapters, from 0", ge=0, runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraArgs(AdapterArgs, LearningArgs, BaseArgs):
    """Settings of one adapter, all filled in."""

    dtype: SettledDtype = arg("float32", help=_SETTLED)
    alpha: float = arg(help="how strongly the adapter counts", gt=0, le=LARGEST)
    targets: tuple[str, ...] = arg(help="names of the matrices beside which it is put, in the order of a block")
    max_seq_len: int = arg(DEFAULT_TOKENS, help="tokens of the longest row", ge=2)
    packing: bool = arg(False, help="rows hold several examples, each seen by itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullArgs(LearningArgs, BaseArgs):
    """Settings of a training of every weight."""

    dtype: SettledDtype = arg("float32", help=_SETTLED)
    lr: float = arg(2e-5, help="learning rate (AdamW)", gt=0, le=LARGEST)
    max_seq_len: int = arg(DEFAULT_TOKENS, help="tokens of the longest row", ge=2)
    packing: bool = arg(False, help="rows hold several examples, each seen by itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleArgs(BaseArgs):
    """What to complete, and how."""

    prompts: tuple[str, ...] = arg((), help="texts to complete")
    tokens: int = arg(64, help="most tokens of each completion", ge=1, le=100_000)
    temperature: float = arg(0.0, help="0: always the likeliest token; 1: as the model says", ge=0, le=100)
    seed: int = arg(0, help="decides what is drawn", ge=0, le=1_000_000_000)
    dtype: SettledDtype = arg("float32", help=_SETTLED)


@dataclass(frozen=True, kw_only=True)
class DataArgs:
    """What the recipes that train ask about base and data."""

    base: str = arg(
        "tiny",
        help="a folder in the Hugging Face layout, org/name of the hub, or tiny: a bundled one that knows nothing",
    )
    base_name: str = arg(
        "", help="what the base is called in the adapter's files; empty: as it is given here", runtime=True
    )
    data: str = arg(
        "sums",
        help="a JSONL file of {text}, {prompt, completion} or {messages}; or one that is bundled: sums, chats, lines",
        measured_on=True,
    )
    max_seq_len: int | None = arg(
        None,
        help=f"tokens of the longest row; null: {DEFAULT_TOKENS}, or what the base allows",
        ge=2,
        measured_on=True,
    )
    packing: bool = arg(False, help="put several short examples into one row")
    train_on: TrainOn = arg(
        "completion", help="learn answers alone, or prompts too; plain text is learned as a whole", measured_on=True
    )
    holdout_percent: float = arg(
        5.0, help="share of examples, at least one, held out for the evaluation", gt=0, le=50, measured_on=True
    )
    gpus: int | None = arg(
        None, help="1: on a GPU; 0: on the CPU; null: on a GPU if there is one", ge=0, le=1, runtime=True
    )
    samples: tuple[str, ...] = arg((), help="prompts to complete at the end, for the report")
    sample_tokens: int = arg(64, help="most tokens of each sample", ge=1, le=100_000)
    temperature: float = arg(0.0, help="of the samples; 0: always the likeliest token", ge=0, le=100)


# Where and in which width a stage computes, from what it was given and what was asked for.


def device_of(devices: tuple[str, ...]) -> tuple[str, str]:
    """Return `cpu` or `cuda`, and a note for people about it."""
    import torch

    if not devices:
        return "cpu", ""
    if torch.cuda.is_available():
        return "cuda", ""
    return "cpu", "A GPU was given, and this torch can't use it: computed on the CPU."


def settled_dtype(wanted: Dtype, *, on_gpu: bool) -> SettledDtype:
    """Return the width that is meant: before a stage's key is made, for what is made in another is another result."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if on_gpu else "float32"


def share_key(contents: Iterable[str], dtype: str) -> str:
    """Return the share key of adapters over one base: the content of its files, and its precision."""
    return digest_value("language base", [sorted(contents), dtype])[:32]
