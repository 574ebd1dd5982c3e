"""From columns to the numbers that a model sees. Fitted on training rows only, as the first step of every pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from stoker.cookbooks.tabular.examples import TableExamples

_MOST_CATEGORIES = 50
# HistGradientBoosting bins categories like numbers: 255 bins, one of them for missing values.
_MOST_TREE_CATEGORIES = 254


def scaled(examples: TableExamples) -> Any:
    """For models that measure distances: gaps filled, numbers standardised, categories as one column each."""
    numbers = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    categories = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=_MOST_CATEGORIES, sparse_output=False
    )
    return ColumnTransformer(
        [("numbers", numbers, list(examples.numeric)), ("categories", categories, list(examples.categorical))]
    )


def for_trees(examples: TableExamples) -> Any:
    """For trees, which take gaps as they are and split on categories natively: categories come first, as codes."""
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
        max_categories=_MOST_TREE_CATEGORIES,
    )
    return ColumnTransformer(
        [("categories", codes, list(examples.categorical)), ("numbers", "passthrough", list(examples.numeric))]
    )
