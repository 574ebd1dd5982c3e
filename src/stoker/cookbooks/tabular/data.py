"""The stages before a training: read a table, choose the target, hold out test rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from stoker.authoring import InputPath, StageContext, StageInputError, arg, stage
from stoker.cookbooks.tabular.kinds import Labelled, Split, Table
from stoker.cookbooks.tabular.schemas import ProblemChoice, SplitFacts

BundledName = Literal["breast_cancer", "wine", "iris", "digits", "diabetes"]
"""The data sets that ship inside scikit-learn, by the names a user types."""
BUNDLED: Final[tuple[str, ...]] = get_args(BundledName)


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularLoadArgs:
    """Either a bundled set or a file."""

    bundled: BundledName | None = arg(None, help="a data set that ships inside scikit-learn")
    file: InputPath | None = arg(None, help="a CSV or Parquet file")


@stage("tabular/load", version=1, uses=("scikit-learn", "pandas", "pyarrow"))
def load(job: StageContext, args: TabularLoadArgs) -> Table:
    """Read a table from a CSV or Parquet file, or take a bundled one."""
    from stoker.cookbooks.tabular.tables import read_bundled, read_file

    if args.file is not None:
        frame, origin = read_file(Path(args.file))
    elif args.bundled is not None:
        frame, origin = read_bundled(args.bundled)
    else:
        raise StageInputError("neither a bundled set nor a file", hint="data=NAME or data=FILE")
    job.log(f"{origin['rows']} rows, {origin['columns']} columns")
    return job.save(Table, (frame, origin))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelArgs:
    """Settings of columns."""

    target: str | None = arg(None, help="the column to predict; a bundled set has a default")
    problem: ProblemChoice = arg("auto", help="classes or quantities")
    drop: tuple[str, ...] = arg((), help="columns to leave out")


@stage("tabular/label", version=1, uses=("pandas", "pyarrow"))
def label(job: StageContext, table: Table, args: LabelArgs) -> Labelled:
    """Choose the target, encode its classes and decide the type of every other column."""
    from stoker.cookbooks.tabular.tables import label_table

    frame, origin = table.load()
    labelled, facts = label_table(frame, origin, target=args.target, problem=args.problem, drop=args.drop)
    for note in facts["notes"]:
        job.log(note)
    return job.save(Labelled, (labelled, facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitArgs:
    """How rows are divided."""

    test_percent: int = arg(25, help="share of rows held out for the test", ge=1, le=90)
    seed: int = arg(0, help="random seed", ge=0, le=1_000_000_000)


@stage("tabular/split", version=1, uses=("scikit-learn", "pandas", "pyarrow"))
def split(job: StageContext, table: Labelled, args: SplitArgs) -> Split:
    """Divide rows into a training part and a test part, each class in proportion."""
    from stoker.cookbooks.tabular.examples import TableExamples, TrainTestExamples, divide

    frame, facts = table.load()
    examples = TableExamples.of(frame, facts)
    train_rows, test_rows = divide(examples, test_percent=args.test_percent, seed=args.seed)
    train, test = examples.take(train_rows), examples.take(test_rows)
    job.log(f"{len(train)} rows to train on, {len(test)} held out")
    counts = SplitFacts(train_rows=len(train), test_rows=len(test), test_percent=args.test_percent, seed=args.seed)
    return job.save(Split, TrainTestExamples(train=train, test=test, facts=facts, split=counts))
