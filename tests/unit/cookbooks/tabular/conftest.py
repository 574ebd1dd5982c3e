from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.cookbooks.tabular.walking import Walked, run_recipe


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """The main job, run once, with smaller models: three of them on the breast cancer set."""
    return run_recipe("compare", tmp_path_factory.mktemp("compare"), trees=15, epochs=20, bootstraps=100)


@pytest.fixture(scope="session")
def regressed(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """Three models of a quantity, run once."""
    small: dict[str, Any] = {"trees": 20, "epochs": 20, "curve_points": 2, "folds": 2, "bootstraps": 100}
    return run_recipe("compare", tmp_path_factory.mktemp("regress"), data="diabetes", **small)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Stages hold the numeric libraries to one thread for tables this small; so do tests that call them directly."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(limits=1):
        yield
