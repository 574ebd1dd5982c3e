from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.shell import Shell


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of recipes, made once: making it imports every cookbook."""
    shell = Shell(tmp_path_factory.mktemp("index"))
    assert shell.stoker("recipes").code == 0
    return shell.home / "state" / "cookbooks.json"


@pytest.fixture
def shell(tmp_path: Path, index: Path) -> Shell:
    return Shell(tmp_path, index=index)
