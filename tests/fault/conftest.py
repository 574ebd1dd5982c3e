"""What several tests of faults share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.system.shell import make_index


@pytest.fixture
def memory(tmp_path):
    """A folder in memory where there is such a place: every step is synced, and what is tested is not the disk."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that knows this machine's recipes and interpreters."""
    return make_index(tmp_path_factory.mktemp("recipes"))


@pytest.fixture
def disk():
    """A folder on the disk of temporary files: memory has no page cache to write past."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
