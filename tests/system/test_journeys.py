"""`tools/journeys.py` counts what it says: real journeys, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "journeys.py"


def test_the_journey_of_a_run_is_counted_until_its_program_starts_and_in_all() -> None:
    counted = subprocess.run([sys.executable, TOOL, "run"], capture_output=True, text=True, timeout=120, check=False)

    assert counted.returncode == 0, counted.stderr
    _, before, whole = counted.stdout.splitlines()
    assert before.startswith("run until the program starts ")
    *_, modules, _, functions, _ = whole.split()
    *_, modules_before, _, functions_before, _ = before.split()
    assert 0 < int(modules_before) <= int(modules)
    assert 0 < int(functions_before) < int(functions)
