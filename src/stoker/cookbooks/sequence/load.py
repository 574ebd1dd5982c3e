"""The stage that reads a series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.authoring import InputPath, StageContext, StageInputError, arg, stage
from stoker.cookbooks.sequence.generated import GeneratedName
from stoker.cookbooks.sequence.kinds import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArgs:
    """A generated series or a file, and what the user says about its columns."""

    generated: GeneratedName | None = arg(None, help="a series that is made, not read")
    file: InputPath | None = arg(None, help="a CSV or Parquet file, a row for each moment")
    target: str | None = arg(None, help="the column to predict")
    time: str | None = arg(None, help="the column that orders the rows")
    problem: Literal["auto", "classification", "regression"] = arg("auto", help="classes or quantities")
    drop: tuple[str, ...] = arg((), help="columns to leave out")


@stage("sequence/load", version=1, uses=("numpy", "pandas", "pyarrow"))
def load(job: StageContext, args: LoadArgs) -> Series:
    """Read a series from a CSV or Parquet file, or make one; put its rows in order and settle its columns."""
    from pathlib import Path

    from stoker.cookbooks.sequence.columns import SeriesColumnChoice, SeriesOrigin, settle
    from stoker.cookbooks.sequence.generator import generate
    from stoker.cookbooks.tabular.table_files import read_file

    if args.file is not None:
        frame, read = read_file(Path(args.file), least_columns=1)
        form: Literal["csv", "parquet"] = "parquet" if read["format"] == "parquet" else "csv"
        origin = SeriesOrigin(name=None, format=form, sha256=read["sha256"], target=None, notes=tuple(read["notes"]))
    elif args.generated is not None:
        frame, target = generate(args.generated)
        origin = SeriesOrigin(name=args.generated, format="generated", sha256=None, target=target)
    else:
        raise StageInputError("neither a generated series nor a file was given", hint="data=NAME or data=FILE")
    choice = SeriesColumnChoice(target=args.target, time=args.time, problem=args.problem, drop=args.drop)
    series = settle(frame, origin, choice)
    for note in series.facts["notes"]:
        job.log(note)
    job.log(f"{series.facts['rows']} rows, {len(series.facts['channels'])} channels")
    return job.save(Series, series)
