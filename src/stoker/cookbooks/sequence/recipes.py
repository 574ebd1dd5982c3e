"""The recipes of this cookbook: from what a user types to a plan.

    load → window → train → evaluate → report
                  → pretrain → finetune → …            (transformer_ssl)

`data` is the name of a generated series or a path. A path reaches the plan as an input whose content, not its place,
decides whether work is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from stoker.authoring import (
    ArgsFaults,
    Category,
    Cookbook,
    Fault,
    InputPath,
    Needs,
    Plan,
    PlanBuilder,
    Stage,
    Tip,
    arg,
    recipe,
)
from stoker.cookbooks.sequence.evaluate import evaluate
from stoker.cookbooks.sequence.finetune import FinetuneArgs, finetune
from stoker.cookbooks.sequence.generated import GENERATED
from stoker.cookbooks.sequence.kinds import Encoder, Model, Report, Scores, Series, Windows
from stoker.cookbooks.sequence.load import LoadArgs, load
from stoker.cookbooks.sequence.pretrain import PretrainArgs, pretrain
from stoker.cookbooks.sequence.report import report
from stoker.cookbooks.sequence.settings import TrainingArgs
from stoker.cookbooks.sequence.train_cnn import CnnArgs, train_cnn
from stoker.cookbooks.sequence.train_gru import GruArgs, train_gru
from stoker.cookbooks.sequence.train_lstm import LstmArgs, train_lstm
from stoker.cookbooks.sequence.train_transformer import TransformerArgs, train_transformer
from stoker.cookbooks.sequence.window import WindowArgs, window
from stoker.core.text import nearest

_GENERATED_TEXT = ", ".join(GENERATED)


@dataclass(frozen=True, kw_only=True)
class SeriesArgs:
    """What every recipe of this cookbook asks."""

    data: str = arg("waves", help=f"a CSV or Parquet file, a row for each moment, or one of {_GENERATED_TEXT}")
    target: str | None = arg(None, help="the column to predict; needed for a file of several columns")
    time: str | None = arg(
        None, help="the column that orders the rows; null: one that holds dates, or the file's order"
    )
    problem: Literal["auto", "classification", "regression"] = arg("auto", help="classes or quantities; auto looks")
    drop: tuple[str, ...] = arg((), help="columns to leave out")
    window: int = arg(24, help="rows that a model sees at once", ge=1, le=100_000)
    stride: int = arg(1, help="rows from the beginning of one window to the next", ge=1)
    horizon: int | None = arg(None, help="regression: next values to predict; null: 1", ge=1, le=10_000)
    validation_percent: int = arg(15, help="share of rows, before the test, that decide when to stop", ge=1, le=45)
    test_percent: int = arg(20, help="share of rows, the newest, held out for the test", ge=1, le=45)
    gpus: int = arg(0, help="1: every rank trains on a GPU of its own; 0: on the CPU", ge=0, le=1, runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnRecipeArgs(TrainingArgs, SeriesArgs):
    """Arguments of sequence/cnn."""

    width: int = arg(32, help="features of each row", ge=1, le=8192)
    layers: int = arg(3, help="blocks, each looking twice as far back", ge=1, le=16)
    kernel: int = arg(3, help="rows that a block looks at", ge=1, le=101)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentRecipeArgs(TrainingArgs, SeriesArgs):
    """Arguments of sequence/gru and sequence/lstm."""

    width: int = arg(32, help="numbers that it keeps in mind", ge=1, le=8192)
    layers: int = arg(1, help="layers above each other", ge=1, le=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerRecipeArgs(TrainingArgs, SeriesArgs):
    """Arguments of sequence/transformer."""

    lr: float = arg(1e-3, help="learning rate (AdamW)", gt=0)
    width: int = arg(32, help="features of each row; a multiple of heads, and even", ge=2, le=8192)
    layers: int = arg(2, help="blocks above each other", ge=1, le=64)
    heads: int = arg(4, help="ways of looking in each block", ge=1, le=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSslRecipeArgs(TransformerRecipeArgs):
    """Arguments of sequence/transformer_ssl."""

    pretrain_epochs: int = arg(20, help="most epochs without answers; the best one is kept", ge=1, le=100_000)
    mask_percent: int = arg(30, help="share of each window that is hidden", ge=1, le=90)
    mask_span: int = arg(4, help="rows that are hidden together", ge=1, le=1000)


@recipe("sequence/cnn", version=1, category=Category.TRAIN, output=Report, backend="torch")
def cnn(args: CnnRecipeArgs) -> Plan:
    """Train convolutions on windows of a time series and report how good they are."""
    settings = CnnArgs(width=args.width, layers=args.layers, kernel=args.kernel, **_training(args))
    return _plan("sequence/cnn", args, train_cnn, settings)


@recipe("sequence/gru", version=1, category=Category.TRAIN, output=Report, backend="torch")
def gru(args: RecurrentRecipeArgs) -> Plan:
    """Train a GRU on windows of a time series and report how good it is."""
    settings = GruArgs(width=args.width, layers=args.layers, **_training(args))
    return _plan("sequence/gru", args, train_gru, settings)


@recipe("sequence/lstm", version=1, category=Category.TRAIN, output=Report, backend="torch")
def lstm(args: RecurrentRecipeArgs) -> Plan:
    """Train an LSTM on windows of a time series and report how good it is."""
    settings = LstmArgs(width=args.width, layers=args.layers, **_training(args))
    return _plan("sequence/lstm", args, train_lstm, settings)


@recipe("sequence/transformer", version=1, category=Category.TRAIN, output=Report, backend="torch")
def transformer(args: TransformerRecipeArgs) -> Plan:
    """Train a transformer on windows of a time series and report how good it is."""
    settings = TransformerArgs(width=args.width, layers=args.layers, heads=args.heads, **_training(args))
    return _plan("sequence/transformer", args, train_transformer, settings, _head_faults("sequence/transformer", args))


@recipe("sequence/transformer_ssl", version=1, category=Category.TRAIN, output=Report, backend="torch")
def transformer_ssl(args: TransformerSslRecipeArgs) -> Plan:
    """Pre-train a transformer on windows with parts hidden, then train it to answer, and report how good it is."""
    name = "sequence/transformer_ssl"
    data = _data(name, args, _head_faults(name, args))
    learning = PretrainArgs(
        width=args.width,
        layers=args.layers,
        heads=args.heads,
        mask_percent=args.mask_percent,
        mask_span=args.mask_span,
        **{**_training(args), "epochs": args.pretrain_epochs},
    )
    encoder = data.then(pretrain, learning, needs=_needs(args))
    model = encoder.then(finetune, FinetuneArgs(**_training(args)), data=data, needs=_needs(args))
    return _judged(model, data)


def _plan(name: str, args: SeriesArgs, train: Stage, settings: Any, faults: tuple[Fault, ...] = ()) -> Plan:
    data = _data(name, args, faults)
    return _judged(data.then(train, settings, needs=_needs(args)), data)


def _data(name: str, args: SeriesArgs, faults: tuple[Fault, ...]) -> Tip:
    source = _source(args)
    if isinstance(source, _Unusable):
        faults = (Fault(f"{name}.data", source.message, source.hint), *faults)
    if isinstance(source, _Unusable) or faults:
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} faults in the arguments of {name}"
        raise ArgsFaults(message, faults=faults, hint=f"stoker recipes show {name}")
    cut = WindowArgs(
        window=args.window,
        stride=args.stride,
        horizon=args.horizon,
        validation_percent=args.validation_percent,
        test_percent=args.test_percent,
    )
    return PlanBuilder(name.rpartition("/")[2]).start(load, source).then(window, cut)


def _judged(model: Tip, data: Tip) -> Plan:
    return model.then(evaluate, data=data).then(report, model=model).finish()


def _training(args: TrainingArgs) -> dict[str, Any]:
    return {name: getattr(args, name) for name in TrainingArgs.__dataclass_fields__}


def _needs(args: Any) -> Needs:
    return Needs(cpu=args.ranks, gpu=args.gpus * args.ranks, ranks=args.ranks)


def _head_faults(name: str, args: TransformerRecipeArgs) -> tuple[Fault, ...]:
    if args.width % args.heads or args.width % 2:
        return (Fault(f"{name}.width", f"{args.width} is not even, or no multiple of heads={args.heads}"),)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unusable:
    """Why there is no series behind what was typed."""

    message: str
    hint: str


def _source(args: SeriesArgs) -> LoadArgs | _Unusable:
    """Tell a generated series from a file, and both from a mistake."""
    data = args.data
    columns: dict[str, Any] = {"target": args.target, "time": args.time, "problem": args.problem, "drop": args.drop}
    if data in GENERATED:
        return LoadArgs(generated=data, **columns)  # type: ignore[arg-type]  # a name out of the type's own tuple
    if not data.strip():
        return _Unusable(message="is empty", hint=f"a CSV or Parquet file, or one of {_GENERATED_TEXT}")
    path = Path(data).expanduser()
    if path.is_file():
        return LoadArgs(file=InputPath(str(path)), **columns)
    if path.is_dir():
        return _Unusable(message=f"{data} is a folder", hint="give one CSV or Parquet file")
    if path.suffix or path.parent != Path():
        return _Unusable(message=f"there is no file {data}", hint=f"generated series are {_GENERATED_TEXT}")
    candidate = nearest(data, GENERATED)
    return _Unusable(
        message=f"{data!r} is neither a file nor a generated series",
        hint=f"did you mean {candidate!r}?" if candidate else f"a CSV or Parquet file, or one of {_GENERATED_TEXT}",
    )


# The cookbook itself: what the catalogue sees of it.

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
    kinds=(Series, Windows, Encoder, Model, Scores, Report),
    prefill={recipe.name: {"data": "waves"} for recipe in (cnn, gru, lstm, transformer, transformer_ssl)},
    preload=("pandas", "pyarrow.parquet", "torch"),
)
