"""A fitted pipeline on disk, beside what is known of it.

The pipeline is a pickle of plain scikit-learn objects: it loads without Stoker. Loading a pickle runs what is in it,
so a model is read only from this machine's own store or from a place that its reader trusts as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib

from stoker.cookbooks.tabular.schemas import TabularModelFacts
from stoker.core import jsontext

PIPELINE_FILE = "model.joblib"
FACTS_FILE = "model.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPipeline:
    """A pipeline that predicts, and its facts."""

    pipeline: Any
    facts: TabularModelFacts


def write_model(model: FittedPipeline, folder: Path) -> None:
    """Write the pickle and the facts into an empty folder."""
    joblib.dump(model.pipeline, folder / PIPELINE_FILE, compress=3)
    (folder / FACTS_FILE).write_text(jsontext.dumps(model.facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_model(folder: Path) -> FittedPipeline:
    """Read a model from a trusted folder."""
    facts: TabularModelFacts = jsontext.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    return FittedPipeline(pipeline=joblib.load(folder / PIPELINE_FILE), facts=facts)


def library_versions() -> dict[str, str]:
    """Name the libraries that a result depends on."""
    return {name: version(name) for name in ("numpy", "pandas", "scikit-learn")}
