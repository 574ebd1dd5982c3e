"""A test of a time gets three tries, each with fixtures of its own; any other test gets one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

tries = []

@pytest.fixture
def made(tmp_path):
    assert not list(tmp_path.iterdir())
    (tmp_path / "used").touch()

@pytest.mark.timing
def test_third(made):
    tries.append("third")
    assert len(tries) == 3

@pytest.mark.timing
def test_never(made):
    tries.append("never")
    assert False

def test_once(made):
    tries.append("once")
    assert False

def test_tries():
    assert (tries.count("third"), tries.count("never"), tries.count("once")) == (3, 3, 1)
"""


def test_only_a_test_of_a_time_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "tests.conftest", "-q", "-n", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(tmp_path / "test_it.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
