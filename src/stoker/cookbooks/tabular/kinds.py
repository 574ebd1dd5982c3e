"""The artifacts of this cookbook. Libraries are imported with the first value read or written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.authoring import JsonKind, Kind, TreeKind, check_files, check_json
from stoker.cookbooks.tabular.schemas import TabularModelFacts

if TYPE_CHECKING:
    import pandas as pd

    from stoker.cookbooks.tabular.examples import FittedPipeline, TrainTestExamples

_PARQUET_MAGIC = b"PAR1"


class _FrameKind(Kind["tuple[pd.DataFrame, Any]"]):
    """A Parquet file with the facts of its columns in its metadata."""

    @classmethod
    def save(cls, value: tuple[pd.DataFrame, Any], path: Path) -> None:
        from stoker.cookbooks.tabular.examples import write_frame

        write_frame(*value, path)

    def load(self) -> tuple[pd.DataFrame, Any]:
        from stoker.cookbooks.tabular.examples import read_frame

        return read_frame(self.path)

    @classmethod
    def validate(cls, path: Path) -> None:
        _check_parquet(path)


class Table(_FrameKind):
    """Rows and columns as they were read, with their `TableOrigin`."""

    name: ClassVar[str] = "tabular/table"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = "table.parquet"


class Labelled(_FrameKind):
    """Typed features and an encoded target, with their `TableFacts`."""

    name: ClassVar[str] = "tabular/labelled"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = "labelled.parquet"


class Split(Kind["TrainTestExamples"]):
    """A training part and a held-out part: `train.parquet` and `test.parquet`."""

    name: ClassVar[str] = "tabular/split"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    @classmethod
    def save(cls, value: TrainTestExamples, path: Path) -> None:
        from stoker.cookbooks.tabular.examples import write_parts

        write_parts(value, path)

    def load(self) -> TrainTestExamples:
        from stoker.cookbooks.tabular.examples import read_parts

        return read_parts(self.path)

    @classmethod
    def validate(cls, path: Path) -> None:
        for name in ("train.parquet", "test.parquet"):
            _check_parquet(path / name)


class TabularModel(Kind["FittedPipeline"]):
    """A fitted pipeline (`model.joblib`) and its facts (`model.json`).

    The pipeline is a pickle: trust it as much as the machine that it comes from. Loading one runs what is in it.
    """

    name: ClassVar[str] = "tabular/model"
    version: ClassVar[int] = 1
    file: ClassVar[str | None] = None

    @classmethod
    def save(cls, value: FittedPipeline, path: Path) -> None:
        from stoker.cookbooks.tabular.examples import write_model

        write_model(value, path)

    def load(self) -> FittedPipeline:
        from stoker.cookbooks.tabular.examples import read_model

        return read_model(self.path)

    def facts(self) -> TabularModelFacts:
        """Read the facts of the model without loading the pickle."""
        from stoker.cookbooks.tabular.examples import read_facts

        return read_facts(self.path)

    def copy_pipeline(self, to: Path) -> None:
        """Copy the pickle without loading it."""
        shutil.copyfile(self.path / "model.joblib", to)

    @classmethod
    def validate(cls, path: Path) -> None:
        check_files(path, "model.joblib")
        check_json(path / "model.json", "family")


class Validation(JsonKind):
    """One model's cross-validated scores and its learning curve."""

    name: ClassVar[str] = "tabular/validation"
    version: ClassVar[int] = 1


class TabularScores(JsonKind):
    """The whole evaluation of one or more models beside a baseline."""

    name: ClassVar[str] = "tabular/scores"
    version: ClassVar[int] = 1


class TabularReport(TreeKind):
    """A report for people: scores, plots, a model card, one HTML page, and the best model."""

    name: ClassVar[str] = "tabular/report"
    version: ClassVar[int] = 1

    @classmethod
    def validate(cls, path: Path) -> None:
        check_json(path / "summary.json", "headline")
        check_files(path, "scores.csv", "model-card.md", "report.html", "best-model.joblib")


def _check_parquet(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    with path.open("rb") as stream:
        head = stream.read(4)
        stream.seek(-4, 2)
        if head != _PARQUET_MAGIC or stream.read(4) != _PARQUET_MAGIC:
            raise ValueError(f"{path.name} is not a whole Parquet file")
