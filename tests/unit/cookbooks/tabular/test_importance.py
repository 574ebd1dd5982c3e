from __future__ import annotations

import numpy as np
import pytest

from tests.later import imported_later

with imported_later():
    import pandas as pd
    from sklearn.linear_model import LinearRegression

    from stoker.cookbooks.tabular.evaluation import importance
    from stoker.cookbooks.tabular.examples import TableExamples


ROWS = 80


@pytest.fixture(scope="module")
def examples() -> TableExamples:
    generator = np.random.default_rng(0)
    features = pd.DataFrame(generator.normal(0, 1, (ROWS, 3)), columns=["none", "some", "most"])
    return TableExamples(
        features=features,
        target=(features["some"] + 3 * features["most"]).to_numpy(),
        classes=np.array([]),
        numeric=("none", "some", "most"),
        categorical=(),
        problem="regression",
    )


@pytest.fixture(scope="module")
def model(examples: TableExamples) -> LinearRegression:
    return LinearRegression().fit(examples.features, examples.target)


def test_what_decides_most_stands_first_and_what_decides_nothing_loses_nothing(model, examples):
    rows = importance(model, examples, metric="mae", seed=0)
    assert [row["feature"] for row in rows] == ["most", "some", "none"]
    # A shuffled column is off by its weight times the distance of two draws.
    assert rows[0]["mean"] == pytest.approx(3 * 2 / np.sqrt(np.pi), rel=0.2)
    assert rows[1]["mean"] == pytest.approx(rows[0]["mean"] / 3, rel=0.3)
    assert rows[2]["mean"] == pytest.approx(0.0, abs=1e-9)


def test_a_metric_of_which_more_is_better_loses_too(model, examples):
    assert importance(model, examples, metric="r2", seed=0)[0]["mean"] > 0.5


@pytest.mark.parametrize("cells_at_once", [1, 5 * ROWS * 3 * 2])
def test_it_is_the_same_however_many_are_asked_about_at_once(model, examples, cells_at_once):
    apart = importance(model, examples, metric="rmse", seed=3, cells_at_once=cells_at_once)
    together = importance(model, examples, metric="rmse", seed=3)
    for one, other in zip(apart, together, strict=True):
        assert one == {"feature": other["feature"]} | {
            name: pytest.approx(other[name], abs=1e-9) for name in ("mean", "std")
        }
