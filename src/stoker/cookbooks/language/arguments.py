"""Arguments of this cookbook's recipes and stages, declared once for both."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from stoker.authoring import InputPath, PathOrName, arg
from stoker.core.digests import digest_value

Schedule = Literal["cosine", "linear", "constant"]
Dtype = Literal["auto", "float32", "bfloat16"]
SettledDtype = Literal["float32", "bfloat16"]
"""The precision of a stage, resolved: it decides the result, so it is part of the key."""
BaseDtype = Literal["auto", "nf4", "int8"]
"""How the base is kept: as it is computed with or saved, in four bits, or in eight."""
BasePath = Literal["auto", "fast", "general"]
"""How a base is computed: by blocks of our own, or by transformers' module."""
Layout = Literal["jsonl", "text", "csv", "tsv", "parquet"]
"""How a file of examples is read."""
TrainOn = Literal["completion", "all"]
Keep = Literal["best", "last"]
Optimizer = Literal["adamw", "adamw8bit", "adafactor"]
Recomputing = Literal["auto", "true", "false"]
Turns = Literal["synchronized", "round_robin", "priority"]
TrainingMethod = Literal["sft", "dpo", "orpo"]
PairLoss = Literal["sigmoid", "ipo", "hinge"]
Objective = Literal["dpo-sigmoid", "dpo-ipo", "dpo-hinge", "orpo"]
"""What is minimised over pairs of answers: a method, and its loss."""

LORA: Final = "language/lora"
FULL: Final = "language/full"
MERGE: Final = "language/merge"
EXPORT: Final = "language/export"
SAMPLE: Final = "language/sample"
"""Names of the recipes."""
ALL_LINEAR: Final = "all-linear"
NF4_BLOCK: Final = 64
"""Weights with a common scale, in four bits."""
IGNORED: Final = -100
"""The label of a token whose successor is not learned, as in torch."""
CACHE_TOKENS: Final = 256
"""Tokens of a conversation for whose keys and values there is memory at first; doubled whenever it is full."""
DEFAULT_TOKENS: Final = 512
"""Default of the longest row, if the base allows it."""
LARGEST: Final = 1_000_000
"""Upper limit of factors of gradients and adapters: nothing is learned beyond it, and infinity is a mistake."""
BETA: Final = 0.1
_SETTLED: Final = "precision"


# Mixins are without slots: two bases with slots don't go together.
@dataclass(frozen=True, kw_only=True)
class BaseArgs:
    """The base of a stage: its folder, which is not part of the key, and the files that identify it."""

    base: InputPath = arg(help="folder of the base", runtime=True)
    base_files: tuple[InputPath, ...] = arg(help="files of the base that are part of the key")
    base_name: str = arg("", help="name of the base", runtime=True)


@dataclass(frozen=True, kw_only=True)
class LearningArgs:
    """Arguments of every training."""

    lr: float = arg(2e-4, help="learning rate (AdamW)", gt=0, le=LARGEST)
    schedule: Schedule = arg("cosine", help="learning rate after the warm-up: decay to zero, or constant")
    warmup_percent: float = arg(3.0, help="share of updates for the warm-up of the learning rate", ge=0, lt=100)
    epochs: int = arg(3, help="number of epochs", ge=1, le=100_000)
    steps: int | None = arg(None, help="number of updates; null: by epochs", ge=1, le=1_000_000_000)
    batch: int = arg(8, help="rows per pass", ge=1, le=65_536)
    accumulate: int = arg(1, help="passes per update", ge=1, le=65_536)
    clip: float | None = arg(1.0, help="gradient clipping by norm; null: none", gt=0)
    weight_decay: float = arg(0.0, help="weight decay", ge=0, le=LARGEST)
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)
    eval_every: int | None = arg(None, help="updates between evaluations; null: one after every epoch", ge=1)
    patience: int | None = arg(None, help="evaluations without improvement before stopping; null: never", ge=1)
    dtype: Dtype = arg("auto", help="precision; auto: bfloat16 on a GPU, float32 on the CPU")
    keep: Keep = arg("best", help="weights of the result: those of the lowest evaluation loss, or the last ones")
    checkpoint_every: int | None = arg(
        None, help="updates between checkpoints; null: about one a minute", ge=1, runtime=True
    )
    checkpoints: str | None = arg(
        None,
        help="folder for the weights of every epoch (epoch-N) and the best ones (best); one for each trial of a sweep",
        runtime=True,
        each=True,
    )
    label: str = arg("", help="name in its checkpoints", runtime=True)
    threads: int | None = arg(
        None, help="maximum number of CPU threads; null: torch's default", ge=1, le=1024, runtime=True
    )


