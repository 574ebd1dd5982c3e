"""Training examples, the files of examples and pipelines, and the division of rows.

Files are ordinary Parquet files that any program can read; facts beyond the columns are JSON in the schema's metadata.
The same frame and facts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.authoring import StageInputError
from stoker.cookbooks.tabular.schemas import Problem, SplitFacts, TableFacts, TabularModelFacts
from stoker.core import jsontext

_METADATA_KEY = b"stoker"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExamples:
    """Features and targets, row by row."""

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
        """Return the examples of a labelled frame."""
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
    """Write a frame with its facts."""
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
    """Training and test examples, with their facts."""

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


# Division of rows into training, test and validation rows.
#
# Every division is seeded, keeps the order of rows, and keeps the share of each class.


Rows = npt.NDArray[np.int64]

_LEAST_ROWS = 8
_LEAST_HOLDOUT_ROWS = 8
_MOST_LISTED = 12


def divide(examples: TableExamples, *, test_percent: int, seed: int) -> tuple[Rows, Rows]:
    """Return the rows of the training part and of the test part."""
    total = len(examples)
    if total < _LEAST_ROWS:
        raise StageInputError(
            f"{total} rows are too few to train and test on", hint=f"at least {_LEAST_ROWS} are needed"
        )
    test_rows = -(-total * test_percent // 100)
    if examples.problem == "classification":
        _refuse_small_classes(examples, test_rows, test_percent)
    return _shuffled_parts(examples, test_rows, seed)


def holdout(examples: TableExamples, *, percent: int, seed: int) -> tuple[Rows, Rows] | None:
    """Return validation rows; None if there are too few rows."""
    aside = -(-len(examples) * percent // 100)
    if aside < _LEAST_HOLDOUT_ROWS:
        return None
    if examples.problem == "classification":
        counts = np.bincount(examples.codes, minlength=len(examples.classes))
        if counts.min() < 2 or aside < len(examples.classes):
            return None
    return _shuffled_parts(examples, aside, seed)


def fold_count(examples: TableExamples, wanted: int) -> int:
    """Return the number of folds: `wanted`, or fewer if a class is small, or 0 if two do not work."""
    most = len(examples)
    if examples.problem == "classification":
        most = int(np.bincount(examples.codes, minlength=len(examples.classes)).min())
    folds = min(wanted, most)
    return folds if folds >= 2 else 0


def folds_of(examples: TableExamples, *, folds: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """Return (rows to fit on, rows to score on) once per fold."""
    from sklearn.model_selection import KFold, StratifiedKFold

    splitter: Any = StratifiedKFold if examples.problem == "classification" else KFold
    keys = examples.codes if examples.problem == "classification" else None
    yield from splitter(n_splits=folds, shuffle=True, random_state=seed).split(np.zeros(len(examples)), keys)


def nested_subset(examples: TableExamples, *, rows: int, seed: int) -> Rows:
    """Return a subset of so many rows, with the share of each class and at least one row of each."""
    order = np.random.default_rng(seed).permutation(len(examples))
    if examples.problem == "classification":
        codes = examples.codes[order]
        first_of_each = np.unique(codes, return_index=True)[1]
        rank_in_class = np.empty(len(order), dtype=np.float64)
        for code in np.unique(codes):
            mine = np.flatnonzero(codes == code)
            rank_in_class[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
        rank_in_class[first_of_each] = 0.0
        order = order[np.argsort(rank_in_class, kind="stable")]
    return np.sort(order[:rows])


def _shuffled_parts(examples: TableExamples, second_rows: int, seed: int) -> tuple[Rows, Rows]:
    from sklearn.model_selection import train_test_split

    keys = examples.codes if examples.problem == "classification" else None
    first, second = train_test_split(np.arange(len(examples)), test_size=second_rows, random_state=seed, stratify=keys)
    return np.sort(first), np.sort(second)


def _refuse_small_classes(examples: TableExamples, test_rows: int, test_percent: int) -> None:
    counts = np.bincount(examples.codes, minlength=len(examples.classes))
    if counts.min() < 2:
        smallest_first = np.argsort(counts, kind="stable")
        shown = ", ".join(f"{examples.classes[code]!s}: {counts[code]}" for code in smallest_first[:_MOST_LISTED])
        more = f" and {len(counts) - _MOST_LISTED} more" if len(counts) > _MOST_LISTED else ""
        raise StageInputError(
            f"each class needs at least 2 rows, one to train on and one to test on; rows per class: {shown}{more}",
            hint="add rows of the small classes, merge them, or remove them",
        )
    train_rows = len(examples) - test_rows
    if min(test_rows, train_rows) < len(counts):
        raise StageInputError(
            f"{len(counts)} classes need as many rows in each part, but test_percent={test_percent} of "
            f"{len(examples)} rows leaves {test_rows} to test and {train_rows} to train on",
            hint="change test_percent, or add rows",
        )


# A fitted pipeline on disk, with its facts.
#
# The pipeline is a pickle of plain scikit-learn objects: it loads without Stoker. Loading a pickle runs code, so a
# model is read only from this machine's own store or from a trusted folder.


PIPELINE_FILE = "model.joblib"
FACTS_FILE = "model.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPipeline:
    """A pipeline that predicts, and its facts."""

    pipeline: Any
    facts: TabularModelFacts


def write_model(model: FittedPipeline, folder: Path) -> None:
    """Write the pickle and the facts into an empty folder."""
    import joblib

    joblib.dump(model.pipeline, folder / PIPELINE_FILE, compress=3)
    (folder / FACTS_FILE).write_text(jsontext.dumps(model.facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_model(folder: Path) -> FittedPipeline:
    """Read a model from a trusted folder."""
    import joblib

    return FittedPipeline(pipeline=joblib.load(folder / PIPELINE_FILE), facts=read_facts(folder))


def read_facts(folder: Path) -> TabularModelFacts:
    """Read the facts of a model without loading its pickle."""
    facts: TabularModelFacts = jsontext.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    return facts


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that a result depends on."""
    return {name: version(name) for name in ("numpy", "pandas", "scikit-learn")}
