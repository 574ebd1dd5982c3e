"""Train a model again, on other rows, from what was written down about it."""

from __future__ import annotations

from typing import Any, assert_never

from stoker.cookbooks.tabular.records import ModelFacts
from stoker.cookbooks.tabular.science import boosting, neighbours, network, self_training
from stoker.cookbooks.tabular.science.examples import Examples


def refit(facts: ModelFacts, examples: Examples) -> Any:
    """Give a pipeline of the same family and settings, fitted on these examples."""
    params = facts["params"]
    match facts["family"]:
        case "gbt":
            return boosting.fit(examples, boosting.Boosting(**params))
        case "knn":
            return neighbours.fit(examples, neighbours.Neighbours(**params))
        case "knn_semi":
            return self_training.fit(examples, self_training.SelfTraining(**params))
        case "mlp":
            return network.fit(examples, network.Network(**{**params, "hidden": tuple(params["hidden"])}))
        case other:
            assert_never(other)