@dataclass(frozen=True, kw_only=True)
class AdapterArgs:
    """Arguments of an adapter."""

    rank: int = arg(16, help="rank of the adapter matrices", ge=1, le=65_536)
    dropout: float = arg(0.0, help="dropout of an adapter's inputs in training", ge=0, lt=1)
    rslora: bool = arg(False, help="scale by alpha/√rank, not alpha/rank")
    dora: bool = arg(False, help="train a magnitude for each output of a matrix beside the adapter (DoRA)", later=True)
    modules_to_save: tuple[str, ...] = arg(
        (), help="embedding and head to train whole beside the adapter, by name or pattern", later=True
    )
    lora_plus: float = arg(1.0, help="learning rate of B over that of A (LoRA+)", gt=0, le=LARGEST)
    base_dtype: BaseDtype = arg(
        "auto",
        help="precision of the base; auto: that of dtype, or as it is quantised on disk; nf4: four bits (QLoRA); int8",
    )
    method: TrainingMethod = arg(
        "sft",
        help="sft: supervised, learns examples; dpo, orpo: learn from pairs which of two answers is preferred",
        measured_on=True,
        later=True,
    )
    beta: float | None = arg(
        None,
        help=f"of dpo the strength that keeps an adapter near the base, of orpo the weight of the odds; null: {BETA}",
        gt=0,
        le=LARGEST,
        later=True,
    )
    loss_type: PairLoss | None = arg(None, help="loss of dpo; null: sigmoid", later=True)
    path: BasePath = arg(
        "auto",
        help="how the base is computed; fast: blocks of our own; general: transformers' module; auto: fast if it can",
        later=True,
    )
    turns: Turns = arg(
        "synchronized",
        help="which adapters of a shared process train in a step: all; one in turn; the one with the worst evaluation",
        runtime=True,
    )
    most: int = arg(
        0, help="maximum number of adapters in a shared process; 0: as many as fit", ge=0, le=65_536, runtime=True
    )
    adapter_index: int = arg(0, help="index in an adapters file, from 0", ge=0, runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraArgs(AdapterArgs, LearningArgs, BaseArgs):
    """Resolved settings of one adapter."""

    dtype: SettledDtype = arg("float32", help=_SETTLED)
    alpha: float = arg(help="scale of the adapter (alpha)", gt=0, le=LARGEST)
    targets: tuple[str, ...] = arg(help="target matrices by name, in the order of a block; or words that mean them")
    max_seq_len: int = arg(DEFAULT_TOKENS, help="maximum tokens of a row", ge=2)
    packing: bool = arg(False, help="pack several examples into a row, isolated from each other")

    @property
    def objective(self) -> Objective | None:
        """What is minimised over pairs; None: the loss of learned tokens."""
        if self.method == "dpo":
            objective: Objective = f"dpo-{self.loss_type or 'sigmoid'}"  # type: ignore[assignment]  # by names of its own
            return objective
        return "orpo" if self.method == "orpo" else None


@dataclass(frozen=True, kw_only=True)
class AdapterOverBaseArgs(BaseArgs):
    """An adapter that exists, and its base."""

    adapter: InputPath = arg(help="folder of the adapter", runtime=True)
    adapter_files: tuple[InputPath, ...] = arg(help="files of the adapter that are part of the key")


@dataclass(frozen=True, kw_only=True)
class WholeModelArgs:
    """Arguments of a training of all weights."""

    lr: float = arg(2e-5, help="learning rate; adafactor: relative to the size of each matrix", gt=0, le=LARGEST)
    optimizer: Optimizer = arg(
        "adamw",
        help="adamw; adamw8bit: moments in 8 bits (bitsandbytes); adafactor: hardly any moments",
        later=True,
    )
    ranks: int = arg(
        1, help="number of ranks, each with a part of every weight and batch (FSDP)", ge=1, le=1024, runtime=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FullArgs(WholeModelArgs, LearningArgs, BaseArgs):
    """Settings of a training of all weights."""

    dtype: SettledDtype = arg("float32", help=_SETTLED)
    gradient_checkpointing: bool = arg(False, help="recompute blocks for the backward pass", runtime=True)
    max_seq_len: int = arg(DEFAULT_TOKENS, help="maximum tokens of a row", ge=2)
    packing: bool = arg(False, help="pack several examples into a row, isolated from each other")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleArgs(BaseArgs):
    """Arguments of text generation."""

    prompts: tuple[str, ...] = arg((), help="texts to complete")
    tokens: int = arg(64, help="maximum tokens of each completion", ge=1, le=100_000)
    temperature: float = arg(0.0, help="sampling temperature; 0: always the likeliest token", ge=0, le=100)
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)
    dtype: SettledDtype = arg("float32", help=_SETTLED)
    base_dtype: BaseDtype = arg("auto", help="precision of the base")
    path: BasePath = arg("auto", help="how the base is computed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerArgs(SampleArgs):
    """Arguments of text generation by several models over one base."""

    adapters: tuple[InputPath, ...] = arg((), help="folders of the adapters", runtime=True)
    adapter_files: tuple[InputPath, ...] = arg((), help="files of the adapters that are part of the key")
    names: tuple[str, ...] = arg((), help="what the models are called: the adapters, then perhaps the base alone")
    conversation: bool = arg(False, help="prompts are turns of one conversation")
    plain: bool = arg(False, help="complete prompts as they are, without a chat template")
    context: int | None = arg(None, help="maximum tokens of a conversation", ge=2, later=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One of several sources of data, as a user writes it."""

    path: PathOrName = arg(help="a file, a folder, org/name of the hub, or a bundled set")
    weight: float = arg(1.0, help="how often its examples are drawn in an epoch", gt=0, le=1000)
    split: str = arg("", help="its split")
    subset: str = arg("", help="its configuration", aliases=("config",))
    columns: dict[str, str] = arg({}, help="its columns by the part of an example")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArgs:
    """One source of a stage: its files, or a bundled set."""

    name: str = arg("", help="what the user calls it", runtime=True)
    root: InputPath | None = arg(None, help="the folder that they are in, if it is the source", runtime=True)
    files: tuple[InputPath, ...] = arg((), help="its files, in order")
    bundled: str = arg("", help="a generated data set; empty: its files")
    weight: float = arg(1.0, help="how often its examples are drawn in an epoch", gt=0, le=1000)
    columns: dict[str, str] = arg({}, help="its columns by the part of an example; empty: found by their names")
    layouts: tuple[Layout, ...] = arg((), help="how each of its files is read")
    is_eval: bool = arg(False, help="held out as a whole")


@dataclass(frozen=True, kw_only=True)
class DataArgs:
    """Base and data arguments of the training recipes."""

    base: str = arg(
        "tiny",
        help="a folder in the Hugging Face layout, org/name of the hub, or tiny: a bundled one with random weights",
    )
    base_name: str = arg("", help="name of the base in the adapter's files; empty: the value of base", runtime=True)
    data: str | tuple[PathOrName | DataSource, ...] = arg(
        "sums",
        help="a file (JSONL, CSV, TSV, Parquet, text), a folder of them, org/name of the hub, or bundled: sums, chats, "
        "lines, preferences; several in a list, each a name or {path, weight, split, subset, columns}",
        measured_on=True,
    )
    columns: dict[str, str] = arg(
        {},
        help="columns of the data by the part of an example: text; prompt, completion; messages; prompt, chosen, "
        "rejected; empty: found by their names",
        measured_on=True,
        later=True,
    )
    split: str = arg("", help="split of a data set; empty: train, or the only one", measured_on=True, later=True)
    subset: str = arg(
        "", help="configuration of a data set; empty: its default", measured_on=True, later=True, aliases=("config",)
    )
    eval_split: str = arg("", help="split for the evaluation; empty: a share is held out", measured_on=True, later=True)
    max_seq_len: int | None = arg(
        None,
        help=f"maximum tokens of a row; null: {DEFAULT_TOKENS}, or what the base allows",
        ge=2,
        measured_on=True,
    )
    packing: bool = arg(False, help="put several short examples into one row")
    train_on: TrainOn = arg(
        "completion", help="learn answers only, or prompts too; plain text is learned as a whole", measured_on=True
    )
    holdout_percent: float = arg(
        5.0, help="share of examples held out for the evaluation, at least one", gt=0, le=50, measured_on=True
    )
    gpus: int | None = arg(
        None, help="1: on a GPU; 0: on the CPU; null: on a GPU if there is one", ge=0, le=1, runtime=True
    )
    samples: tuple[str, ...] = arg((), help="prompts to complete at the end, for the report")
    sample_tokens: int = arg(64, help="maximum tokens of each sample", ge=1, le=100_000)
    temperature: float = arg(
        0.0, help="sampling temperature of the samples; 0: always the likeliest token", ge=0, le=100
    )


# Device and precision of a stage.


def device_of(devices: tuple[str, ...]) -> tuple[str, str]:
    """Return `cpu` or `cuda`, and a note for the user."""
    import torch

    if not devices:
        return "cpu", ""
    if torch.cuda.is_available():
        return "cuda", ""
    return "cpu", "This torch can't use the assigned GPU: computed on the CPU."


def can_compile() -> bool:
    """Return True if kernels can be compiled here: that needs Triton, and a C compiler."""
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


def settled_dtype(wanted: Dtype, *, on_gpu: bool) -> SettledDtype:
    """Return the precision that `auto` means, before the stage's key is made: another precision is another result."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if on_gpu else "float32"


def share_key(
    contents: Iterable[str], dtype: str, base_dtype: BaseDtype, path: BasePath, whole: tuple[str, ...] = ()
) -> str:
    """Return the share key of adapters over one base: the content of its files, its precision, how it is computed.

    Members of a process train the same modules whole: where one has a copy, all have memory for one.
    """
    kept = [one for one in (base_dtype, path) if one != "auto"] + [f"whole {one}" for one in sorted(whole)]
    return digest_value("language base", [sorted(contents), dtype, *kept])[:32]
