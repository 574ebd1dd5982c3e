from __future__ import annotations

import csv
import math
import os
import sys
from pathlib import Path

import pytest

from stoker.core.errors import LocalFile, MissingExtra
from stoker.engine.metrics.curves import MetricExport, MetricSeries, export_csv, export_parquet
from stoker.engine.metrics.metrics_file import MetricRow, MetricSource, encode_frame


@pytest.fixture
def series(tmp_path: Path) -> list[MetricSeries]:
    one, other = tmp_path / "one.skm", tmp_path / "other.skm"
    one.write_bytes(
        encode_frame([MetricRow(1, 10.5, "loss", 0.1), MetricRow(2, 11.0, 'a,b\n"c', math.nan)])
        + encode_frame([MetricRow(3, 12.0, "loss", -math.inf)], source=MetricSource.STDOUT, lost=4)
        + b"torn"
    )
    other.write_bytes(encode_frame([MetricRow(-1, 13.0, "loss", 1e-300)]))
    return [
        MetricSeries(paths=(str(one), str(tmp_path / "none.skm")), labels={"trial": "lr=0.1"}),
        MetricSeries(paths=(str(other),), labels={"trial": "lr=0.2"}),
    ]


EXPECTED = [
    ("lr=0.1", 1, 10.5, "loss", "0.1", "reported"),
    ("lr=0.1", 2, 11.0, 'a,b\n"c', "nan", "reported"),
    ("lr=0.1", 3, 12.0, "loss", "-inf", "stdout"),
    ("lr=0.2", -1, 13.0, "loss", "1e-300", "reported"),
]


def test_csv_holds_every_value_exactly(series: list[MetricSeries], tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("something older")
    exported = export_csv(series, str(path))
    assert exported == MetricExport(files=(str(path),), rows=4, lost=4, damaged_bytes=4)
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["trial", "step", "at_s", "name", "value", "source"]
    assert [(row[0], int(row[1]), float(row[2]), *row[3:]) for row in rows] == EXPECTED


def test_parquet_holds_every_value_exactly(series: list[MetricSeries], tmp_path: Path) -> None:
    from pyarrow import parquet

    exported = export_parquet(series, str(tmp_path / "out"))
    assert exported == MetricExport(
        files=(str(tmp_path / "out" / "part-00000.parquet"),), rows=4, lost=4, damaged_bytes=4
    )
    rows = parquet.read_table(exported.files[0]).to_pylist()
    assert [(*list(row.values())[:4], repr(row["value"]), row["source"]) for row in rows] == EXPECTED


def test_parquet_comes_in_parts_and_older_parts_go(series: list[MetricSeries], tmp_path: Path) -> None:
    from pyarrow import parquet

    out = tmp_path / "out"
    assert len(export_parquet(series, str(out), part_rows=1).files) == 3
    exported = export_parquet(series, str(out), part_rows=3)
    assert sorted(os.listdir(out)) == ["part-00000.parquet", "part-00001.parquet"]
    assert [parquet.read_metadata(file).num_rows for file in exported.files] == [3, 1]


def test_nothing_is_exported_as_a_table_without_rows(tmp_path: Path) -> None:
    from pyarrow import parquet

    assert export_csv([], str(tmp_path / "a.csv")).rows == 0
    assert (tmp_path / "a.csv").read_text().strip() == "step,at_s,name,value,source"
    exported = export_parquet([MetricSeries(paths=())], str(tmp_path / "out"))
    assert parquet.read_table(exported.files[0]).num_rows == 0


def test_parquet_without_pyarrow_says_what_is_missing(
    series: list[MetricSeries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        export_parquet(series, str(tmp_path / "out"))


def test_a_place_that_is_not_there_leaves_nothing_behind(series: list[MetricSeries], tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(LocalFile):
        export_csv(series, str(tmp_path / "none" / "a.csv"))
    assert sorted(os.listdir(tmp_path)) == before
