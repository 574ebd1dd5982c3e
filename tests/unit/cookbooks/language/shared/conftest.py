from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.unit.cookbooks.language.shared.companions import small_base

    return small_base(tmp_path_factory.mktemp("base") / "small")


@pytest.fixture
def person(tmp_path: Path, base: Path) -> Callable[..., Any]:
    """Make members: `person(number, **settings)`; `world` tells apart members of one number; `even`: rows of 24."""
    from tests.unit.cookbooks.language.shared.companions import Person, some_examples

    def make(number: int, *, world: str = "w", even: bool = False, on: Path = base, **said: Any) -> Person:
        of_data = {name: said.pop(name) for name in ("shortest", "longest", "token") if name in said}
        examples = some_examples(number, **({"shortest": 24} if even else {}), **of_data)
        return Person(tmp_path / world, on, number, examples, **said)

    return make
