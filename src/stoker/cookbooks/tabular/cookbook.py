"""The cookbook itself: what the catalogue sees of it."""

from __future__ import annotations

from typing import Final

from stoker.cookbooks.tabular.cross_validate import cross_validate
from stoker.cookbooks.tabular.evaluate import evaluate
from stoker.cookbooks.tabular.kinds import Labelled, Model, Report, Scores, Split, Table, Validation
from stoker.cookbooks.tabular.label import label
from stoker.cookbooks.tabular.load import load
from stoker.cookbooks.tabular.recipes import compare, gbt, knn, knn_semi, mlp
from stoker.cookbooks.tabular.report import report
from stoker.cookbooks.tabular.split import split
from stoker.cookbooks.tabular.train_gbt import train_gbt
from stoker.cookbooks.tabular.train_knn import train_knn
from stoker.cookbooks.tabular.train_knn_semi import train_knn_semi
from stoker.cookbooks.tabular.train_mlp import train_mlp
from stoker.plan.authoring import Cookbook

COOKBOOK: Final = Cookbook(
    name="tabular",
    summary="classify and predict from CSV and Parquet files",
    recipes=(compare, gbt, knn, knn_semi, mlp),
    stages=(
        load,
        label,
        split,
        train_gbt,
        train_knn,
        train_knn_semi,
        train_mlp,
        cross_validate,
        evaluate,
        report,
    ),
    kinds=(Table, Labelled, Split, Model, Validation, Scores, Report),
    prefill={recipe.name: {"data": "breast_cancer"} for recipe in (compare, gbt, knn, knn_semi, mlp)},
    preload=(
        "pandas",
        "pyarrow.parquet",
        "sklearn.compose",
        "sklearn.ensemble",
        "sklearn.neighbors",
        "sklearn.neural_network",
        "sklearn.semi_supervised",
    ),
)
