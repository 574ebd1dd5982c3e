"""The recipes of this cookbook: from what a user types to a plan.

    tokenise → train_lora → report                (language/lora; with samples: → sample → report)
    tokenise → train_full → report                (language/full)
    answer                                        (language/sample)
    merge                                         (language/merge)
    export_adapter, or export_model               (language/export)

`base` is the name of a bundled base, a folder or a repository in the hub's cache; `data` is bundled, a file, a folder,
a data set in that cache, or several of them. Both reach the plan as files whose content, not place, decides whether
work is repeated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from stoker.authoring import Category, Cookbook, InputPath, Needs, PathOrName, Plan, PlanBuilder, Tip, arg, recipe
from stoker.cookbooks.language.answer_memory import answer_needs, answers_too_large, prompt_tokens
from stoker.cookbooks.language.arguments import (
    ALL_LINEAR,
    BETA,
    EXPORT,
    FULL,
    LARGEST,
    LORA,
    MERGE,
    SAMPLE,
    AdapterArgs,
    AnswerArgs,
    BaseDtype,
    BasePath,
    DataArgs,
    Dtype,
    FullArgs,
    LearningArgs,
    LoraArgs,
    Recomputing,
    SampleArgs,
    SourceArgs,
    WholeModelArgs,
    settled_dtype,
)
from stoker.cookbooks.language.bases import CONFIG, TrainableBase
from stoker.cookbooks.language.chat import BASE_NAME, ChatModel, answer, answering_files, chat_load
from stoker.cookbooks.language.checks import LanguageArgsChecker, outline_of
from stoker.cookbooks.language.data_sets import CARD
from stoker.cookbooks.language.export import ExportArgs, ExportModelArgs, export_adapter, export_model
from stoker.cookbooks.language.gguf_model import GGUF_FAMILIES, GgufDtype, model_faults
from stoker.cookbooks.language.kinds import Adapter, Answers, Examples, GgufFile, LanguageModel, LanguageReport, Samples
from stoker.cookbooks.language.memory_needs import (
    FullTrainingSpec,
    Load,
    adapter_load,
    compiles_here,
    full_needs,
    full_too_large,
    is_general,
    lora_needs,
    reading_needs,
    shared_by_lora,
    too_large,
)
from stoker.cookbooks.language.merge import MergeArgs, merge_weights
from stoker.cookbooks.language.peft import adapter_files, is_dora, read_config
from stoker.cookbooks.language.reading import needs_arrow
from stoker.cookbooks.language.report import report_full, report_full_samples, report_lora, report_lora_samples
from stoker.cookbooks.language.sample import sample, sample_model
from stoker.cookbooks.language.sources import DataFinder
from stoker.cookbooks.language.tokenise import TokeniseArgs, data_args, tokenise, tokenise_tables
from stoker.cookbooks.language.tokenizer_files import tokenizer_family
from stoker.cookbooks.language.train_full import train_full, train_full_8bit
from stoker.cookbooks.language.train_lora import train_lora
from stoker.core.errors import InsufficientDeviceMemory
from stoker.core.frozen import changed, frozen
from stoker.engine.recipe import surroundings
from stoker.store.weight_files.headers import shown

_BRINGS = {"base": CONFIG}
"""A machine of a fleet downloads a base of the hub itself; this file states its size."""
_TRAINING_BRINGS = {**_BRINGS, "data": f"datasets/{CARD}"}
"""It downloads a data set, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraRecipeArgs(AdapterArgs, LearningArgs, DataArgs):
    """Arguments of language/lora."""

    alpha: float | None = arg(None, help="scale of the adapter (alpha); null: twice its rank", gt=0, le=LARGEST)
    targets: tuple[str, ...] = arg(
        (ALL_LINEAR,), help="target matrices by name or pattern, or all-linear, attention, mlp"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRecipeArgs(WholeModelArgs, LearningArgs, DataArgs):
    """Arguments of language/full."""

    gradient_checkpointing: Recomputing = arg(
        "auto", help="recompute blocks for the backward pass: slower, less memory; auto: if it is needed", runtime=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecipeArgs:
    """Arguments of language/merge."""

    base: str = arg("tiny", help="the base that the adapter was trained on: a folder, org/name of the hub, or tiny")
    adapter: str = arg(help="a folder in PEFT's layout, such as the result of language/lora")
    dtype: Dtype = arg("auto", help="precision of the weights; auto: that of the base")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecipeArgs:
    """Arguments of language/export."""

    base: str = arg("tiny", help="the adapter's base, or the model: a folder, org/name of the hub, or tiny")
    adapter: str = arg("", help="a folder in PEFT's layout, such as the result of language/lora; empty: a whole model")
    dtype: GgufDtype = arg("float32", help="precision of the file")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecipeArgs:
    """Arguments of language/sample."""

    base: str = arg("tiny", help="the base of the adapters, or a model: a folder, org/name of the hub, or tiny")
    base_name: str = arg("", help="name of the base; empty: the value of base", runtime=True)
    adapter: tuple[PathOrName, ...] = arg(
        (), help="folders in PEFT's layout, such as results of language/lora; they answer beside each other"
    )
    names: tuple[str, ...] = arg((), help="what the adapters are called in the answers; empty: adapter-1, adapter-2 …")
    with_base: bool = arg(False, help="also answer with the base alone; without an adapter it always does")
    prompts: tuple[str, ...] = arg(help="texts to answer")
    conversation: bool = arg(False, help="prompts are turns of one conversation, not each by itself")
    plain: bool = arg(False, help="complete prompts as they are, without a chat template")
    context: int | None = arg(
        None, help="maximum tokens of a conversation with its answers; null: what the base reads", ge=2, later=True
    )
    tokens: int = arg(256, help="maximum tokens of each answer", ge=1, le=100_000)
    temperature: float = arg(0.0, help="sampling temperature; 0: always the likeliest token", ge=0, le=100)
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)
    dtype: Dtype = arg("auto", help="precision; auto: bfloat16 on a GPU, float32 on the CPU")
    base_dtype: BaseDtype = arg("auto", help="precision of the base, as in language/lora")
    path: BasePath = arg("auto", help="how the base is computed, as in language/lora")
    gpus: int | None = arg(
        None, help="1: on a GPU; 0: on the CPU; null: on a GPU if there is one", ge=0, le=1, runtime=True
    )


@recipe(
    LORA,
    version=1,
    category=Category.TRAIN,
    output=LanguageReport,
    backend="torch",
    shares=shared_by_lora,
    brings=_TRAINING_BRINGS,
)
def lora(args: LoraRecipeArgs) -> Plan:
    """Fine-tune an adapter on a causal language model and report what it learned; many over one base train together."""
    wanted = _lora(args)
    base, gpus = wanted.base, _gpus(args)
    taken = _taken(args, wanted.load, LearningArgs, AdapterArgs)
    if args.method != "sft":
        # The defaults, written out: they are part of the key.
        taken["beta"] = args.beta or BETA
        taken["loss_type"] = (args.loss_type or "sigmoid") if args.method == "dpo" else None
    settings = LoraArgs(
        **_base(base, base.files),
        **taken,
        alpha=float(2 * args.rank) if args.alpha is None else args.alpha,
        targets=wanted.targets,
        max_seq_len=wanted.load.tokens,
        packing=args.packing,
    )
    needs = lora_needs(base, wanted.load, gpus=gpus, most=args.most)
    examples = _tokenised(LORA, args, wanted)
    adapter = examples.then(train_lora, settings, needs=needs)
    if not args.samples:
        return adapter.then(report_lora).finish()
    samples = adapter.then(sample, _samples(args, wanted), needs=_sample_needs(args, wanted, gpus))
    return adapter.then(report_lora_samples, samples=samples).finish()


@recipe(FULL, version=1, category=Category.TRAIN, output=LanguageReport, backend="torch", brings=_TRAINING_BRINGS)
def full(args: FullRecipeArgs) -> Plan:
    """Fine-tune every weight of a causal language model and report what it learned."""
    wanted, whole = _full(args)
    base = wanted.base
    settings = FullArgs(
        **_base(base, base.files),
        **_taken(args, wanted.load, LearningArgs, WholeModelArgs),
        max_seq_len=wanted.load.tokens,
        packing=args.packing,
        gradient_checkpointing=whole.recomputes,
    )
    gpus = _gpus(args)
    needs = full_needs(whole, gpus=gpus)
    trains = train_full_8bit if args.optimizer == "adamw8bit" else train_full
    model = _tokenised(FULL, args, wanted).then(trains, settings, id=train_full.name.rpartition("/")[2], needs=needs)
    if not args.samples:
        return model.then(report_full).finish(keep=(model,))
    samples = model.then(sample_model, _samples(args, wanted), needs=_sample_needs(args, wanted, gpus))
    return model.then(report_full_samples, samples=samples).finish(keep=(model,))


@recipe(SAMPLE, version=1, category=Category.EVAL, output=Answers, backend="torch", brings=_BRINGS)
def sample_models(args: SampleRecipeArgs) -> Plan:
    """Answer prompts with adapters over one base, beside each other and beside the base; or with a model."""
    checking = LanguageArgsChecker(SAMPLE)
    base = checking.base(args.base)
    folders = [checking.adapter(one, base) for one in args.adapter]
    names = args.names or tuple(f"adapter-{number}" for number in range(1, 1 + len(folders)))
    if len(names) != len(folders) or len({*names}) < len(names):
        checking.note("names", f"{len(folders)} adapters need as many different names")
    if BASE_NAME in names and args.with_base:
        checking.note("names", f"{BASE_NAME} is the name of the base alone", "another name, or with_base=false")
    if not args.prompts:
        checking.note("prompts", "no prompts", "prompts=[2+3=]")
    if base is not None:
        checking.path(args.path, base)
        checking.base_dtype(args.base_dtype, base, is_general=is_general(base, args.path))
        checking.context(args.context, base)
    checking.refuse()
    assert base is not None  # noqa: S101 - refused above
    gpus = _gpus(args)
    dtype = settled_dtype(args.dtype, on_gpu=gpus > 0)
    models = [ChatModel(name=name, adapter=folder) for name, folder in zip(names, folders, strict=True)]
    if args.with_base or not models:
        models.append(ChatModel(name=BASE_NAME, adapter=None))
    longest = prompt_tokens(
        args.prompts, args.tokens, args.context or base.positions, is_conversation=args.conversation
    )
    load = chat_load(base, models, longest, dtype=dtype, base_dtype=args.base_dtype, path=args.path)
    _refuse_too_large(checking, answers_too_large(base, load, len(models), gpus=gpus), gpus)
    settings = AnswerArgs(
        **_base(_called(base, args.base_name), base.files),
        adapters=tuple(InputPath(os.path.abspath(one)) for one in folders),
        adapter_files=tuple(InputPath(os.path.abspath(one)) for folder in folders for one in answering_files(folder)),
        names=tuple(one.name for one in models),
        prompts=args.prompts,
        conversation=args.conversation,
        plain=args.plain,
        context=args.context,
        tokens=args.tokens,
        temperature=args.temperature,
        seed=args.seed,
        dtype=dtype,
        base_dtype=load.base_dtype,
        path=args.path,
    )
    needs = answer_needs(base, load, len(models), gpus=gpus)
    return PlanBuilder("sample").start(answer, settings, needs=needs).finish()


@recipe(MERGE, version=1, category=Category.EXPORT, output=LanguageModel, backend="torch", brings=_BRINGS)
def merge(args: MergeRecipeArgs) -> Plan:
    """Merge an adapter into its base: a whole model in the Hugging Face layout."""
    base, files = _adapter_over(LanguageArgsChecker(MERGE), args)
    settings = MergeArgs(**files, dtype=args.dtype)
    return PlanBuilder("merge").start(merge_weights, settings, needs=reading_needs(base)).finish()


@recipe(EXPORT, version=1, category=Category.EXPORT, output=GgufFile, backend="torch", brings=_BRINGS)
def export(args: ExportRecipeArgs) -> Plan:
    """Write an adapter as a GGUF file that llama.cpp loads beside its base; or a whole model."""
    if not args.adapter:
        return _whole_model(args)
    _, files = _adapter_over(LanguageArgsChecker(EXPORT), args)
    return PlanBuilder("export").start(export_adapter, ExportArgs(**files, dtype=args.dtype)).finish()


def _whole_model(args: ExportRecipeArgs) -> Plan:
    checking = LanguageArgsChecker(EXPORT)
    base = checking.base(args.base)
    for message, hint in () if base is None else model_faults(base):
        checking.note("base", message, hint)
    checking.refuse()
    assert base is not None  # noqa: S101 - refused above
    settings = ExportModelArgs(**_base(base, base.files), dtype=args.dtype)
    return PlanBuilder("export").start(export_model, settings).finish()


def _adapter_over(
    checking: LanguageArgsChecker, args: MergeRecipeArgs | ExportRecipeArgs
) -> tuple[TrainableBase, dict[str, Any]]:
    """Return a base, and the arguments of a stage that name it and an adapter over it; faults are refused."""
    base = checking.base(args.base)
    folder = checking.adapter(args.adapter, base)
    if isinstance(args, ExportRecipeArgs) and not checking.has_faults:
        _refuse_more_than_lora(checking, read_config(folder))
    if isinstance(args, ExportRecipeArgs) and base is not None and base.family not in GGUF_FAMILIES:
        message = f"adapters over {base.family} can't be exported"
        checking.note("base", message, f"supported: {', '.join(GGUF_FAMILIES)}")
    checking.refuse()
    assert base is not None  # noqa: S101 - refused above
    return base, {
        **_base(base, base.files),
        "adapter": InputPath(os.path.abspath(folder)),
        "adapter_files": tuple(InputPath(os.path.abspath(one)) for one in adapter_files(folder)),
    }


def _refuse_more_than_lora(checking: LanguageArgsChecker, config: Mapping[str, Any]) -> None:
    hint = "merge it (language/merge), and export the model"
    if is_dora(config):
        checking.note("adapter", "llama.cpp's adapters have no magnitudes (DoRA)", hint)
    if config.get("modules_to_save"):
        checking.note("adapter", f"llama.cpp's adapters have no copy of {shown(config['modules_to_save'][0])}", hint)


@frozen
class _Wanted:
    """The resolved arguments of a training."""

    base: TrainableBase
    data: tuple[SourceArgs, ...]
    load: Load
    targets: tuple[str, ...] = ()


def _lora(args: LoraRecipeArgs) -> _Wanted:
    checking = LanguageArgsChecker(LORA)
    base, data = checking.base(args.base), DataFinder(checking, args).sources()
    known = base or outline_of(args.base)
    length = checking.length(args.max_seq_len, known) if known is not None else 0
    targets = checking.targets(args.targets, known, args.rank) if known is not None else ()
    if known is not None:
        checking.path(args.path, known)
        checking.base_dtype(args.base_dtype, known, is_general=is_general(known, args.path))
        checking.modules_to_save(args.modules_to_save, known)
    checking.method(args, args, data)
    checking.refuse()
    assert base is not None  # noqa: S101 - refused above
    gpus = _gpus(args)
    dtype = settled_dtype(args.dtype, on_gpu=gpus > 0)
    load = adapter_load(
        base, args, tokens=length, dtype=dtype, targets=targets, is_compiled=not gpus or compiles_here()
    )
    _refuse_too_large(checking, too_large(base, load, gpus=gpus), gpus)
    return _Wanted(base=_called(base, args.base_name), data=data, load=load, targets=targets)


def _full(args: FullRecipeArgs) -> tuple[_Wanted, FullTrainingSpec]:
    checking = LanguageArgsChecker(FULL)
    base, data = checking.base(args.base), DataFinder(checking, args).sources()
    known = base or outline_of(args.base)
    length = checking.length(args.max_seq_len, known) if known is not None else 0
    gpus = _gpus(args)
    checking.whole_model(args)
    checking.refuse()
    assert base is not None  # noqa: S101 - refused above
    dtype = settled_dtype(args.dtype, on_gpu=gpus > 0)
    load = Load(rank=1, targets=(ALL_LINEAR,), rows=args.batch, tokens=length, dtype=dtype, is_general=True)
    whole = FullTrainingSpec(
        base=base,
        load=load,
        accumulate=args.accumulate,
        is_packed=args.packing,
        optimizer=args.optimizer,
        recomputes=args.gradient_checkpointing == "true",
        ranks=args.ranks,
    )
    if args.gradient_checkpointing == "auto":
        whole = changed(whole, recomputes=full_too_large(whole, gpus=gpus) is not None)
    _refuse_too_large(checking, full_too_large(whole, gpus=gpus), gpus)
    return _Wanted(base=_called(base, args.base_name), data=data, load=load), whole


def _refuse_too_large(checking: LanguageArgsChecker, short: InsufficientDeviceMemory | None, gpus: int) -> None:
    if short is not None:
        checking.note("gpus" if gpus else "base", short.message, short.hint)
        checking.refuse()


def _called(base: TrainableBase, name: str) -> TrainableBase:
    """Return a base under its submitted name: in a fleet the name of its folder means nothing."""
    return changed(base, name=name) if name else base


def _tokenised(name: str, args: DataArgs, wanted: _Wanted) -> Tip:
    settings = TokeniseArgs(
        **_base(wanted.base, wanted.base.tokenizer_files),
        **data_args(wanted.data),
        max_seq_len=wanted.load.tokens,
        vocabulary=wanted.base.vocabulary,
        train_on=args.train_on,
        holdout_percent=args.holdout_percent,
        is_paired=wanted.load.is_paired,
        family=tokenizer_family(wanted.base.folder, wanted.base.config),
    )
    is_plain = not any(needs_arrow(Path(file)) for source in wanted.data for file in source.files)
    return PlanBuilder(name.rpartition("/")[2]).start(tokenise if is_plain else tokenise_tables, settings)


def _samples(args: LoraRecipeArgs | FullRecipeArgs, wanted: _Wanted) -> SampleArgs:
    return SampleArgs(
        **_base(wanted.base, wanted.base.files),
        prompts=args.samples,
        tokens=args.sample_tokens,
        temperature=args.temperature,
        seed=args.seed,
        dtype=wanted.load.dtype,
        base_dtype=wanted.load.base_dtype,
        path=args.path if isinstance(args, LoraRecipeArgs) else "auto",
    )


def _sample_needs(args: DataArgs, wanted: _Wanted, gpus: int) -> Needs:
    longest = prompt_tokens(args.samples, args.sample_tokens, wanted.base.positions)
    return answer_needs(wanted.base, changed(wanted.load, rows=1, tokens=longest, is_paired=False), 1, gpus=gpus)


def _base(base: TrainableBase, names: tuple[str, ...]) -> dict[str, Any]:
    # The stage runs in another folder than the command.
    folder = os.path.abspath(base.folder)
    return {
        "base": InputPath(folder),
        "base_files": tuple(InputPath(os.path.join(folder, name)) for name in names),
        "base_name": base.name,
    }


def _taken(args: Any, load: Load, *groups: type[LearningArgs | AdapterArgs | WholeModelArgs]) -> dict[str, Any]:
    """Return the arguments that recipe and stage have in common, resolved for the stage's key."""
    taken = {one.name: getattr(args, one.name) for group in groups for one in fields(group)} | {"dtype": load.dtype}
    folder = taken["checkpoints"]
    # The stage runs in another folder than the command.
    taken["checkpoints"] = os.path.abspath(os.path.expanduser(folder)) if folder else None
    return taken


def _gpus(args: DataArgs | SampleRecipeArgs) -> int:
    return min(1, surroundings().count_gpus()) if args.gpus is None else args.gpus


# The cookbook for the catalogue.

COOKBOOK: Final = Cookbook(
    name="language",
    summary="fine-tune language models, many adapters over one base at once",
    recipes=(lora, full, sample_models, merge, export),
    stages=(
        tokenise,
        tokenise_tables,
        train_lora,
        train_full,
        train_full_8bit,
        sample,
        sample_model,
        answer,
        report_lora,
        report_lora_samples,
        report_full,
        report_full_samples,
        merge_weights,
        export_adapter,
        export_model,
    ),
    kinds=(Examples, Adapter, Answers, GgufFile, LanguageModel, Samples, LanguageReport),
    prefill={recipe.name: {"base": "tiny", "data": "sums"} for recipe in (lora, full)},
    # Every adapter of a sweep gets its own report, and a process that draws plots.
    preload=("matplotlib.backends.backend_svg", "matplotlib.figure", "numpy", "tokenizers", "torch"),
)
