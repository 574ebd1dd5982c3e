"""The recipes of this cookbook: from what a user types to a plan.

    load → window → train → evaluate → report
                  → pretrain → finetune → …            (transformer_ssl)

`data` is the name of a generated series or a path. A path reaches the plan as an input whose content, not its place,
decides whether work is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.authoring import (
    Category,
    Cookbook,
    Diagnostic,
    InputPath,
    Needs,
    Plan,
    PlanBuilder,
    Stage,
    Tip,
    arg,
    recipe,
)
from stoker.cookbooks.recipe_parts import find_table, refuse, stage_args
from stoker.cookbooks.sequence.data import load, window
from stoker.cookbooks.sequence.evaluate import evaluate
from stoker.cookbooks.sequence.kinds import Encoder, SequenceModel, SequenceReport, SequenceScores, Series, Windows
from stoker.cookbooks.sequence.report import report
from stoker.cookbooks.sequence.schemas import GENERATED, SeriesLoadArgs, TrainingArgs, WindowArgs
from stoker.cookbooks.sequence.train_cnn import CnnArgs, train_cnn
from stoker.cookbooks.sequence.train_recurrent import RecurrentArgs, train_gru, train_lstm
from stoker.cookbooks.sequence.train_transformer import (
    FinetuneArgs,
    PretrainArgs,
    TransformerArgs,
    finetune,
    pretrain,
    train_transformer,
)

_GENERATED_TEXT = ", ".join(GENERATED)


@dataclass(frozen=True, kw_only=True)
class SeriesArgs:
    """Arguments of every recipe of this cookbook."""

    data: str = arg("waves", help=f"CSV or Parquet file, a row for each time step, or one of {_GENERATED_TEXT}")
    target: str | None = arg(None, help="the column to predict; required for a file of several columns")
    time: str | None = arg(None, help="time column; null: a column of dates, or the order of the file")
    problem: Literal["auto", "classification", "regression"] = arg("auto", help="classes or quantities; auto: detect")
    drop: tuple[str, ...] = arg((), help="columns to leave out")
    window: int = arg(24, help="rows of a window", ge=1, le=100_000)
    stride: int = arg(1, help="rows between the starts of windows (stride)", ge=1)
    horizon: int | None = arg(None, help="regression: next values to predict; null: 1", ge=1, le=10_000)
    validation_percent: int = arg(15, help="share of validation rows, before the test rows", ge=1, le=45)
    test_percent: int = arg(20, help="share of test rows, the newest", ge=1, le=45)
    gpus: int = arg(0, help="1: every rank trains on a GPU of its own; 0: on the CPU", ge=0, le=1, runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnRecipeArgs(CnnArgs, SeriesArgs):
    """Arguments of sequence/cnn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentRecipeArgs(RecurrentArgs, SeriesArgs):
    """Arguments of sequence/gru and sequence/lstm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerRecipeArgs(TransformerArgs, SeriesArgs):
    """Arguments of sequence/transformer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSslRecipeArgs(TransformerRecipeArgs):
    """Arguments of sequence/transformer_ssl."""

    pretrain_epochs: int = arg(20, help="maximum number of pre-training epochs; the best one is kept", ge=1, le=100_000)
    mask_percent: int = arg(30, help="share of each window that is hidden", ge=1, le=90)
    mask_span: int = arg(4, help="rows that are hidden together", ge=1, le=1000)


@recipe("sequence/cnn", version=1, category=Category.TRAIN, output=SequenceReport, backend="torch")
def cnn(args: CnnRecipeArgs) -> Plan:
    """Train convolutions on windows of a time series and report how good they are."""
    return _plan("sequence/cnn", args, train_cnn, CnnArgs)


@recipe("sequence/gru", version=1, category=Category.TRAIN, output=SequenceReport, backend="torch")
def gru(args: RecurrentRecipeArgs) -> Plan:
    """Train a GRU on windows of a time series and report how good it is."""
    return _plan("sequence/gru", args, train_gru, RecurrentArgs)


@recipe("sequence/lstm", version=1, category=Category.TRAIN, output=SequenceReport, backend="torch")
def lstm(args: RecurrentRecipeArgs) -> Plan:
    """Train an LSTM on windows of a time series and report how good it is."""
    return _plan("sequence/lstm", args, train_lstm, RecurrentArgs)


@recipe("sequence/transformer", version=1, category=Category.TRAIN, output=SequenceReport, backend="torch")
def transformer(args: TransformerRecipeArgs) -> Plan:
    """Train a transformer on windows of a time series and report how good it is."""
    name = "sequence/transformer"
    return _plan(name, args, train_transformer, TransformerArgs, _head_faults(name, args))


@recipe("sequence/transformer_ssl", version=1, category=Category.TRAIN, output=SequenceReport, backend="torch")
def transformer_ssl(args: TransformerSslRecipeArgs) -> Plan:
    """Pre-train a transformer on windows with parts hidden, then train it to answer, and report how good it is."""
    name = "sequence/transformer_ssl"
    data = _data(name, args, _head_faults(name, args))
    learning = stage_args(PretrainArgs, args, epochs=args.pretrain_epochs)
    encoder = data.then(pretrain, learning, needs=_needs(args))
    model = encoder.then(finetune, stage_args(FinetuneArgs, args), data=data, needs=_needs(args))
    return _judged(model, data)


def _plan(
    name: str, args: SeriesArgs, train: Stage, of: type[TrainingArgs], faults: tuple[Diagnostic, ...] = ()
) -> Plan:
    data = _data(name, args, faults)
    return _judged(data.then(train, stage_args(of, args), needs=_needs(args)), data)


def _data(name: str, args: SeriesArgs, faults: tuple[Diagnostic, ...]) -> Tip:
    found = find_table(f"{name}.data", args.data, GENERATED, one="generated series", several="generated series")
    refuse(name, (found, *faults) if isinstance(found, Diagnostic) else faults)
    source = {"generated": None, "file": InputPath(str(found))} if found else {"generated": args.data, "file": None}
    builder = PlanBuilder(name.rpartition("/")[2])
    return builder.start(load, stage_args(SeriesLoadArgs, args, **source)).then(window, stage_args(WindowArgs, args))


def _judged(model: Tip, data: Tip) -> Plan:
    return model.then(evaluate, data=data).then(report, model=model).finish()


def _needs(args: Any) -> Needs:
    return Needs(cpu=args.ranks, gpu=args.gpus * args.ranks, ranks=args.ranks)


def _head_faults(name: str, args: TransformerRecipeArgs) -> tuple[Diagnostic, ...]:
    if args.width % args.heads or args.width % 2:
        return (Diagnostic(f"{name}.width", f"{args.width} is not even, or no multiple of heads={args.heads}"),)
    return ()


# The cookbook for the catalogue.

COOKBOOK: Final = Cookbook(
    name="sequence",
    summary="forecast and classify windows of time series",
    recipes=(cnn, gru, lstm, transformer, transformer_ssl),
    stages=(
        load,
        window,
        train_cnn,
        train_gru,
        train_lstm,
        train_transformer,
        pretrain,
        finetune,
        evaluate,
        report,
    ),
    kinds=(Series, Windows, Encoder, SequenceModel, SequenceScores, SequenceReport),
    prefill={recipe.name: {"data": "waves"} for recipe in (cnn, gru, lstm, transformer, transformer_ssl)},
    preload=("pandas", "pyarrow.parquet", "torch"),
)
