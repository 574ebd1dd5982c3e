"""Every example does what it says, as a user would run it: in an empty folder, with an empty home."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBERED = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and path.name[:2].isdigit())
SLOW = {
    # 01 has its commands, and `test_reports.py` goes from files of every sort to their reports.
    "02_your_own_csv",
    # `test_cli_run.py` and `test_cli_store.py` have its commands on a recipe that imports nothing.
    "06_why_did_it_run",
    # `test_sequence_recipes.py` has its recipes on a shorter series, and 01 and 02 have its commands on tables.
    "17_sequence_models",
    # `test_cli_language.py` and `test_cli_adapters.py` have its commands on smaller trainings.
    "18_adapters",
    # `test_cli_crossval.py` has its commands with real runtimes.
    "21_the_same_answers",
    # `test_launch_slurm.py` goes the same way on a larger Slurm.
    "19_workers_on_slurm",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all of them, as a reader who goes through them has."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, id=path.name, marks=pytest.mark.slow if path.name in SLOW else ()) for path in NUMBERED],
)
def test_an_example_runs_as_it_stands(example: Path, home: Path, programs: Path, tmp_path: Path) -> None:
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", str(example / "run.sh")],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def test_the_list_of_examples_is_complete() -> None:
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    assert not [path.name for path in NUMBERED if f"({path.name})" not in listed]


@pytest.mark.parametrize("example", NUMBERED, ids=lambda path: path.name)
def test_an_example_has_a_readme(example: Path) -> None:
    assert (example / "README.md").read_text("utf-8").startswith(f"# {example.name[:2]}: ")
