"""The stages before a training: read or generate a series, and cut it into windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from stoker.authoring import StageContext, StageInputError, stage
from stoker.cookbooks.sequence.kinds import Series, Windows
from stoker.cookbooks.sequence.schemas import SeriesLoadArgs, WindowArgs


@stage("sequence/load", version=1, uses=("numpy", "pandas", "pyarrow"))
def load(job: StageContext, args: SeriesLoadArgs) -> Series:
    """Read a series from a CSV or Parquet file, or generate one; sort its rows and decide its columns."""
    from stoker.cookbooks.sequence.columns import generate, settle
    from stoker.cookbooks.tabular.tables import read_file

    if args.file is not None:
        frame, origin = read_file(Path(args.file), least_columns=1)
        form: Literal["csv", "parquet"] = "parquet" if origin["format"] == "parquet" else "csv"
        series = settle(frame, args, form=form, sha256=origin["sha256"], notes=origin["notes"])
    elif args.generated is not None:
        frame, target = generate(args.generated)
        choice = args if args.target is not None else replace(args, target=target)
        series = settle(frame, choice, form="generated", sha256=None, notes=())
    else:
        raise StageInputError("neither a generated series nor a file", hint="data=NAME or data=FILE")
    for note in series.facts["notes"]:
        job.log(note)
    job.log(f"{series.facts['rows']} rows, {len(series.facts['channels'])} channels")
    return job.save(Series, series)


@stage("sequence/window", version=1, uses=("numpy",))
def window(job: StageContext, series: Series, args: WindowArgs) -> Windows:
    """Divide a series in time, scale it by its training part and cut it into windows."""
    from stoker.cookbooks.sequence.arrays import cut

    given = series.load()
    if args.horizon is not None and given.facts["problem"] == "classification":
        raise StageInputError(
            f"horizon={args.horizon}, but {given.facts['target']!r} is a class: a window's is that of its last row",
            hint="omit horizon, or use problem=regression",
        )
    windows = cut(given, args)
    for note in windows.facts["notes"][len(given.facts["notes"]) :]:
        job.log(note)
    counts = windows.facts["counts"]
    job.log(f"windows: {counts['train']} to train on, {counts['validation']} to stop by, {counts['test']} held out")
    return job.save(Windows, windows)
