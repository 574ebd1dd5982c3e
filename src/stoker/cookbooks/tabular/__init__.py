"""Tables: train, compare and explain models of CSV and Parquet files, or of scikit-learn's data sets.

`COOKBOOK` is looked up on first use, by computed name: a stage's code identity covers the packages of its module, and
would otherwise include every recipe and every other stage through this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "COOKBOOK":
        return import_module(f"{__name__}.recipes").COOKBOOK
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
