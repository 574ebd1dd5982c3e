from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.composing import Desk
from tests.unit.config.declaring import Drawer


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def drawer(tmp_path: Path) -> Drawer:
    return Drawer(tmp_path)
