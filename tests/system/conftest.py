from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests.system.shell import Shell, make_index
from tests.system.warm import is_warm_run, make_warm_programs


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that knows this machine's recipes and interpreters."""
    return make_index(tmp_path_factory.mktemp("index"))


@pytest.fixture
def shell(tmp_path: Path, index: Path) -> Shell:
    return Shell(tmp_path, index=index)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs for a shell: those of the interpreter that runs the tests, with a warm `stoker`."""
    if not is_warm_run():
        return Path(sysconfig.get_path("scripts"))
    return make_warm_programs(tmp_path_factory.mktemp("warm"))
