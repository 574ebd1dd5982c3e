from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.engine.lab import Lab, quick_folder


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A whole engine in a folder of its own."""
    with quick_folder() as folder, Lab(folder / "lab") as made:
        yield made


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """A file that gets one line per execution."""
    return str(tmp_path / "ledger")
