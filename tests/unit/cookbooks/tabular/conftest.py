from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cookbooks.tabular.walking import Walked, run_recipe


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """The main job, run once, with smaller models: three of them on the breast cancer set."""
    return run_recipe("compare", tmp_path_factory.mktemp("compare"), trees=40, epochs=60)


@pytest.fixture(scope="session")
def regressed(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """Three models of a quantity, run once."""
    return run_recipe(
        "compare", tmp_path_factory.mktemp("regress"), data="diabetes", trees=60, epochs=40, curve_points=3
    )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Stages hold the numeric libraries to one thread for tables this small; so do tests that call them directly."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(limits=1):
        yield
