"""Curves as a file: every value that trials measured, one a row, as CSV or as Parquet files in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stoker.cli.context import CommandContext
from stoker.core.errors import NotFound, Refused
from stoker.core.text import some_of
from stoker.engine.metrics.curves import MetricSeries, export_csv, export_parquet
from stoker.jobs.comparison import TrialFacts

_MOST_NAMED = 5


def write_metrics(call: CommandContext, name: str, gathered: Sequence[TrialFacts], path: str) -> int:
    """Write what trials of a job measured to `path`: FILE.csv, or a folder that is empty."""
    series = [
        MetricSeries(paths=one.curve_files, labels={"trial": str(one.end.trial.number), "label": one.end.trial.label})
        for one in gathered
    ]
    if not any(one.paths for one in series):
        raise NotFound(f"job {name} measured nothing", hint="print name=number, or use stoker_trainer: see the guide")
    if not path.endswith(".csv") and os.path.isdir(path) and os.listdir(path):
        raise Refused(f"{path} is not empty", hint="choose another folder, or FILE.csv")
    written = export_csv(series, path) if path.endswith(".csv") else export_parquet(series, path)
    call.out.object({"files": list(written.files), "rows": written.rows, "lost": written.lost})
    call.out.line(f"{written.rows:,} values in {path}")
    lacking = [f"{name}/{one.end.trial.number} ({one.end.state})" for one in gathered if not one.curve_files]
    if lacking:
        call.out.note(f"note: nothing was measured of {some_of(lacking, _MOST_NAMED)}")
    if written.lost:
        call.out.note(f"note: {written.lost:,} values were dropped when they were measured")
    return 0
