"""Rows to learn from, and the Parquet files they travel in.

A file of ours is an ordinary Parquet file that any program can open; what we know beyond its columns is JSON in the
schema's metadata. Writing the same frame and the same knowledge gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.cookbooks.tabular.schemas import Problem, SplitFacts, TableFacts
from stoker.core import jsontext

_METADATA_KEY = b"stoker"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExamples:
    """Features and the answers that belong to them, row by row."""

    features: pd.DataFrame
    target: npt.NDArray[Any]
    """Class values (classification) or numbers (regression)."""
    classes: npt.NDArray[Any]
    """Every class in the order of its code; empty for regression."""
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    problem: Problem

    def __len__(self) -> int:
        return len(self.features)

    @property
    def codes(self) -> npt.NDArray[np.int64]:
        """The position of each row's class in `classes`."""
        return np.searchsorted(self.classes, self.target).astype(np.int64)

    def take(self, rows: npt.NDArray[np.int64]) -> TableExamples:
        """Return the examples at these positions."""
        return replace(self, features=self.features.iloc[rows].reset_index(drop=True), target=self.target[rows])

    @classmethod
    def of(cls, frame: pd.DataFrame, facts: TableFacts) -> TableExamples:
        """Take a labelled frame apart."""
        features = frame[[*facts["numeric"], *facts["categorical"]]].copy()
        for column in facts["categorical"]:
            # One kind of missing (NaN) in plain object columns: encoders tell None and NaN apart.
            values = features[column].astype(object)
            features[column] = values.where(values.notna(), np.nan)
        classes = np.array(facts["classes"])
        stored = frame[facts["target"]].to_numpy()
        return cls(
            features=features,
            target=classes[stored.astype(np.int64)] if facts["classes"] else stored.astype(np.float64),
            classes=classes,
            numeric=tuple(facts["numeric"]),
            categorical=tuple(facts["categorical"]),
            problem=facts["problem"],
        )


def write_frame(frame: pd.DataFrame, knowledge: object, path: Path) -> None:
    """Write a frame with what is known of it."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), _METADATA_KEY: jsontext.dumps(knowledge, sort_keys=True).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def read_frame(path: Path) -> tuple[pd.DataFrame, Any]:
    """Read back what `write_frame` wrote."""
    table = pq.read_table(path)
    knowledge = jsontext.loads((table.schema.metadata or {})[_METADATA_KEY])
    return table.to_pandas(), knowledge


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTestExamples:
    """Examples to train on and examples held out, with what is known of both."""

    train: TableExamples
    test: TableExamples
    facts: TableFacts
    split: SplitFacts


def write_parts(parts: TrainTestExamples, folder: Path) -> None:
    """Write both parts as Parquet into an empty folder."""
    for name, part in (("train", parts.train), ("test", parts.test)):
        frame = part.features.assign(**{parts.facts["target"]: part.codes if len(part.classes) else part.target})
        write_frame(frame, {"facts": parts.facts, "split": parts.split}, folder / f"{name}.parquet")


def read_parts(folder: Path) -> TrainTestExamples:
    """Read back what `write_parts` wrote."""
    train, knowledge = read_frame(folder / "train.parquet")
    test, _ = read_frame(folder / "test.parquet")
    facts: TableFacts = knowledge["facts"]
    return TrainTestExamples(
        train=TableExamples.of(train, facts), test=TableExamples.of(test, facts), facts=facts, split=knowledge["split"]
    )
