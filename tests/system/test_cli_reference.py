from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_pages_are_what_the_code_says() -> None:
    tool = ROOT / "tools" / "reference.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_cookbook_that_ships_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "recipes.md").read_text("utf-8")
    ship = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["stoker.cookbooks"]
    titles = {line[3:].partition("/")[0] for line in page.splitlines() if line.startswith("## ")}
    assert titles == set(ship)
